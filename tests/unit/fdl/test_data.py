"""`data:` of a definition: sources with one content, what is refused, and what a plan makes."""
# ruff: noqa: E501  (one line per message, as people see it)

from __future__ import annotations

import pytest

from corekit.errors import AppError
from fdl.lint.lint import lint
from fdl.model import Function
from fdl.parse import parse
from fdl.plan.data import data_notices, with_data
from fdl.plan.facts import DataFacts, Facts
from fdl.plan.groups import deployed
from gpu_scheduler.data_manifest import File, digest_of, https_file, manifest_of, s3_files
from gpu_scheduler.model import Request

HEX = "a" * 64


def text(data: str, rest: str = "    gpu: {}\n") -> str:
    return f"""\
functions:
  aws:
  - lambda:
      name: f
      init_script: run.sh
      input: [inn/a]
      output: [out/b]
    data: {data}
{rest}"""


def function_of(definition: str) -> Function:
    return deployed(parse(definition, "f"))[0]


def errors(definition: str) -> list[str]:
    notes = lint(parse(definition, "f"))
    return [note.text("f") for note in notes if note.severity == "error"]


def test_each_form_is_read() -> None:
    data = (
        f"{{w: s3://models/w, p: host:p, h: 'https://h/x.onnx#sha256={HEX}',"
        f" m: {{source: s3://models/m, size: 2GiB}}}}"
    )
    function = function_of(text(data))
    facts = Facts(data={f"s3://models/{one}": DataFacts(digest=HEX, bytes=7) for one in "wm"})
    request = with_data(Request(), function, facts)
    assert request.data == ("p",)
    assert [(one.name, one.bytes) for one in request.data_sets] == [
        ("w", 7),
        ("h", 0),
        ("m", 2 << 30),
    ]
    notices = list(data_notices(function, facts))
    assert notices[0] == f"f: data w is s3://models/w at sha256:{HEX[:12]}, 7 bytes"
    assert "of unknown size (`size:`)" in notices[1]


BAD = {
    "{w: s3://models}": "f:8:15: error: functions.aws[0].data.w: 's3://models' has not the form s3://bucket/prefix, or s3://bucket/key?versionId=ID",
    "{w: ftp://x}": "f:8:15: error: functions.aws[0].data.w: 'ftp://x' is not a source of data: s3://…, hf://…@…, oci://…@sha256:… or https://…#sha256=…",
    "{w: https://h/x}": "f:8:15: error: functions.aws[0].data.w: 'https://h/x' has not the form https://host/path#sha256= and 64 hex digits",
    f"{{w: 'https://h/a/../b#sha256={HEX}'}}": f"f:8:15: error: functions.aws[0].data.w: 'https://h/a/../b#sha256={HEX}' leads elsewhere than it reads: write its path without . and ..",
    "{w: hf://o/n}": "f:8:15: error: functions.aws[0].data.w: 'hf://o/n' has not the form hf://owner/name@revision, with datasets/ before a data set's owner",
    "{w: host:p}": "f:8:15: error: functions.aws[0].data.w: a folder of the host keeps its name: write `p`, not `w`",
    "{w: {source: s3://b/x}}": "f:8:24: error: functions.aws[0].data.w.source: 's3://b/x' has not the form s3://bucket/prefix, or s3://bucket/key?versionId=ID",
    "{w: {size: 3}}": "f:8:15: error: functions.aws[0].data.w: `source` is missing",
    "{w: {source: s3://bucket/x, size: big}}": "f:8:45: error: functions.aws[0].data.w.size: 'big' is not a size; write MiB, or a unit as in 4GiB",
    "{w: {source: s3://bucket/x, pin: 1}}": "f:8:39: error: functions.aws[0].data.w: 'pin' is not a key here; the keys are source and size",
    "{a b: s3://bucket/x}": "f:8:12: error: functions.aws[0].data: 'a b' is not a name of letters, digits, - . and _",
}


@pytest.mark.parametrize("data", BAD)
def test_an_error_names_its_place(data: str) -> None:
    with pytest.raises(AppError) as error:
        parse(text(data), "f")
    assert error.value.message.splitlines()[0] == BAD[data]


def test_data_needs_a_device_and_one_declaration() -> None:
    (found,) = errors(text("{w: s3://models/w}", ""))
    assert found.startswith("f:8:12: error: functions.aws[0].data.w: data is fetched by the host")
    (found,) = errors(text("{p: host:p}", "    gpu: {data: [p]}\n"))
    assert "is in gpu.data too; keep one" in found


def test_a_source_that_was_not_read_cannot_be_planned() -> None:
    with pytest.raises(AppError, match="s3://models/w was not read"):
        with_data(Request(), function_of(text("{w: s3://models/w}")), Facts())


# --- manifests


def page(*keys: str) -> list[dict[str, object]]:
    return [{"Contents": [{"Key": key, "ETag": f'"{key}"', "Size": 1} for key in keys]}]


@pytest.mark.parametrize(
    ("prefix", "keys", "paths"),
    [
        ("w", ("w/a", "w/b/c", "w/d/", "w2/x", "wx"), ["a", "b/c"]),
        ("w/", ("w/a",), ["a"]),
        ("w/a.onnx", ("w/a.onnx", "w/a.onnx/b"), ["a.onnx"]),
        ("", ("a", "b/c"), ["a", "b/c"]),
        ("w", (), []),
    ],
)
def test_the_files_of_a_prefix(prefix: str, keys: tuple[str, ...], paths: list[str]) -> None:
    found = dict(s3_files(page(*keys), prefix))
    assert [file.path for file in found.values()] == paths


def test_a_digest_is_of_pins_and_paths_in_order() -> None:
    files = [File(path="b", pin="etag:1", bytes=2), File(path="a", pin="sha256:0", bytes=None)]
    first = manifest_of("s3://b/x", files)
    assert first.text == "sha256:0  a\netag:1  b\n"
    assert first.bytes is None
    again = manifest_of("s3://b/x", files[::-1])
    assert digest_of(first) == digest_of(again)
    assert https_file(f"https://h/dir/x%20y.onnx?q=1#sha256={HEX}").path == "x y.onnx"


@pytest.mark.parametrize("paths", [(), ("a", "a/b")])
def test_files_that_exclude_each_other_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(AppError):
        manifest_of("s3://b/x", [File(path=path, pin="etag:1") for path in paths])


@pytest.mark.parametrize("path", ["/a", "../a", "a/../b", "a//b", "", "a\nb", "a/./b", "x" * 901])
def test_a_path_that_leaves_the_folder_is_refused(path: str) -> None:
    with pytest.raises(AppError):
        File(path=path, pin="etag:1")
