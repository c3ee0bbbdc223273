"""`python -m experiments`: what it runs, continues and refuses."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import experiments.__main__ as command
from experiments import results

ROOT = Path(__file__).parents[3]


def experiments(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.fixture
def _sigterm_as_before() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("_sigterm_as_before")
def test_a_run_that_was_stopped_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "--docs", str(tmp_path), "cost"])
    assert command.main() == 0
    assert "[1/1] cost: 0 s" in capsys.readouterr().out
    assert (tmp_path / "papers" / "orchgpu-cost.svg").exists()
    sys.argv.append("elastic_shares")
    assert command.main() == 0
    again = capsys.readouterr().out
    assert "cost: has a result of this commit" in again
    assert "[1/1] elastic_shares: 0 s" in again
    text = (tmp_path / "papers.md").read_text()
    assert "| speed-up | 3.12 × | 3.12 × | 3.11…3.13 | accepted |" in text
    assert "| what the small one gains | 80 % | 80.1 % | >= 80 | accepted |" in text


def test_papers_stand_for_their_experiments() -> None:
    done = experiments("--list", "002", "cost")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["vaccel_sizes", "cost"]


def test_an_unknown_name_is_refused() -> None:
    done = experiments("005")
    assert done.returncode == 2
    assert "'005' is unknown; papers are 004, 000, 001, 002, 003, beyond; see --list" in done.stderr


def test_simulations_run_beside_emulated_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "--quick", "--docs", str(tmp_path)])
    monkeypatch.setattr(command, "NICE", 0)  # a loaded machine gives it no time otherwise
    with command._beside(["cost", "thesis_worked"], command._options()) as ended:
        assert ended == {}
    assert set(ended) == {"cost", "thesis_worked"}
    assert results.read(tmp_path / "papers/results.json") == ended
    assert (tmp_path / "papers/orchgpu-cost.svg").exists()
    assert not (tmp_path / "papers.md").exists()


def test_simulations_end_with_the_program_and_what_they_have_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "--docs", str(tmp_path)])
    began_s = time.monotonic()
    with pytest.raises(SystemExit), command._beside(["thesis_sweeps"], command._options()):
        raise SystemExit(143)
    assert time.monotonic() - began_s < 60  # the sweeps take minutes
    assert results.read(tmp_path / "papers/results.json") == {}
