"""`python -m experiments`: what it runs, continues and refuses."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import experiments.__main__ as command
from experiments import results, several
from experiments.several import Plan, Several, plan

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
    assert "cost: 0 s" in capsys.readouterr().out
    assert (tmp_path / "papers" / "orchgpu-cost.svg").exists()
    sys.argv.append("elastic_shares")
    assert command.main() == 0
    again = capsys.readouterr().out
    assert "cost: has a result of this commit" in again
    assert "elastic_shares: 0 s" in again
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


def test_what_is_measured_runs_alone_and_in_a_quick_run_what_computes() -> None:
    names = ["search_curve", "killed_loops", "knix_shares", "hardless_phases", "thesis_worked"]
    assert plan(names, quick=False) == Plan(
        simulated=["thesis_worked"],
        waiting=["killed_loops", "hardless_phases"],
        alone=["search_curve", "knix_shares"],
        waiting_at_once=1,
    )
    assert plan(names, quick=True) == Plan(
        simulated=["thesis_worked"],
        waiting=["killed_loops", "hardless_phases", "search_curve"],
        alone=["knix_shares"],
        waiting_at_once=3,
    )


def test_several_run_in_processes_of_their_own_and_their_results_are_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(several, "NICE", 0)  # a loaded machine gives it no time otherwise
    planned = Plan(
        simulated=["thesis_worked"], waiting=["cost"], alone=["elastic_shares"], waiting_at_once=2
    )
    run = Several(docs=tmp_path, words=["--quick"])
    asyncio.run(run.run(planned))
    assert run.failed == []
    assert set(results.read(results.file_in(tmp_path))) == {
        "cost",
        "elastic_shares",
        "thesis_worked",
    }
    assert (tmp_path / "papers/orchgpu-cost.svg").exists()
    assert not (tmp_path / "papers.md").exists()
    assert "[3/3] elastic_shares: " in capfd.readouterr().out


def test_one_that_fails_is_named_with_its_reason_and_the_others_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    planned = Plan(
        simulated=["thesis_policies"], waiting=["of_no_paper"], alone=["cost"], waiting_at_once=1
    )
    run = Several(docs=tmp_path, words=["--keep", str(tmp_path)])  # a folder, no file
    asyncio.run(run.run(planned))
    assert sorted(run.failed) == ["of_no_paper", "thesis_policies"]
    errors = capfd.readouterr().err
    assert "/3] of_no_paper: failed: 'of_no_paper' is unknown" in errors
    assert "/3] thesis_policies: failed: [Errno 21] Is a directory" in errors
    assert set(results.read(results.file_in(tmp_path))) == {"cost"}


def test_all_end_with_the_program(tmp_path: Path) -> None:
    run = Several(docs=tmp_path, words=[])
    planned = Plan(simulated=["thesis_sweeps"], waiting=[], alone=[], waiting_at_once=1)

    async def ended_early() -> None:
        async with asyncio.timeout(2):
            await run.run(planned)

    began_s = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(ended_early())
    assert time.monotonic() - began_s < 60  # the sweeps take minutes
    assert results.read(results.file_in(tmp_path)) == {}
