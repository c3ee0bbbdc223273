"""The benchmark of HARDLESS' experiment runs through real daemons and shows what it promises."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.timeout(300)
def test_warm_slots_keep_their_workload_under_warm_first() -> None:
    found = results_of("--only", "switches", "--events", "24", "--switch-scale", "0.05")
    warm_first, fifo = found["cold_starts_warm_first"], found["cold_starts_fifo"]
    assert warm_first["target"] == "<= 8"
    assert warm_first["met"]
    assert warm_first["value"] < fifo["value"]


@pytest.mark.timeout(300)
def test_a_device_that_joins_is_used_without_a_change_at_the_client(tmp_path: Path) -> None:
    phases = ("--minutes", "0.02,0.1,0.02", "--scale", "0.3", "--plot", str(tmp_path / "plots"))
    found = results_of("--only", "phases", *phases)
    for name in ("gpus", "all"):
        assert found[f"rsuccess_{name}"]["met"], found[f"rsuccess_{name}"]
        assert found[f"moments_out_of_order_{name}"]["value"] == 0
    assert found["vpu_jobs"]["value"] >= 1
    pictures = sorted(path.stem for path in (tmp_path / "plots").glob("*.svg"))
    measures = ("devices", "latency", "queue", "rfast", "success")
    assert pictures == [f"hardless-{measure}" for measure in measures]
