"""The benchmark of HARDLESS' experiment runs through real daemons and shows what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.hardless.phases import Phase, offsets_s
from benchmarks.hardless.switches import Run, switches

ROOT = Path(__file__).parents[2]


def results_of(*arguments: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hardless", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return {result["metric"]: result for result in json.loads(done.stdout)["results"]}


def run(workload: str, began_s: float, ended_s: float, device: str = "d") -> Run:
    return Run(workload=workload, device=device, began_s=began_s, ended_s=ended_s, cold=False)


def test_a_switch_is_a_run_after_one_of_another_workload_on_its_slot() -> None:
    both = [run("a", 0, 10), run("b", 1, 5)]
    assert switches(both, 2) == 0
    assert switches([*both, run("b", 5, 9)], 2) == 0
    assert switches([*both, run("a", 5, 9)], 2) == 1  # the slot of `a` is busy
    assert switches([*both, run("a", 10, 12)], 2) == 0  # both are free: its own one
    assert switches([run("a", 0, 1), run("b", 1, 2), run("a", 2, 3)], 1) == 2
    assert switches([run("a", 0, 1), run("b", 1, 2, "other")], 1) == 0


def test_uploads_are_spread_over_their_phase() -> None:
    phases = [Phase(length_s=2, rate_per_s=1), Phase(length_s=1, rate_per_s=4)]
    assert offsets_s(phases) == [0.0, 1.0, 2.0, 2.25, 2.5, 2.75]


@pytest.mark.timeout(300)
def test_warm_slots_keep_their_workload_under_warm_first() -> None:
    found = results_of("--only", "switches", "--events", "24", "--switch-scale", "0.05")
    warm_first, fifo = found["cold_starts_warm_first"], found["cold_starts_fifo"]
    assert warm_first["target"] == "<= 8"
    assert warm_first["met"]
    assert warm_first["value"] < fifo["value"]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_device_that_joins_is_used_without_a_change_at_the_client(tmp_path: Path) -> None:
    phases = ("--minutes", "0.02,0.1,0.02", "--scale", "0.3", "--plot", str(tmp_path / "plots"))
    found = results_of("--only", "phases", "--workloads", "2", *phases)
    for name in ("gpus", "all"):
        assert found[f"rsuccess_{name}"]["met"], found[f"rsuccess_{name}"]
        assert found[f"moments_out_of_order_{name}"]["value"] == 0
        cold = found[f"cold_starts_{name}"]
        assert cold["met"], cold
        assert cold["value"] >= 2  # each workload is loaded somewhere
    assert found["vpu_jobs"]["value"] >= 1
    pictures = sorted(path.stem for path in (tmp_path / "plots").glob("*.svg"))
    measures = ("devices", "latency", "queue", "rfast", "success")
    assert pictures == [f"hardless-{measure}" for measure in measures]
