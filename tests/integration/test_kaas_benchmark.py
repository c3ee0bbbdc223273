"""The benchmark of KaaS' closed loop: one client more than devices makes every start cold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_only_an_exclusive_device_loads_a_model_for_every_request() -> None:
    arguments = ("--json", "--devices", "1", "--layers", "2", "--seconds", "1")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.kaas", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found = {result["metric"]: result for result in json.loads(done.stdout)["results"]}
    cold = {name: found[f"cold_{name}"]["value"] for name in ("1_exclusive", "1_shared")}
    assert cold == {"1_exclusive": 0, "1_shared": 0}
    assert found["cold_2_shared"]["value"] == 0
    requests = int(found["cold_2_exclusive"]["unit"].removeprefix("of "))
    assert found["cold_2_exclusive"]["value"] >= requests - 2  # one at each end of the window
