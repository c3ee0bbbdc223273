"""The benchmarks of the large system run, and state ratios, at a small size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ("--hosts", "12", "--jobs", "600")


def figures(module: str, *arguments: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return {result["metric"]: result for result in json.loads(done.stdout)["results"]}


def test_the_past_of_a_job_has_a_price_in_the_journal() -> None:
    found = figures("scheduler.records", "--jobs", "5", "--rounds", "1")
    once, again = found["journal_bytes_once"], found["journal_bytes_again"]
    assert 1 < once["ratio"] < again["ratio"] < 2
    kinds = [one["value"] for name, one in found.items() if name.startswith("bytes_once_")]
    assert sum(kinds) == pytest.approx(once["value"], rel=0.05)


def test_the_history_is_written_and_read() -> None:
    found = figures("history", *SMALL, "--rounds", "1")
    assert found["events_per_s"]["ratio"] > 0
    assert found["report_all_s"]["ratio"] > 0
    assert found["bytes_per_job"]["value"] > 100


@pytest.mark.soak
def test_a_scheduler_serves_whole_jobs() -> None:
    found = figures("scale.rate", "--rounds", "1", "--seconds", "1")
    assert 0 < found["scheduler_cores"]["value"] < 1.1
    assert found["jobs_per_s_most"]["value"] > 10


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_console_and_the_screen_read_the_whole_system() -> None:
    console = figures("console", *SMALL, "--seconds", "0.1")
    assert {"start_s", "jobs_page_ms", "search_id_ms", "activity_1d_ms"} <= console.keys()
    top = figures("top", *SMALL, "--rounds", "3")
    assert {"start_s", "event_us", "frame_fleet_ms", "key_jobs_ms"} <= top.keys()
