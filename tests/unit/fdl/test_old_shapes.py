"""Documented shapes of SCAR and OSCAR: read with a warning, or refused at the inner key.

Written from the description of those shapes; `shapes/flat-*`, `list-in-aws`, `places-by-storage`
and `oscar-more` hold their findings.
"""
# ruff: noqa: E501  (one line per message, as people see it)

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corekit.errors import AppError
from fdl.diagnostics import Severity
from fdl.lint.lint import lint
from fdl.model import Document
from fdl.parse import parse, read
from fdl.text.compose import compose
from fdl.text.nodes import quoted
from fdl.text.render import render

SHAPES = Path(__file__).parent / "shapes"


def shape(name: str) -> Document:
    return parse((SHAPES / f"{name}.yaml").read_bytes(), f"{name}.yaml")


def test_a_flat_function_keeps_all_its_settings() -> None:
    (function,) = shape("flat-with-s3").functions.aws
    declared, container = function.function, function.function.container
    assert (declared.name, declared.memory_mib, declared.timeout_s) == ("shape-flat", 2048, 280)
    assert (container.image, container.timeout_threshold_s) == ("example/detector", 20)
    assert container.variables == {"LEVEL": "45"}
    assert declared.variables == {}
    assert [str(place.path) for place in declared.input] == ["shape-flat-in/seqs"]
    assert [str(place.path) for place in declared.output] == ["shape-flat-out/found"]
    assert declared.deployment.bucket == "shape-flat-packages"
    assert function.iam.role == "arn:aws:iam::123456789012:role/shape"


def test_places_without_folders_follow_scars_convention() -> None:
    """ "a folder with the name of the function … with an `input` folder inside it"."""
    (function,) = shape("flat-by-convention").functions.aws
    assert str(function.function.input[0].path) == "shape-conv-bucket/shape-conv/input"
    assert str(function.function.output[0].path) == "shape-conv-bucket/shape-conv/output"


def test_flat_functions_are_a_workflow() -> None:
    first, second = shape("flat-chain").functions.aws
    assert first.function.output[0].path == second.function.input[0].path


def test_an_output_folder_alone_lies_in_the_input_bucket() -> None:
    (function,) = parse(
        "functions: {f: {init_script: s, s3: {input_bucket: buc, output_folder: out}}}"
    ).functions.aws
    assert str(function.function.output[0].path) == "buc/out"


def test_a_list_of_lists_and_places_by_name() -> None:
    (inner,) = shape("list-in-aws").functions.aws
    assert inner.function.output[0].suffixes == ("wav",)
    (named,) = shape("places-by-storage").functions.aws
    assert named.function.output[0].prefixes == ("my_file",)


def test_a_service_of_oscar_may_stand_without_its_cluster() -> None:
    edge, alone = shape("oscar-more").functions.aws
    assert (edge.name, alone.name) == ("shape-edge", "shape-alone")
    assert edge.function.memory_mib == 10240


def test_lint_names_keys_as_they_are_written() -> None:
    text = (
        "functions:\n  aws:\n  - lambda: {name: one, init_script: s, input: [buc/in], output: [out]}\n"
        "  oscar:\n  - near:\n      name: two\n      script: s\n      input: [buc/in]\n"
        "      output: [out]\n"
    )
    (note,) = [n for n in lint(parse(text)) if n.severity is Severity.ERROR]
    assert note.path == "functions.oscar[0].near.input[0]"
    assert "write another path" in note.message


# ---------------------------------------------------------------------- what migrate promises

_WORD = st.sampled_from(
    ["buc", "a-bucket", "in/deep", "two words", "a: b", "# no", "*x", "'", "yes", "007", "A_B", "ü"]
)
_VALUE = st.one_of(
    _WORD.map(quoted), _WORD, st.integers(0, 20000).map(str), st.sampled_from(["", "{}", "[]", "~"])
)
_S3 = st.dictionaries(
    st.sampled_from(
        ["input_bucket", "input_folder", "output_bucket", "output_folder", "deployment_bucket"]
    ),
    _WORD.map(quoted),
    max_size=4,
).map(lambda found: "{" + ", ".join(f"{k}: {v}" for k, v in found.items()) + "}")
_FLAT = st.fixed_dictionaries(
    {"init_script": st.just("s.sh")},
    optional={
        "image": _VALUE,
        "image_file": _VALUE,
        "time": _VALUE,
        "memory": _VALUE,
        "s3": _S3,
        "environment": st.sampled_from(["{A: 1}", "{Variables: {A: 1}}", "[A]", "{A: [b]}"]),
        "api_gateway": st.sampled_from(["{name: a}", "{nothing: a}"]),
        "log_level": _VALUE,
        "execution_mode": st.sampled_from(["batch", "lambda-batch", "other"]),
        "batch": st.sampled_from(["{memory: 12288, enable_gpu: true}", "{vcpus: 4}", "{x: 1}"]),
        "timeout_threshold": _VALUE,
        "data_binary": _VALUE,
        "lambda_role": _VALUE,
    },
)


@settings(max_examples=300)
@given(st.dictionaries(_WORD.map(quoted) | st.just("f"), _FLAT, min_size=1, max_size=2), st.data())
def test_migrate_prints_a_valid_file_or_nothing(
    functions: dict[str, dict[str, str]], data: st.DataObject
) -> None:
    lists = data.draw(st.booleans())
    lines = ["functions:"]
    for name, keys in functions.items():
        lines.append(f"- name: {name}" if lists else f"  {name}:")
        lines += [f"    {key}: {value}"[2 if lists else 0 :] for key, value in keys.items()]
    try:
        composed = compose("\n".join(lines) + "\n", "f.yaml")
        document, root = read(composed)
    except AppError:
        return
    again = parse(render(composed, root))
    assert again.rewrites == ()
    assert again.functions == document.functions


def test_one_wrong_bucket_is_one_error_at_the_written_key() -> None:
    """Outputs go to the bucket of the inputs where none is named."""
    text = "functions:\n  f:\n    image: a/b\n    init_script: s.sh\n    s3:\n"
    with pytest.raises(AppError) as raised:
        parse(text + "      input_bucket: Bad!\n", "f")
    assert raised.value.message.count("is not a bucket name") == 1
    assert "f:6:21: error: functions.f.s3.input_bucket: " in raised.value.message
