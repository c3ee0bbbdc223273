"""ssgm-monitor over a stand-in for NVIDIA's library: changes of a device reach ssgmd.

The library is that of the unit tests, `nvidia_ml.c`; the programs are the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import Programs, until

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="the stand-in needs a C compiler")

SOURCE = Path(__file__).parents[1] / "unit" / "gpu_scheduler_monitor" / "nvidia_ml.c"
FACTS = {
    "boards": "1",
    "driver": "550.54.15",
    "cuda": "12040",
    "0.uuid": "GPU-a",
    "0.name": "NVIDIA L4",
    "0.total_mib": "23034",
    "0.used_mib": "3",
}


def tell(path: Path, **facts: str) -> None:
    new = path.with_suffix(".new")
    new.write_text("".join(f"{key} {value}\n" for key, value in {**FACTS, **facts}.items()))
    new.replace(path)


def host_at(http: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{http}/v1/inventory", timeout=10) as answer:
        [host] = json.load(answer)["hosts"]
    return dict(host)


def test_health_of_a_device_and_a_driver_that_hangs(
    programs: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library, facts = tmp_path / "lib", tmp_path / "facts"
    library.mkdir()
    target = library / "libnvidia-ml.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", target, SOURCE], check=True)
    path = f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    monkeypatch.setenv("LD_LIBRARY_PATH", path)
    monkeypatch.setenv("FAKE_NVML", str(facts))
    tell(facts)
    serving = programs.ssgmd().wait_ready()
    where = ("--scheduler", serving["socket"], "--host-id", "gpu-a", "--probe", "nvml")
    programs.start("gpu_scheduler.monitor", *where).wait_ready()

    def health() -> tuple[str, list[str]]:
        [seen] = host_at(serving["http"])["devices"]
        device = seen["device"]
        return device["health"], device["symptoms"]

    until("it is known and OK", lambda: health() == ("OK", []), 60.0)
    tell(facts, hang="1")
    until("its driver hangs", lambda: health() == ("SUSPECT", ["HUNG"]), 60.0)
    assert host_at(serving["http"])["state"] == "UP", "reports do not wait for the driver"
    tell(facts)
    until("it answers again", lambda: health() == ("OK", []), 60.0)
    tell(facts, xid="1 0 79")
    until("it is off the bus", lambda: health() == ("BAD", ["XID"]), 60.0)
