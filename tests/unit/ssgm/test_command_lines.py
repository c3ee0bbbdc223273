"""Arbitrary command lines: one answer, a documented status, never a traceback."""

from __future__ import annotations

import contextlib
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_scheduler.client import cli
from gpu_scheduler.request_options import REQUEST_OPTIONS

_FLAGS = [
    flag for word in REQUEST_OPTIONS for flag in (word.short, word.flag, word.flag[1:]) if flag
]
_VALUES = [word.example for word in REQUEST_OPTIONS] + [
    "",
    "-1",
    "nan",
    "1e999",
    "9" * 30,
    "é",
    "a b",
    "--",
]
_COMMANDS = sorted(cli.commands.commands)
_ARGUMENT = st.one_of(
    st.sampled_from([*_FLAGS, "--json", "--wait", "--timeout", "-j", "--help"]),
    st.sampled_from(_VALUES),
    st.text(max_size=8).filter(lambda text: not text.startswith("-") and "\0" not in text),
)


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSGM_SCHEDULER", "ORCHGPU_SCHEDULER", "SSGM_HTTP"):
        monkeypatch.delenv(name, raising=False)


def typed(arguments: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = cli.run(arguments)
    return status, out.getvalue(), err.getvalue()


@settings(max_examples=60)
@given(st.sampled_from(_COMMANDS), st.lists(_ARGUMENT, max_size=5))
def test_a_command(command: str, arguments: list[str]) -> None:
    """Without a scheduler: help, the schema, or a wrong command line."""
    status, out, err = typed([command, *arguments])
    assert status in (0, 2)
    assert bool(out) or bool(err)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "words",
    [
        ["dealloc", "--scheduler", "127.0.0.1:1", "nightly-7"],
        ["-S", "127.0.0.1", "-P", "1", "-dealloc", "-j", "7"],
    ],
)
def test_a_malformed_lease_id_is_not_reported_as_released(words: list[str]) -> None:
    """An attempt's name, say: its lease would be lent on, with nobody to know."""
    status, _, err = typed(words)
    assert status == 2
    assert f"{words[-1]!r} is not a lease; `ssgm leases` lists" in err


@settings(max_examples=60)
@given(st.sampled_from(["-alloc", "-dealloc", "-g"]), st.lists(_ARGUMENT, max_size=5))
def test_a_classic_line(action: str, arguments: list[str]) -> None:
    """The port is none, so a good line is a bad request too: exactly one field, whatever comes."""
    status, out, err = typed(["-S", "127.0.0.1", "-P", "none", action, *arguments])
    assert (status, out) == (2, "SSGM_ERROR=1;\n")
    assert err.startswith("ssgm: ")
