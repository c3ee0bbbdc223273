"""`orchgpu deploy --watch`: the deploys after changes. The pauses are the edits of the test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.model import Document
from orchgpu.cli.definition import watch as watching
from orchgpu.deploy import watching as files
from tests.commandline import done

DEFINITION = "functions: {{aws: [{{lambda: {{name: {name}, init_script: {script}}}}}]}}\n"


class Session:
    """A watched definition; each edit is done in one pause between two looks."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.deployed: list[str] = []
        self.inputs: tuple[Path, ...] = ()
        self.failure: AppError | None = None
        self.edits: Iterator[Callable[[], object]] = iter(())
        monkeypatch.setattr(files, "SETTLED_S", 0.0)
        monkeypatch.setattr("orchgpu.cli.definition.watch.time.sleep", self._pause)
        self.define("one", "s.sh")
        (folder / "s.sh").write_text("1")

    def define(self, name: str, script: str) -> None:
        (self.folder / "fdl.yaml").write_text(DEFINITION.format(name=name, script=script))

    def _pause(self, _seconds: float) -> None:
        edit = next(self.edits, None)
        if edit is None:
            raise KeyboardInterrupt
        edit()

    def deploy(self, document: Document) -> None:
        self.deployed.append(document.functions.aws[0].name)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def run(self, *edits: Callable[[], object], as_json: bool = False) -> None:
        self.edits = iter(edits)
        with pytest.raises(KeyboardInterrupt, match="what was deployed stays"):
            watching.watch(
                self.folder / "fdl.yaml", self.deploy, as_json=as_json, inputs=self.inputs
            )


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    return Session(tmp_path, monkeypatch)


def test_a_change_of_the_definition_or_of_its_script_is_deployed(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.run(
        lambda: (session.folder / "s.sh").write_text("22"),
        lambda: (session.folder / "unrelated").write_text("x"),
        lambda: session.define("other", "s.sh"),
    )
    assert session.deployed == ["one", "one", "other"]
    told = capsys.readouterr()
    assert [line.partition(" ")[2] for line in told.out.splitlines()] == [
        "changed: s.sh",
        "changed: fdl.yaml",
    ]
    assert told.err.count("watching 2 paths; Ctrl-C ends") == 3


def test_a_changed_input_is_a_change_too(session: Session) -> None:
    (session.folder / "in.txt").write_text("1")
    session.inputs = (session.folder / "in.txt",)
    session.run(lambda: (session.folder / "in.txt").write_text("22"))
    assert session.deployed == ["one", "one"]


def test_the_files_of_a_changed_definition_are_watched_and_no_others(session: Session) -> None:
    (session.folder / "t.sh").write_text("1")
    session.run(
        lambda: session.define("one", "t.sh"),
        lambda: (session.folder / "s.sh").write_text("333"),
        lambda: (session.folder / "t.sh").write_text("333"),
    )
    assert session.deployed == ["one"] * 3


def test_errors_are_printed_and_the_next_change_is_awaited(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.failure = AppError(ErrorCode.UNAVAILABLE, "the cloud does not answer")
    session.run(
        lambda: (session.folder / "fdl.yaml").write_text("functions: {aws: [{lambda: {nme: x}}]}"),
        lambda: (session.folder / "s.sh").write_text("55555"),
        lambda: (session.folder / "fdl.yaml").unlink(),
        lambda: session.define("good", "s.sh"),
    )
    assert session.deployed == ["one", "good"]
    told = capsys.readouterr().err
    assert "orchgpu: the cloud does not answer" in told
    assert "nme" in told
    assert "no such file" in told


def test_json_is_one_line_for_each_deploy(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    session.failure = AppError(ErrorCode.UNAVAILABLE, "the cloud does not answer")
    session.run(as_json=True)
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["error"]["code"] == "unavailable"


def test_standard_input_cannot_be_watched() -> None:
    refused = done(["deploy", "-", "--watch"], "functions: {}")
    assert refused.exit_code == 2
    assert "--watch needs a FILE" in refused.stderr
