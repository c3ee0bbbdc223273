"""`orchgpu init`: every kind is a valid definition under its own name; nothing is overwritten."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fdl.diagnostics import Severity
from orchgpu.deploy.deployment import validate
from orchgpu.deploy.package import build
from orchgpu.deploy.starters import NAME_CHARACTERS_MAX, kinds
from tests.commandline import done

LONGEST = "a" * NAME_CHARACTERS_MAX


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("name", ["my-own", LONGEST])
def test_every_kind_is_a_valid_definition_under_its_name(
    kind: str, name: str, tmp_path: Path
) -> None:
    made = done(["init", name, "--kind", kind, "--into", str(tmp_path / "new"), "--json"])
    assert made.exit_code == 0, made.output
    found = json.loads(made.stdout)
    definition, *others, given = map(Path, found["files"])
    scripts = [path for path in others if path.suffix == ".py"]
    document, notes = validate(definition)
    assert [note for note in notes if note.severity is not Severity.NOTE] == []
    assert kind not in definition.read_text(), "another function may have that name"
    assert all(one.startswith(name) for one in found["functions"])
    assert scripts
    assert all(os.access(script, os.X_OK) for script in scripts)
    assert given.stat().st_size > 0
    for function in document.functions.aws:
        assert build(function, definition.parent).data


def test_a_key_is_made_for_each_function_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    keys = []
    for name in ("one", "two"):
        made = done(["init", name, "--kind", "signed-answer", "--into", str(tmp_path / name)])
        assert made.exit_code == 0
        key = tmp_path / name / "signing.key"
        assert key.stat().st_mode & 0o777 == 0o600
        keys.append(key.read_text())
    assert keys[0] != keys[1]
    assert min(map(len, keys)) > 40


def test_the_next_commands_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = done(["init", "greeter"]).stdout
    assert "wrote greeter/hello.py" in told
    assert "orchgpu deploy greeter/fdl.yaml\n" in told
    assert "orchgpu run greeter greeter/input/hello.txt --wait\n" in told
    told = done(["init", "looker", "--kind", "reading-cascade"]).stdout
    assert "orchgpu run looker looker/input/blank.png --wait\n" in told


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("mine")
    refused = done(["init", "greeter", "--into", str(tmp_path)])
    assert refused.exit_code == 4
    assert "hello.py: exists already, and nothing was written" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["hello.py"]
    assert (tmp_path / "hello.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["Upper", "a", "9lives", "a--b", "end-", "a/b", LONGEST + "a"])
def test_a_name_that_no_bucket_can_have_is_refused(name: str, tmp_path: Path) -> None:
    refused = done(["init", name, "--into", str(tmp_path / "new")])
    assert refused.exit_code == 2
    assert "cannot name a function and its buckets" in refused.stderr
    assert not (tmp_path / "new").exists()


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    refused = done(["init", "greeter", "--kind", "none", "--into", str(tmp_path / "new")])
    assert refused.exit_code == 2
    assert "hello-device" in refused.stderr


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused = done(["init", "greeter", "--into", str(tmp_path / "file")])
    assert refused.exit_code == 2
