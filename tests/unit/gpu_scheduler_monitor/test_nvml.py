"""NVIDIA devices through the real nvidia-ml-py, in the real child, over a stand-in for the driver.

`nvidia_ml.c` is compiled to a libnvidia-ml.so.1 that answers from a file; no GPU is needed, and
nothing here says that a real driver answers the same. Without a C compiler these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from corekit.errors import AppError, ErrorCode
from corekit.ids import DeviceId
from gpu_scheduler.model import Device, Health, Symptom
from gpu_scheduler.monitor.drivers.child import ChildProbe
from gpu_scheduler.monitor.ports import DeviceProcess
from gpu_scheduler.monitor.probes import FileProbe, probe_of
from gpu_scheduler.monitor.watch import LastSeen

COMPILER = shutil.which("cc") or shutil.which("gcc")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="the stand-in needs a C compiler")

SOURCE = Path(__file__).with_name("nvidia_ml.c")
TWO_BOARDS = {
    "boards": 2,
    "driver": "550.54.15",
    "cuda": 12040,
    "0.uuid": "GPU-a",
    "0.name": "NVIDIA L4",
    "0.total_mib": 23034,
    "0.reserved_mib": 434,
    "0.used_mib": 3,
    "0.busy_pct": 7,
    "0.celsius": 41,
    "0.milliwatts": 72999,
    "1.uuid": "GPU-b",
    "1.name": "NVIDIA A100",
    "1.total_mib": 40960,
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    target = folder / "libnvidia-ml.so.1"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", target, SOURCE], check=True)
    return folder


class Driver:
    """The facts that the stand-in tells."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.facts: dict[str, object] = {}

    def tell(self, **facts: object) -> None:
        """Facts of board 0, as `lost=1`, and those of the whole, as `xid="1 0 79"`."""
        whole = ("hang", "xid", "no_driver", "old_driver", "no_figures")
        self.facts |= {k if k in whole else f"0.{k}": v for k, v in facts.items()}
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self.facts.items()))
        new.replace(self.path)


@pytest.fixture
def driver(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver(tmp_path / "facts")
    driver.facts = dict(TWO_BOARDS)
    driver.tell()
    monkeypatch.setenv("FAKE_NVML", str(driver.path))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{library}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
    return driver


@pytest_asyncio.fixture
async def probe(driver: Driver) -> AsyncIterator[ChildProbe]:
    probe = ChildProbe("gpu_scheduler.monitor.drivers.nvml", "the NVIDIA driver", "h", 60.0)
    yield probe
    await probe.close()


def named(devices: tuple[Device, ...]) -> dict[str, Device]:
    return {device.id: device for device in devices}


@pytest.mark.asyncio
async def test_devices_versions_and_figures(probe: ChildProbe) -> None:
    first, second = await probe.devices()
    assert (first.id, first.index, first.model) == ("GPU-a", 0, "NVIDIA L4")
    assert (first.driver, first.runtime, first.health) == ("550.54.15", "12.4", Health.OK)
    assert first.memory_mib == 23034 - 434 - 512
    assert (second.id, second.index) == ("GPU-b", 1)
    usage = {one.device: one for one in await probe.usage()}[DeviceId("GPU-a")]
    assert (usage.memory_used_mib, usage.utilisation_pct, usage.processes) == (3, 7, 0)
    assert (usage.temperature_c, usage.power_w) == (41, 72)


@pytest.mark.asyncio
async def test_processes_of_every_kind_are_counted_once(
    probe: ChildProbe, driver: Driver, tmp_path: Path
) -> None:
    (tmp_path / "mps").mkdir()
    (tmp_path / "mps" / "control").touch()
    driver.tell(processes=2, graphics=1, mps=3)
    devices = await probe.devices()
    assert {one.device: one.processes for one in await probe.usage()} == {"GPU-a": 3, "GPU-b": 0}
    assert all("MPS" in device.detail for device in devices)
    assert {one.pid for one in await probe.processes()} == {1000, 1001, 1002}


@pytest.mark.asyncio
async def test_processes_have_their_memory_where_the_driver_reports_it(
    probe: ChildProbe, driver: Driver
) -> None:
    driver.tell(processes=2, graphics=1, process_mib=300)
    await probe.devices()
    expected = [
        DeviceProcess(device=DeviceId("GPU-a"), pid=1000 + i, memory_used_mib=300) for i in (0, 1)
    ]
    assert list(await probe.processes()) == expected
    seen = LastSeen(probe, 20.0)
    await seen.devices()
    assert list(await seen.processes()) == expected
    driver.tell(no_figures=1)
    await probe.devices()
    assert [one.memory_used_mib for one in await probe.processes()] == [None, None]
    driver.tell(lost=1)
    await probe.devices()
    assert await probe.processes() == ()
    assert await LastSeen(FileProbe(Path("none"), "h"), 20.0).processes() == ()


@pytest.mark.asyncio
async def test_slices_stand_for_their_board(probe: ChildProbe, driver: Driver) -> None:
    for number, (mib, name) in enumerate([(9728, "1g.10gb"), (19968, "2g.20gb")]):
        driver.tell(
            **{
                f"{number}.uuid": f"MIG-{number}",
                f"{number}.name": f"A100 MIG {name}",
                f"{number}.total_mib": mib,
            }
        )
    driver.tell(mig=2, remap_pending=1)
    devices = await probe.devices()
    assert [(d.id, d.index) for d in devices] == [("MIG-0", 2), ("MIG-1", 3), ("GPU-b", 1)]
    assert devices[1].memory_mib == 19968 - 512
    assert [d.health for d in devices] == [Health.SUSPECT, Health.SUSPECT, Health.OK]
    assert "MIG slice of GPU-a" in devices[0].detail
    assert {one.device: one.power_w for one in await probe.usage()} == {
        "MIG-0": None,
        "MIG-1": None,
        "GPU-b": 0,
    }


@pytest.mark.asyncio
async def test_an_old_driver_reports_less(probe: ChildProbe, driver: Driver) -> None:
    driver.tell(old_driver=1, uncorrected=4)
    first, _ = await probe.devices()
    assert first.memory_mib == 23034 - 512
    assert (first.health, first.symptoms) == (Health.BAD, (Symptom.ECC,))


@pytest.mark.asyncio
async def test_xids_are_reported_except_those_of_programs(
    probe: ChildProbe, driver: Driver
) -> None:
    await probe.devices()
    driver.tell(xid="1 0 31")
    assert named(await probe.devices())[DeviceId("GPU-a")].health is Health.OK
    driver.tell(xid="2 0 79")
    for _ in range(2):  # for a while, so that no report misses it
        devices = named(await probe.devices())
        assert (devices[DeviceId("GPU-a")].health, devices[DeviceId("GPU-a")].symptoms) == (
            Health.BAD,
            (Symptom.XID,),
        )
        assert "Xid 79" in devices[DeviceId("GPU-a")].detail
        assert devices["GPU-b"].health is Health.OK


@pytest.mark.asyncio
async def test_a_lost_board_hides_no_other(probe: ChildProbe, driver: Driver) -> None:
    await probe.devices()
    driver.tell(lost=1)
    lost, other = await probe.devices()
    assert (lost.id, lost.health, lost.symptoms) == ("GPU-a", Health.BAD, (Symptom.PROBE,))
    assert (other.id, other.index, other.health) == ("GPU-b", 1, Health.OK)
    again = ChildProbe("gpu_scheduler.monitor.drivers.nvml", "the NVIDIA driver", "h", 60.0)
    [alone] = await again.devices()  # which has never seen the lost one
    assert (alone.id, alone.index) == ("GPU-b", 1)
    await again.close()
    driver.tell(lost=0)
    assert {device.health for device in await probe.devices()} == {Health.OK}


@pytest.mark.asyncio
async def test_a_missing_driver_is_reported(probe: ChildProbe, driver: Driver) -> None:
    driver.tell(no_driver=1)
    with pytest.raises(AppError, match="NVIDIA driver") as caught:
        await probe.devices()
    assert caught.value.code is ErrorCode.UNAVAILABLE


@pytest.mark.asyncio
async def test_a_driver_that_hangs_is_given_up_and_asked_again(driver: Driver) -> None:
    driver.tell(hang=1)
    probe = ChildProbe("gpu_scheduler.monitor.drivers.nvml", "the NVIDIA driver", "h", 0.2)
    with pytest.raises(AppError, match=r"did not answer in 0\.2 s") as caught:
        await probe.devices()
    assert caught.value.code is ErrorCode.TIMEOUT
    driver.tell(hang=0)
    patient = ChildProbe("gpu_scheduler.monitor.drivers.nvml", "the NVIDIA driver", "h", 60.0)
    assert len(await patient.devices()) == 2
    assert patient._child is not None
    os.kill(patient._child.pid, signal.SIGKILL)  # as a crash inside the driver's library
    with pytest.raises(AppError, match="ended"):
        await patient.devices()
    assert len(await patient.devices()) == 2, "the next poll starts another child"
    await patient.close()
    await probe.close()


@pytest.mark.asyncio
async def test_the_words_of_the_command_line() -> None:
    for kind in ("nvml", "opencl"):
        assert isinstance(probe_of(kind, "here", 5.0), ChildProbe)
