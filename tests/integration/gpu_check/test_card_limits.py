"""The part of the GPU check about limits of cards, over stand-ins of the driver and of NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.gpud.cards import Cards, compile_stand_ins, needs_stand_ins
from tools.gpu_check.part import PARTS

ROOT = Path(__file__).resolve().parents[3]
pytestmark = needs_stand_ins
#: Of the operation `map`: no kernel runs on the stand-in, so its results are zeros.
ZEROS = "np.arange(side, dtype=np.float32)"


def test_limits_of_a_card_are_looked_at(tmp_path: Path) -> None:
    compile_stand_ins(tmp_path)
    cards = Cards(tmp_path)
    part = tmp_path / "card_limits.py"
    source = (PARTS / "card_limits.py").read_text()
    assert ZEROS in source
    part.write_text(source.replace(ZEROS, "np.zeros(side, dtype=np.float32)"))
    result = tmp_path / "result.json"
    command = [sys.executable, "-m", "tools.gpu_check.process", str(part), "--kind", "cuda"]
    command += ["--result", str(result), "--folder", str(tmp_path), "--quick"]
    variables = {**os.environ, **cards.variables}
    done = subprocess.run(
        command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=100
    )
    cards.close()
    assert done.returncode == 0, done.stderr
    found = json.loads(result.read_text())
    assert found["status"] == "passed", (found["why"], done.stderr)
    figures = {figure["metric"]: figure["value"] for figure in found["figures"]}
    assert figures.keys() >= {"pinned_h2d_gib_s", "staged_h2d_gib_s"}
    assert figures["excess_used_mib"] == 600, "what it took, and a context"
    assert figures["excess_readings"] == 2
    assert any("CUDA_ERROR_ILLEGAL_ADDRESS" in note for note in found["notes"])
