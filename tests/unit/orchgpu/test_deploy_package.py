"""The function's zip: what is in it, that it is reproducible, and what is refused."""

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from corekit.errors import AppError
from fdl.model import Function
from fdl.parse import parse
from orchgpu.deploy.package import build


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "bin/run.sh").chmod(0o644)
    (tmp_path / "extra/deep").mkdir(parents=True)
    (tmp_path / "extra/deep/data.txt").write_text("42")
    (tmp_path / "extra/tool").write_text("#!/bin/sh\n")
    (tmp_path / "extra/tool").chmod(0o755)
    return tmp_path


def function(extra: str = "extra_payload: extra") -> Function:
    text = f"functions: {{aws: [{{lambda: {{name: f, init_script: bin/run.sh, {extra}}}}}]}}"
    return parse(text).functions.aws[0]


def members(data: bytes) -> dict[str, int]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename: (info.external_attr >> 16) & 0o777 for info in archive.infolist()}


def test_the_runner_travels_with_the_users_script_and_files(folder: Path) -> None:
    found = members(build(function(), folder).data)
    assert found["script/run.sh"] == 0o755
    assert found["tool"] == 0o755
    assert found["deep/data.txt"] == 0o644
    for name in ("contract/envelope.py", "lambda_functions/__init__.py", "remote_gpu/__init__.py"):
        assert found[name] == 0o644
    assert any(name.startswith("lambda_functions/gpu_runner/") for name in found)
    tops = {name.split("/")[0] for name in found}
    assert tops == {"contract", "lambda_functions", "remote_gpu", "script", "deep", "tool"}
    assert not any("__pycache__" in name for name in found)


def test_the_same_files_give_the_same_bytes(folder: Path) -> None:
    first = build(function(), folder)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    assert build(function(), folder) == first
    (folder / "bin/run.sh").write_text("#!/bin/sh\ntrue\n")
    assert build(function(), folder).sha256 != first.sha256


def test_what_travels_imports_nothing_that_does_not(folder: Path, tmp_path: Path) -> None:
    """In an empty interpreter with only the zip on its path, as in Lambda."""
    (tmp_path / "code.zip").write_bytes(build(function(""), folder).data)
    program = (
        "import contract.envelope, contract.result, contract.keys, remote_gpu, lambda_functions"
    )
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, sys.argv[1]); {program}",
    ]
    subprocess.run([*command, str(tmp_path / "code.zip")], check=True)


def test_missing_files_are_named(folder: Path) -> None:
    (folder / "bin/run.sh").unlink()
    with pytest.raises(AppError, match=r"init_script: .*run\.sh does not exist"):
        build(function(), folder)
    with pytest.raises(AppError, match=r"extra_payload: .*nothing is not a folder"):
        build(function("extra_payload: nothing"), folder)


def test_the_users_files_may_not_replace_the_runner(folder: Path) -> None:
    (folder / "extra/contract").mkdir()
    (folder / "extra/contract/keys.py").write_text("")
    with pytest.raises(AppError, match=r"'contract/keys\.py' is the name of a part of the runner"):
        build(function(), folder)
