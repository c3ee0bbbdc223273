"""The benchmark of cycles runs and names its figures as promised."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_cycles_prints_one_object_with_the_fixed_names() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scheduler.cycles", "--json", "--rounds", "1",
         "--seconds", "0.1"],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    results = {result["metric"]: result for result in answer["results"]}
    for metric, target in (("socket_cycles_ratio_32", 0.35), ("http_cycles_ratio_32", 0.7)):
        result = results[metric]
        assert result["value"] > 0
        assert result["target"] == f">= {target}"
        assert result["baseline_value"] > 0
