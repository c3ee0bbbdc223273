"""The scheduler of the local system, as programs find it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from corekit.errors import AppError
from corekit.local_system import local_scheduler
from orchgpu.local.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("ORCHGPU_HOME", str(tmp_path / "home"))
    for name in ("SSGM_SCHEDULER", "ORCHGPU_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)
    found = Home(tmp_path / "home")
    found.create()
    return found


def test_only_a_running_system_has_a_scheduler(home: Home) -> None:
    home.system_file.write_text(json.dumps({"scheduler": "127.0.0.1:7"}))
    assert local_scheduler() is None, "a killed supervisor left its file"
    with home.lock():
        assert local_scheduler() == "127.0.0.1:7"
        home.system_file.write_text("[]")
        assert local_scheduler() is None
        home.system_file.write_text("no json")
        with pytest.raises(AppError, match="cannot be read"):
            local_scheduler()


def test_ssgm_asks_the_scheduler_of_the_local_system(home: Home) -> None:
    command = [sys.executable, "-m", "gpu_scheduler.client", "devices", "--timeout", "1s"]
    before = subprocess.run(command, capture_output=True, text=True, check=False)
    assert before.returncode == 2
    assert "No local system runs here" in before.stderr
    home.system_file.write_text(json.dumps({"scheduler": "127.0.0.1:1"}))
    with home.lock():
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "127.0.0.1:1" in asked.stderr
