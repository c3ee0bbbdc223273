"""The traceback of a handler begins with the user's line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """\
def helper():
    raise ValueError("no faces")

def find(work):
    try:
        helper()
    except ValueError as error:
        raise RuntimeError("cannot go on") from error
"""
VARIABLES = ("INPUT_FILE_PATH", "TMP_INPUT_DIR", "TMP_OUTPUT_DIR", "STORAGE_OBJECT_KEY")


def called(folder: Path, handler: str, text: str) -> tuple[int, str]:
    (folder / "script").mkdir(parents=True)
    (folder / "script" / "faces.py").write_text(text)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "lambda_functions.gpu_runner.script.call"),
            *(str(folder / "script"), handler),
        ],
        env={"PYTHONPATH": str(Path(__file__).parents[3]), "EVENT": "{}"}
        | dict.fromkeys(VARIABLES, str(folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_our_frames_and_long_paths_are_left_out(tmp_path: Path) -> None:
    status, told = called(tmp_path / ("a" * 64), "faces.find", MODULE)
    assert status == 1
    lines = told.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == '  File "script/faces.py", line 6, in find'
    assert lines[-1] == "RuntimeError: cannot go on"
    assert "ValueError: no faces" in told
    for ours in ("runpy", "call.py", "importlib", "a" * 64):
        assert ours not in told


@pytest.mark.parametrize(
    ("handler", "text", "last"),
    [
        ("faces.find", "import nothing_of_this_name", "No module named 'nothing_of_this_name'"),
        ("faces.find", "def find(work: return", "SyntaxError"),
        ("faces.other", "", "has no attribute 'other'"),
        ("faces.find", "def find(work): return 1", "results are files in output_folder"),
        ("faces.find", "import sys\ndef find(work): sys.exit(7)", ""),
    ],
)
def test_every_failure_has_its_message_and_none_of_our_frames(
    tmp_path: Path, handler: str, text: str, last: str
) -> None:
    status, told = called(tmp_path, handler, text)
    assert status == (7 if "sys.exit" in text else 1)
    assert last in told
    assert "call.py" not in told
