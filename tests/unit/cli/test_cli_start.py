"""The events of a start as `orchgpu up` shows them."""

from __future__ import annotations

import sys

import pytest

from corekit.errors import AppError
from orchgpu.cli.commands.local.up import _programs
from orchgpu.cli.local.launching import StartProgress, show_event


def indexing(part: float, program: str = "gpu-a") -> dict[str, object]:
    return {
        "event": "indexing",
        "program": program,
        "data": "mydb",
        "sequences": 470376,
        "part": part,
    }


READY = {"event": "ready", "program": "gpu-a", "took_s": 1.0}


def test_a_large_data_set_is_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    start = StartProgress(show_event)
    for event in (indexing(0.0), indexing(0.2), indexing(0.6), indexing(1.0), READY):
        start.show(event)
    assert capsys.readouterr().err.splitlines() == [
        "gpu-a         indexing mydb, 470,376 sequences",
        "gpu-a         ready (1.0 s)",
    ]


def test_a_small_one_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    start = StartProgress(show_event)
    start.show(indexing(0.0))
    start.show(indexing(1.0))
    assert capsys.readouterr().err == ""


def test_a_terminal_has_one_bar_for_all_hosts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    start = StartProgress(show_event)
    start.show(indexing(0.5))
    start.show(indexing(0.25, "gpu-b"))
    assert "352782/940752 mydb" in capsys.readouterr().err
    start.show(indexing(1.0))
    assert "117594/470376 mydb" in capsys.readouterr().err


def test_programs_of_up() -> None:
    assert _programs(["blast=/bin/blastp -x a=b"]) == {"blast": "/bin/blastp -x a=b"}
    for wrong in ("blast", "blast=", "a b=/bin/x", "=/bin/x"):
        with pytest.raises(AppError, match="is not NAME=COMMAND"):
            _programs([wrong])
