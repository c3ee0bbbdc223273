"""The function's zip: what is in it, that it is reproducible, and what is refused."""

import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from corekit.errors import AppError
from fdl.diagnostics import Severity
from fdl.model import Function
from fdl.parse import parse
from fdl.plan.groups import deployed
from orchgpu.deploy.deployment import validate
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
    tops_of_ours = {"contract", "lambda_functions", "orchgpu", "remote_gpu"}
    assert tops == {*tops_of_ours, "script", "deep", "tool"}
    assert {name for name in found if name.startswith("orchgpu")} == {
        "orchgpu/__init__.py",
        "orchgpu/declaration.py",
    }
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
    with pytest.raises(AppError, match=r"'contract/keys\.py' belongs to the runner; rename it"):
        build(function(), folder)


@pytest.mark.parametrize("name", ["boto3.py", "sitecustomize.py", "json/__init__.py", "select.so"])
def test_the_users_files_may_not_be_modules_that_the_runner_imports(
    folder: Path, name: str
) -> None:
    """The package is the first folder of Lambda's import path."""
    (folder / "extra" / name).parent.mkdir(exist_ok=True)
    (folder / "extra" / name).write_text("")
    with pytest.raises(AppError, match="the runner would import"):
        build(function(), folder)


@pytest.mark.parametrize("name", ["json/data.txt", "libs/boto3.py", "types.csv"])
def test_other_files_may_have_names_of_modules(folder: Path, name: str) -> None:
    (folder / "extra" / name).parent.mkdir(exist_ok=True)
    (folder / "extra" / name).write_text("")
    assert name in members(build(function(), folder).data)


def test_a_handlers_module_lies_where_its_dots_say(folder: Path) -> None:
    (folder / "bin/answer.py").write_text("def answer(work): ...\n")
    text = "functions: {aws: [{lambda: {name: f, handler: bin.answer.answer}}]}"
    found = members(build(parse(text).functions.aws[0], folder).data)
    assert found["script/bin/answer.py"] == 0o644
    assert found["lambda_functions/work.py"] == 0o644
    with pytest.raises(AppError, match=r"handler: .*gone\.py does not exist"):
        build(parse(text.replace("bin.answer", "gone")).functions.aws[0], folder)


def test_each_step_of_a_group_has_its_own_folder(folder: Path) -> None:
    (folder / "last.py").write_text("def answer(work): ...\n")
    text = """functions: {aws: [
      {group: g, lambda: {name: a, init_script: bin/run.sh, input: [{path: inn}], output: [{path: mid}]}},
      {group: g, lambda: {name: b, handler: last.answer, input: [{path: mid}]}}]}"""  # noqa: E501
    (group,) = deployed(parse(text))
    data = build(group, folder).data
    found = members(data)
    assert (found["script/a/run.sh"], found["script/b/last.py"]) == (0o755, 0o644)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        steps = json.loads(archive.read("script/steps.json"))
    assert [step["name"] for step in steps] == ["a", "b"]


def test_what_a_module_surely_lacks_is_known_before_it_runs(tmp_path: Path) -> None:
    text = "functions: {aws: [{lambda: {name: f, handler: mine.answer, input: [{path: inn}]}}]}"
    (tmp_path / "fdl.yaml").write_text(text)

    def said(module: str) -> list[str]:
        (tmp_path / "mine.py").write_text(module)
        _, notes = validate(tmp_path / "fdl.yaml")
        return [note.message for note in notes if note.severity is Severity.ERROR]

    assert said("def other(work): ...") == ["'mine.py' defines no 'answer'"]
    for fine in (
        "def answer(work): ...",
        "from x import answer",
        "answer = print",
        "from x import *",
    ):
        assert said(fine) == []
