"""`orchgpu fdl fmt | migrate | explain | graph`, as a user gives them."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.commandline import Done, done

OLD = """\
# one function
functions:
  aws:
  - lambda:
      name: f   # its name
      image: a/b
      init_script: run.sh
      input: [ {path: inn} ]
"""
NEW = """\
# one function
functions:
  aws:
  - lambda:
      name: f   # its name
      container:
        image: a/b
      init_script: run.sh
      input: [{path: inn}]
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "f.yaml"
    path.write_text(OLD)
    path.chmod(0o640)
    return path


def run(arguments: Sequence[str], status: int = 0) -> Done:
    result = done(["fdl", *arguments])
    assert result.exit_code == status, result.output
    return result


def test_migrate_prints_the_document_as_read_and_lists_its_changes(file: Path) -> None:
    result = run(["migrate", "f.yaml"])
    assert result.stdout == NEW
    assert result.stderr == (
        "f.yaml:6:7: functions.aws[0].lambda.image: an older shape; read as container.image\n"
    )
    assert file.read_text() == OLD


def test_a_migrated_file_needs_no_further_migration(file: Path) -> None:
    run(["migrate", "--write", "f.yaml"])
    assert (file.read_text(), file.stat().st_mode & 0o777) == (NEW, 0o640)
    assert run(["migrate", "f.yaml"]).stderr == ""
    run(["fmt", "--check", "f.yaml"])


def test_fmt_keeps_older_shapes(file: Path) -> None:
    assert "would change it" in run(["fmt", "--check", "f.yaml"], 1).stderr
    run(["fmt", "-w", "f.yaml"])
    assert file.read_text() == OLD.replace("[ {path: inn} ]", "[{path: inn}]")
    assert list(file.parent.iterdir()) == [file]


def test_a_malformed_definition_is_left_alone(file: Path) -> None:
    file.write_text("a: [")
    assert "f.yaml:1:5: error: not valid YAML" in run(["fmt", "-w", "f.yaml"], 2).stderr
    assert file.read_text() == "a: ["
    assert "no such file" in run(["fmt", "g.yaml"], 3).stderr


def test_faults_in_removed_blocks_are_reported(file: Path) -> None:
    file.write_text(OLD + "    batch: {enable_gpu: perhaps}\n")
    result = run(["migrate", "f.yaml"], 2)
    assert "f.yaml:9:25: error: functions.aws[0].batch.enable_gpu: expected true" in result.stderr


UNREADABLE = {
    "a key inside": ("functions:\n  f:\n    image: a/b\n    memmory: 1\n", "unknown key 'memmory'"),
    "not a function": ("functions:\n  f:\n    memmory: 1\n", "unknown key 'f'"),
    "a loop": (OLD + "      output: [inn]\n", "what it writes triggers f again"),
    "no functions": ("functions: {aws: []}\n", "functions.aws has no function"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_migrate_prints_nothing_that_a_deploy_refuses(case: str, file: Path) -> None:
    text, reason = UNREADABLE[case]
    file.write_text(text)
    result = run(["migrate", "--write", "f.yaml"], 2)
    assert (result.stdout, file.read_text()) == ("", text)
    assert reason in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["validate", "-"],
        ["fmt", "-"],
        ["migrate", "-"],
        ["graph", "-"],
        ["validate", "--json", "-"],
    ],
    ids=" ".join,
)
def test_standard_input_is_a_file_too(arguments: list[str]) -> None:
    result = done(["fdl", *arguments], NEW)
    assert result.exit_code == (2 if "validate" in arguments else 0), result.output
    if "validate" in arguments:
        assert "<stdin>:8:7: error: functions.aws[0].lambda.init_script" in result.stderr


def test_standard_input_is_not_rewritten() -> None:
    result = done(["fdl", "fmt", "--write", "-"], NEW)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot be rewritten" in result.stderr


def test_a_script_that_is_a_pipe_is_not_waited_for(file: Path) -> None:
    os.mkfifo(file.with_name("run.sh"))
    result = run(["validate", "f.yaml"], 2)
    assert "'run.sh' is a pipe, not a regular file" in result.stderr


def test_paths_of_scripts_that_cannot_be(file: Path) -> None:
    for name, why in (
        ("s" * 300, "does not exist"),
        ("/dev/null", "is a device"),
        ("/no", "absolute"),
    ):
        file.write_text(OLD.replace("run.sh", name))
        assert why in run(["validate", "f.yaml"], 2).stderr


def test_explain() -> None:
    assert "functions.aws[].gpu.kinds\n" in run(["explain", "gpu.kinds"]).stdout
    assert "did you mean 'kinds'?" in run(["explain", "kindz"], 3).stderr
    shown = json.loads(run(["explain", "job.attempts", "--json"]).stdout)["keys"]
    assert [(key["path"], key["default"], key["status"]) for key in shown] == [
        ("functions.aws[].job.attempts", "3", "supported")
    ]
    assert len(run(["explain"]).stdout.splitlines()) > 100


def test_graph() -> None:
    assert run(["graph", "f.yaml"]).stdout == "inn\n└─▶ f\n"
    assert run(["graph", "--format", "terminal", "f.yaml"]).stdout == "inn\n└─▶ f\n"
    shown = json.loads(run(["graph", "--format", "json", "f.yaml"]).stdout)
    assert shown == json.loads(run(["graph", "f.yaml", "--json"]).stdout)
    assert run(["graph", "--format", "dot", "f.yaml"]).stdout.startswith("digraph")
    assert run(["graph", "--format", "mermaid", "f.yaml"]).stdout.startswith("flowchart LR\n")


def test_output_is_available_as_json(file: Path) -> None:
    drawn = json.loads(run(["graph", str(file), "--json"]).stdout)
    assert drawn["version"] == 1
    assert {"steps", "edges", "entries", "exits"} < set(drawn)
    moved = json.loads(run(["migrate", str(file), "--json"]).stdout)
    assert moved["text"] == run(["migrate", str(file)]).stdout
    assert moved["rewrites"]
    formatted = json.loads(run(["fmt", str(file), "--json"]).stdout)
    assert formatted["text"] == run(["fmt", str(file)]).stdout
    assert formatted["changes"]
    assert json.loads(run(["fmt", "--check", str(file), "--json"], 1).stdout)["changes"]


@pytest.mark.parametrize("command", ["migrate", "validate", "graph", "fmt"])
def test_a_definition_steers_no_terminal(command: str, file: Path) -> None:
    file.write_text('functions: {"\\e[31mX\\e]0;pwn\\a": {name: f, init_script: run.sh}}\n')
    result = done(["fdl", command, "f.yaml"])
    assert "\x1b" not in result.output
    assert "\x07" not in result.output
