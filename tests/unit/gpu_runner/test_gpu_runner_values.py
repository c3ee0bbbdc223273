"""Handlers with `values=True`: a value in, its answer as the output file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lambda_functions.gpu_runner.script.call import call
from lambda_functions.work import Work

MODULE = """
import orchgpu

@orchgpu.function(input="a/in", output="a/out", values=True)
def answer(value):
    return None if value == "nothing" else {"got": value}

@orchgpu.function(input="b/in", output="b/out", values=True)
def reversed_bytes(value):
    return value[::-1]

@orchgpu.function(input="c/in", output="c/out", values=True)
def wrong(value):
    return {1: value}

@orchgpu.function(input="d/in", output="d/out")
def files(work):
    return 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "handlers_of_values.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "handlers_of_values", raising=False)
    return tmp_path


def answered(folder: Path, name: str, file: str, content: bytes) -> dict[str, bytes]:
    """The output files of one call."""
    (folder / "in").mkdir()
    (folder / "out").mkdir()
    (folder / "in" / file).write_bytes(content)
    variables = {
        "INPUT_FILE_PATH": str(folder / "in" / file),
        "TMP_INPUT_DIR": str(folder / "in"),
        "TMP_OUTPUT_DIR": str(folder / "out"),
        "STORAGE_OBJECT_KEY": file,
        "EVENT": "{}",
    }
    call(str(folder), f"handlers_of_values.{name}", Work.of(variables))
    return {one.name: one.read_bytes() for one in (folder / "out").iterdir()}


@pytest.mark.parametrize(
    ("name", "file", "content", "output"),
    [
        ("answer", "x.json", b"[1]", {"x.json": b'{"got":[1]}'}),
        ("answer", "x.json", b'"nothing"', {"x.json": b"null"}),
        ("reversed_bytes", "x.dat", b"\0\1", {"x.bin": b"\1\0"}),
    ],
)
def test_the_returned_value_is_the_output(
    folder: Path, name: str, file: str, content: bytes, output: dict[str, bytes]
) -> None:
    assert answered(folder, name, file, content) == output


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("wrong", b"1", "the key 1 is not a string"),
        ("answer", b"{", "Expecting property name"),
        ("files", b"1", "results are files in output_folder"),
    ],
)
def test_what_is_no_value_fails_the_run(
    folder: Path, name: str, content: bytes, error: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        answered(folder, name, "x.json", content)


def test_values_need_a_place_for_the_answer() -> None:
    import orchgpu

    with pytest.raises(TypeError, match="values=True needs an output"):
        orchgpu.function(input="a/in", values=True)
