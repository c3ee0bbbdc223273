"""The child that probes NVIDIA devices: run as `python -m gpu_scheduler.monitor.drivers.nvml`.

Only this process loads NVML. A device that cannot be read, such as one that fell off the bus, is
reported as last seen, and hides no other. Where MIG is on, the slices are the devices: the whole
board runs nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pynvml

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.model import Device, DeviceKind, Health, Symptom, Usage
from gpu_scheduler.monitor.drivers.child import Seen, answer_lines
from gpu_scheduler.monitor.health import DriverFaults, evaluate_device
from gpu_scheduler.monitor.ports import DeviceProcess

T = TypeVar("T")

#: The driver and one CUDA context per worker need this much of every device.
RESERVE_MIB = 512
#: An Xid is reported for this long, so that no report misses it.
XID_REPORTED_S = 30.0
#: MIG slices of one board (NVIDIA's MIG user guide). A board's index is its number on the bus, its
#: slices are numbered behind all boards, so a lost one changes no other number.
SLICES_MAX = 7
#: Most events of one poll; a failing device sends a few hundred.
_EVENTS_MAX = 1_000
#: Errors of a query that a device or its driver does not support.
_UNSUPPORTED = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLError_InvalidArgument,
)
#: Default folder of the control daemon of MPS (NVIDIA's manual of MPS).
_MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108  # nosec B108


class _Reading(NamedTuple):
    """One reading of a device; without figures when it could not be read."""

    device: Device
    usage: Usage | None = None
    processes: tuple[DeviceProcess, ...] = ()


class NvmlDriver:
    """One session with NVML, kept open: Xid events are lost between sessions."""

    def __init__(self) -> None:
        self._events: object = None
        self._registered: dict[str, None] = {}
        self._xids: dict[str, dict[int, float]] = {}  # uuid → Xid → monotonic time of the newest
        self._known: dict[int, tuple[Device, ...]] = {}  # by index on the bus

    def poll(self) -> Seen | str:
        """All devices and their usage; a message when there is no driver."""
        try:
            if self._events is None:
                pynvml.nvmlInit()
                self._events = pynvml.nvmlEventSetCreate()
            self._take_events()
            count, versions = pynvml.nvmlDeviceGetCount(), _versions()
        except pynvml.NVMLError as error:
            return str(error)
        seen = [one for index in range(count) for one in self._board(index, count, *versions)]
        return Seen(
            devices=tuple(one.device for one in seen),
            usage=tuple(one.usage for one in seen if one.usage is not None),
            processes=tuple(process for one in seen for process in one.processes),
        )

    def _board(self, index: int, count: int, driver: str, runtime: str) -> list[_Reading]:
        try:
            board = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(pynvml.nvmlDeviceGetUUID(board))
            self._register(board, uuid)
            health, symptoms, why = evaluate_device(self._driver_faults(board, uuid))
            found = []
            whole = ((index, board),)
            for number, handle in _slices(board, count + index * SLICES_MAX) or whole:
                reading = _described(handle)
                detail = "; ".join(filter(None, (why, _sharing(board, handle))))
                device = replace(
                    reading.device,
                    index=number,
                    driver=driver,
                    runtime=runtime,
                    detail=detail,
                    health=health,
                    symptoms=symptoms,
                )
                found.append(reading._replace(device=device))
        except pynvml.NVMLError as error:
            return [_Reading(_unread(device, error)) for device in self._known.get(index, ())]
        self._known[index] = tuple(one.device for one in found)
        return found

    def _register(self, board: object, uuid: str) -> None:
        """Subscribe to its Xids; some virtual devices report none."""
        if uuid not in self._registered:
            with contextlib.suppress(pynvml.NVMLError):
                kind = pynvml.nvmlEventTypeXidCriticalError
                pynvml.nvmlDeviceRegisterEvents(board, kind, self._events)
            self._registered[uuid] = None

    def _take_events(self) -> None:
        for _ in range(_EVENTS_MAX):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError:  # a timeout: there are no more
                return
            with contextlib.suppress(pynvml.NVMLError):
                uuid = _text(pynvml.nvmlDeviceGetUUID(event.device))
                self._xids.setdefault(uuid, {})[int(event.eventData)] = time.monotonic()

    def _driver_faults(self, board: object, uuid: str) -> DriverFaults:
        earliest_s = time.monotonic() - XID_REPORTED_S
        xids = {xid: at_s for xid, at_s in self._xids.get(uuid, {}).items() if at_s >= earliest_s}
        self._xids[uuid] = xids
        rows = _supported(lambda: pynvml.nvmlDeviceGetRemappedRows(board), None)
        kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        return DriverFaults(
            xids=tuple(sorted(xids)),
            uncorrected=_supported(
                lambda: int(pynvml.nvmlDeviceGetTotalEccErrors(board, kind, counter)), 0
            ),
            remaps_rows=rows is not None,
            remap_pending=rows is not None and bool(rows[2]),
            remap_failed=rows is not None and bool(rows[3]),
        )


def _described(handle: object) -> _Reading:
    """A board or a slice, without the fields that all of a board share. Raises NVMLError."""
    memory = _memory(handle)
    uuid = DeviceId(_text(pynvml.nvmlDeviceGetUUID(handle)))
    device = Device(
        id=uuid,
        index=0,
        kind=DeviceKind.CUDA,
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=max(0, memory.total_mib - memory.reserved_mib - RESERVE_MIB),
    )
    processes = _processes(handle)
    power_mw = _supported(lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle)), None)
    usage = Usage(
        device=uuid,
        memory_used_mib=memory.used_mib,
        utilisation_pct=_supported(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, 0),
        processes=len(processes),
        temperature_c=_supported(
            lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)), None
        ),
        power_w=None if power_mw is None else power_mw // 1000,
    )
    listed = (
        DeviceProcess(device=uuid, pid=pid, memory_used_mib=used)
        for pid, used in sorted(processes.items())
    )
    return _Reading(device, usage, tuple(listed))


class _Memory(NamedTuple):
    total_mib: int
    used_mib: int
    reserved_mib: int  #: reserved by the driver; older drivers count it as used


def _memory(handle: object) -> _Memory:
    try:
        info = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
        reserved = info.reserved
    except pynvml.NVMLError:
        info, reserved = pynvml.nvmlDeviceGetMemoryInfo(handle), 0
    return _Memory(info.total // 2**20, info.used // 2**20, reserved // 2**20)


def _processes(handle: object) -> dict[int, int | None]:
    """Processes of every kind on the device, with their MiB; a client of MPS may be listed twice.

    None: the driver does not report it.
    """
    reads = (
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetGraphicsRunningProcesses,
        pynvml.nvmlDeviceGetMPSComputeRunningProcesses,
    )
    found: dict[int, int | None] = {}
    for read in reads:
        with contextlib.suppress(*_UNSUPPORTED):
            for process in read(handle):
                used = process.usedGpuMemory
                mib = None if used is None else int(used) >> 20
                known = found.get(process.pid)
                found[process.pid] = max(mib, known) if mib and known else mib or known
    return found


def _slices(board: object, first: int) -> tuple[tuple[int, object], ...]:
    mode = _supported(lambda: pynvml.nvmlDeviceGetMigMode(board)[0], pynvml.NVML_DEVICE_MIG_DISABLE)
    if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
        return ()
    return tuple(_existing_slices(board, first))


def _existing_slices(board: object, first: int) -> Iterator[tuple[int, object]]:
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        with contextlib.suppress(pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            yield first + index, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)


def _sharing(board: object, handle: object) -> str:
    if handle is not board:
        return f"MIG slice of {_text(pynvml.nvmlDeviceGetUUID(board))}"
    return "MPS" if _mps_is_on() else ""


def _mps_is_on() -> bool:
    """True while the control daemon runs: it removes its pipe when it ends."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER)) / "control").exists()


def _versions() -> tuple[str, str]:
    number = _supported(pynvml.nvmlSystemGetCudaDriverVersion_v2, 0)
    runtime = f"{number // 1000}.{number % 1000 // 10}" if number else ""
    return _text(pynvml.nvmlSystemGetDriverVersion()), runtime


def _unread(device: Device, error: Exception) -> Device:
    """A device that cannot be read: BAD when it is off the bus, else SUSPECT."""
    gone = isinstance(error, (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired))
    return replace(
        device,
        health=Health.BAD if gone else Health.SUSPECT,
        symptoms=(Symptom.PROBE,),
        detail=f"cannot be read: {error}",
    )


def _supported(read: Callable[[], T], otherwise: T) -> T:
    """A value that some devices do not report; `otherwise` for these. Raises for a lost device."""
    try:
        return read()
    except _UNSUPPORTED:
        return otherwise


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    answer_lines(NvmlDriver().poll)
