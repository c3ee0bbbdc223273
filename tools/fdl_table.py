"""Writes the tables of keys and older shapes in docs/reference/fdl.md, from the reader."""

from __future__ import annotations

from fdl.keys.reference import table
from fdl.parse import read
from fdl.text.compose import compose
from fdl.text.nodes import Mapping, Node, Sequence
from fdl.text.render import one_line
from tools.page_sections import DOCS, renew, with_section

PAGE = DOCS / "reference/fdl.md"
#: Whole files in an older shape; the reader itself gives the result.
FILES = (
    "functions: {NAME: {image: IMAGE, time: 60, environment: {KEY: value}}}",
    "functions: {NAME: {s3: {input_bucket: bucket, deployment_bucket: packages}}}",
    (
        "functions: {NAME: {s3: {input_bucket: bucket, input_folder: in, output_bucket: other,"
        " output_folder: out}}}"
    ),
    "functions: {NAME: {lambda_role: 'arn:aws:iam::123456789012:role/ROLE', profile: PROFILE}}",
    (
        "functions: {NAME: {image: IMAGE, data_binary: FILE, request_id: ID, log_stream_name: ID,"
        " api_gateway: {name: API}}}"
    ),
    (
        "functions: [{name: NAME, input: [{name: PLACE, path: bucket/in}]}]\n"
        "storages: [{name: PLACE, type: minio}]"
    ),
    "functions: [{aws: [{name: NAME, output: [{path: bucket, files: {sufix: [.wav]}}]}]}]",
    (
        "functions: {oscar: [{CLUSTER: {name: NAME, image: IMAGE, script: FILE, memory: 1Gi,"
        " enable_gpu: true, environment: {variables: {KEY: value}}}}]}"
    ),
    (
        "functions: {oscar: [{name: NAME, script: FILE, input: [{storage_provider: minio.default,"
        " path: bucket/in}]}]}\nclusters: {CLUSTER: {endpoint: URL}}"
    ),
)
#: One function's own keys in an older shape.
ELEMENTS = (
    "lambda: {image: IMAGE}",
    "lambda: {image_file: FILE}",
    'lambda: {container: {timeout_threshold": 10}}',
    "lambda: {log_level: debug, runtime: python3.7}",
    "lambda: {run_script: FILE}",
    "lambda: {input: [{storage_provider: minio.ID, path: bucket/in}]}",
    "lambda: {execution_mode: lambda-batch}",
    "lambda: {execution_mode: batch}, batch: {memory: 2048, enable_gpu: true}",
    "lambda: {}, api_gateway: {name: API}",
)


def shapes() -> str:
    """The table of older shapes."""
    rows = [*map(_file_row, FILES), *map(_element_row, ELEMENTS)]
    lines = [f"| `{written}` | `{result}` |" for written, result in rows]
    head = ["| in the file | is read as |", "| --- | --- |"]
    return "\n".join([*head, *lines, ""])


def _file_row(text: str) -> tuple[str, str]:
    root = _read(text + "\n")
    return text.replace("\n", ", "), _inside(one_line(root))


def _element_row(text: str) -> tuple[str, str]:
    whole = "lambda: {name: NAME, " + text.removeprefix("lambda: {").removeprefix(", ")
    functions = _read(f"functions: {{aws: [{{{whole}}}]}}\n").child("functions")
    assert isinstance(functions, Mapping)
    aws = functions.child("aws")
    assert isinstance(aws, Sequence)
    return text, _inside(one_line(_without_name(aws.items[0])))


def _without_name(element: Node) -> Node:
    assert isinstance(element, Mapping)
    block = element.child("lambda")
    assert isinstance(block, Mapping)
    return element.with_entry("lambda", block.without("name"))


def _read(text: str) -> Mapping:
    root = read(compose(text, "shape.yaml"))[1]
    assert isinstance(root, Mapping)
    return root


def _inside(flow: str) -> str:
    return flow.removeprefix("{").removesuffix("}")


def renewed(page: str) -> str:
    """The page with both tables up to date."""
    return with_section(with_section(page, "keys", table() + "\n"), "shapes", shapes() + "\n")


if __name__ == "__main__":
    renew(PAGE, renewed)
