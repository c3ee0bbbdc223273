"""`python -m remote_gpu.forwarder`: a foreign program on what its envelope lends it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHOW = "import os, sys; print(os.environ['ORCHGPU_DEVICE_COUNT']); sys.exit(3)"


def forwarder(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "remote_gpu.forwarder", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_program_runs_on_the_envelopes_lease_and_its_status_counts(
    gateway: Any, tmp_path: Path
) -> None:
    given = {"middleware": "builtin", "connection": gateway.connection(), "variables": {}}
    (tmp_path / "env.json").write_text(json.dumps(given))
    done = forwarder(tmp_path / "env.json", sys.executable, "-c", SHOW)
    assert (done.returncode, done.stdout) == (3, "1\n"), done.stderr
    assert gateway.heard == ["open", "close"]


@pytest.mark.parametrize(
    ("text", "said", "status"), [("{}", "is no env.json of an envelope", 2), ("x", "env.json", 2)]
)
def test_what_is_no_envelope_is_told(tmp_path: Path, text: str, said: str, status: int) -> None:
    (tmp_path / "env.json").write_text(text)
    done = forwarder(tmp_path / "env.json", "true")
    assert (done.returncode, said in done.stderr) == (status, True)


def test_a_refused_lease_is_told(gateway: Any, tmp_path: Path) -> None:
    gateway.refuse = "NOT_INSTALLED"
    given = {"middleware": "builtin", "connection": gateway.connection(), "variables": {}}
    (tmp_path / "env.json").write_text(json.dumps(given))
    done = forwarder(tmp_path / "env.json", "true")
    assert (done.returncode, "could not be claimed" in done.stderr) == (8, True)
