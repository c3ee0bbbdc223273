"""The scheduler's benchmarks run and name their figures as promised."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_cycles_prints_one_object_with_the_fixed_names() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.scheduler.cycles",
            "--json",
            "--rounds",
            "1",
            "--seconds",
            "0.1",
            "--engines",
            "postgres",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    results = {result["metric"]: result for result in answer["results"]}
    for metric, target in (("socket_cycles_ratio_32", 0.35), ("http_cycles_ratio_32", 0.7)):
        result = results[metric]
        assert result["value"] > 0
        assert result["target"] == f">= {target}"
        assert result["baseline_value"] > 0
    for metric in ("postgres_cycle_ratio", "postgres_group_ratio_32"):
        assert results[metric]["value"] > 0
        assert results[metric]["baseline_value"] > 0


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "arguments", "metrics"),
    [
        ("handover", ("--rounds", "1", "--seconds", "0.2"), ["handover_host", "handover_watched"]),
        ("recovery", ("--rounds", "1", "--leases", "500"), ["recovery_ratio", "s3_recovery_ratio"]),
        ("peers", ("--seconds", "0.2"), []),
    ],
)
def test_the_others_print_what_they_promise(
    name: str, arguments: tuple[str, ...], metrics: list[str]
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.scheduler.{name}", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    results = {result["metric"]: result for result in json.loads(done.stdout)["results"]}
    assert all(results[metric]["value"] > 0 for metric in metrics)
