"""`orchgpu fdl validate` and what the deploy commands refuse before they speak to any cloud."""

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.commandline import Done, done

GOOD = """\
functions:
  aws:
  - lambda:
      name: f
      init_script: run.sh
      input: [{path: inn}]
      output: [{path: out}]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "f.yaml").write_text(GOOD)
    return tmp_path


def run(arguments: Sequence[str], status: int = 0) -> Done:
    result = done(arguments)
    assert result.exit_code == status, result.output
    return result


def test_a_good_file_is_valid() -> None:
    assert run(["fdl", "validate", "f.yaml"]).stdout == "f.yaml: valid\n"
    shown = json.loads(run(["fdl", "validate", "f.yaml", "--json"]).stdout)
    assert shown == {"version": 1, "valid": True, "functions": ["f"], "notes": []}


def test_what_does_not_parse_is_shown_with_its_place(folder: Path) -> None:
    (folder / "f.yaml").write_text(GOOD + "      memmory: 1\n")
    result = run(["fdl", "validate", "f.yaml"], 2)
    assert result.stderr.startswith(
        "orchgpu: f.yaml:8:7: error: functions.aws[0].lambda: unknown key"
    )
    assert "did you mean 'memory'?" in result.stderr
    details = json.loads(run(["fdl", "validate", "f.yaml", "--json"], 2).stdout)["error"]["details"]
    assert (details["line"], details["column"]) == (8, 7)


def test_errors_of_lint_make_it_invalid(folder: Path) -> None:
    (folder / "run.sh").unlink()
    result = run(["fdl", "validate", "f.yaml"], 2)
    where = "f.yaml:5:7: error: functions.aws[0].lambda.init_script: "
    assert where + "'run.sh' does not exist" in result.stderr
    assert result.stderr.endswith("orchgpu: f.yaml: 1 error\n")


def test_an_unchanged_plan_is_a_note(folder: Path) -> None:
    (folder / "run.sh").chmod(0o644)
    result = run(["fdl", "validate", "f.yaml"])
    assert ": note: functions.aws[0].lambda.init_script: 'run.sh' is not exec" in result.stderr
    assert result.stdout == "f.yaml: valid\n"


def test_a_missing_file_is_not_found() -> None:
    assert "none.yaml: no such file" in run(["fdl", "validate", "none.yaml"], 3).stderr
    assert "none.yaml: no such file" in run(["rm", "none.yaml"], 3).stderr


def test_real_aws_needs_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never sent")
    assert "--yes-real-aws" in run(["deploy", "f.yaml"], 5).stderr
    assert "--yes-real-aws" in run(["rm", "f"], 5).stderr


def test_an_invalid_file_plans_no_change(folder: Path) -> None:
    (folder / "f.yaml").write_text("functions: 3")
    assert "expected a mapping" in run(["plan", "f.yaml"], 1).stderr


def test_one_deploy_has_one_region(folder: Path) -> None:
    other = GOOD.split("aws:\n")[1].replace("name: f", "name: g\n      region: eu-west-1")
    first = GOOD.replace("name: f", "name: f\n      region: us-west-2")
    (folder / "f.yaml").write_text(first + other)
    assert "one deploy has one region" in run(["deploy", "f.yaml"], 2).stderr


def test_the_schema_is_json() -> None:
    assert json.loads(run(["fdl", "schema"]).stdout)["type"] == "object"


def test_what_travels_can_be_put_into_an_image(folder: Path) -> None:
    one = "{lambda: {name: %s, init_script: run.sh, input: [{path: %s-in}]}}"
    both = ", ".join(one % (name, name) for name in ("aaa", "bbb"))
    (folder / "two.yaml").write_text(f"functions: {{aws: [{both}]}}")
    run(["package", "two.yaml", "aaa", "--out", "task"])
    assert os.access("task/script/run.sh", os.X_OK)
    assert Path("task/lambda_functions/gpu_runner/handler.py").is_file()
    run(["package", "two.yaml", "bbb", "--out", "b.zip"])
    assert zipfile.is_zipfile("b.zip")
    several = run(["package", "two.yaml", "--out", "x"], 2)
    assert "name one (aaa, bbb)" in several.stderr
    run(["package", "two.yaml", "ccc", "--out", "x"], 3)
    run(["package", "two.yaml", "aaa", "--out", "task"], 2)  # it is there already


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["fdl.yaml"], "give the definition, as pipeline/fdl.yaml"),
        (["a.yaml", "b.yml"], "give the definition, a .yaml or .py file in it"),
        ([], "give the definition, a .yaml or .py file in it"),
    ],
)
def test_a_folder_instead_of_a_definition_is_named_as_such(
    folder: Path, files: list[str], told: str
) -> None:
    (folder / "pipeline").mkdir()
    (folder / "pipeline/other.yaml").write_text("jobs: {}\n")
    for name in files:
        (folder / "pipeline" / name).write_text(GOOD)
    assert run(["deploy", "pipeline"], 2).stderr == f"orchgpu: pipeline is a folder: {told}\n"


def test_a_package_takes_no_file_from_outside_unless_it_is_allowed(folder: Path) -> None:
    (folder / "work").mkdir()
    (folder / "work/f.yaml").write_text(GOOD.replace("run.sh", "../run.sh"))
    command = ["package", "work/f.yaml", "--out", "f.zip"]
    refused = run(command, 2)
    assert "work/../run.sh leads out of the definition's folder" in refused.stderr
    assert not (folder / "f.zip").exists()
    run([*command, "--allow-outside"])
    with zipfile.ZipFile(folder / "f.zip") as archive:
        assert "script/run.sh" in archive.namelist()
