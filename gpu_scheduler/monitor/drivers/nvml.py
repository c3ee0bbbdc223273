"""The child that looks at NVIDIA devices: run as `python -m gpu_scheduler.monitor.drivers.nvml`.

Only this process ever loads NVML. A device that cannot be read, as one that fell off the bus, is
told as last seen, and hides no other. Where MIG is on, its slices are the devices: the whole board
runs nothing.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.model import Device, DeviceKind, Health, Symptom, Usage
from gpu_scheduler.monitor.drivers.child import Seen, answer_lines
from gpu_scheduler.monitor.health import DriverFaults, evaluate_device

T = TypeVar("T")

#: The driver and one CUDA context per worker need this much of every device.
RESERVE_MIB = 512
#: One Xid is told for this long, so that no report misses it; the scheduler decides what follows.
XID_TOLD_S = 30.0
#: MIG slices of one board (NVIDIA's MIG user guide). A board's index is its number on the bus, its
#: slices are numbered behind all boards: one that is lost changes the number of no other.
SLICES_MAX = 7
#: Events taken at one look; a device that dies sends a few hundred.
_EVENTS_MAX = 1_000
#: Where the control daemon of MPS listens unless told otherwise (NVIDIA's manual of MPS).
_MPS_FOLDER = "/tmp/nvidia-mps"  # noqa: S108  # nosec B108


class Driver:
    """One session with NVML, kept open: Xid events are lost between sessions."""

    def __init__(self) -> None:
        self._events: Any = None
        self._registered: dict[str, None] = {}
        self._xids: dict[str, dict[int, float]] = {}  # uuid → Xid → monotonic time of the newest
        self._known: dict[int, tuple[Device, ...]] = {}  # by index on the bus

    def look(self) -> Seen | str:
        """All devices and their figures; a str when there is no driver."""
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
            devices=tuple(device for device, _ in seen),
            usage=tuple(usage for _, usage in seen if usage is not None),
        )

    def _board(
        self, index: int, count: int, driver: str, runtime: str
    ) -> list[tuple[Device, Usage | None]]:
        """The devices of one board: itself or its slices; as last seen if it cannot be read."""
        try:
            board = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(pynvml.nvmlDeviceGetUUID(board))
            self._register(board, uuid)
            health, symptoms, why = evaluate_device(self._driver_faults(board, uuid))
            found = []
            whole = ((index, board),)
            for number, handle in _slices(board, count + index * SLICES_MAX) or whole:
                device, usage = _described(handle)
                detail = "; ".join(filter(None, (why, _sharing(board, handle))))
                device = replace(
                    device,
                    index=number,
                    driver=driver,
                    runtime=runtime,
                    detail=detail,
                    health=health,
                    symptoms=symptoms,
                )
                found.append((device, usage))
        except pynvml.NVMLError as error:
            return [(_unread(device, error), None) for device in self._known.get(index, ())]
        self._known[index] = tuple(device for device, _ in found)
        return list(found)

    def _register(self, board: Any, uuid: str) -> None:
        """Hear of its Xids from now on; some virtual devices tell of none."""
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

    def _driver_faults(self, board: Any, uuid: str) -> DriverFaults:
        earliest_s = time.monotonic() - XID_TOLD_S
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


def _described(handle: Any) -> tuple[Device, Usage]:
    """A board or a slice, without what all of a board have in common. Raises NVMLError."""
    memory, reserved_mib = _memory(handle)
    uuid = DeviceId(_text(pynvml.nvmlDeviceGetUUID(handle)))
    device = Device(
        id=uuid,
        index=0,
        kind=DeviceKind.CUDA,
        model=_text(pynvml.nvmlDeviceGetName(handle)),
        memory_mib=max(0, memory.total // 2**20 - reserved_mib - RESERVE_MIB),
    )
    power_mw = _supported(lambda: int(pynvml.nvmlDeviceGetPowerUsage(handle)), None)
    usage = Usage(
        device=uuid,
        memory_used_mib=memory.used // 2**20,
        utilisation_pct=_supported(lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu, 0),
        processes=len(_pids(handle)),
        temperature_c=_supported(
            lambda: int(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)), None
        ),
        power_w=None if power_mw is None else power_mw // 1000,
    )
    return device, usage


def _memory(handle: Any) -> tuple[Any, int]:
    """Memory, and what of it the driver keeps; older drivers count that as used."""
    try:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except pynvml.NVMLError:
        return pynvml.nvmlDeviceGetMemoryInfo(handle), 0
    return memory, memory.reserved // 2**20


def _pids(handle: Any) -> frozenset[int]:
    """Processes of every kind on it; a client of MPS may be listed twice."""
    lists: tuple[list[Any], ...] = (
        _supported(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle), []),
        _supported(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), []),
        _supported(lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle), []),
    )
    return frozenset(process.pid for processes in lists for process in processes)


def _slices(board: Any, first: int) -> tuple[tuple[int, Any], ...]:
    """Its MIG devices, numbered from `first` on; none where MIG is off or unknown."""
    mode = _supported(lambda: pynvml.nvmlDeviceGetMigMode(board)[0], pynvml.NVML_DEVICE_MIG_DISABLE)
    if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
        return ()
    return tuple(_existing_slices(board, first))


def _existing_slices(board: Any, first: int) -> Iterator[tuple[int, Any]]:
    for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        with contextlib.suppress(pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            yield first + index, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(board, index)


def _sharing(board: Any, handle: Any) -> str:
    """How the device is divided beside us, for people."""
    if handle is not board:
        return f"MIG slice of {_text(pynvml.nvmlDeviceGetUUID(board))}"
    return "MPS" if _mps_is_on() else ""


def _mps_is_on() -> bool:
    """Its control daemon has made its pipe; it removes it when it ends."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", _MPS_FOLDER)) / "control").exists()


def _versions() -> tuple[str, str]:
    """Of the driver, and the highest CUDA version it runs."""
    number = _supported(pynvml.nvmlSystemGetCudaDriverVersion_v2, 0)
    runtime = f"{number // 1000}.{number % 1000 // 10}" if number else ""
    return _text(pynvml.nvmlSystemGetDriverVersion()), runtime


def _unread(device: Device, error: Exception) -> Device:
    """Off the bus it is BAD; after any other error it may answer again in a moment."""
    gone = isinstance(error, (pynvml.NVMLError_GpuIsLost, pynvml.NVMLError_ResetRequired))
    return replace(
        device,
        health=Health.BAD if gone else Health.SUSPECT,
        symptoms=(Symptom.PROBE,),
        detail=f"cannot be read: {error}",
    )


def _supported(read: Callable[[], T], otherwise: T) -> T:
    """What not every device tells; `otherwise` where this one does not. Raises when it is lost."""
    try:
        return read()
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,
        pynvml.NVMLError_NoPermission,
        pynvml.NVMLError_InvalidArgument,
    ):
        return otherwise


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    answer_lines(Driver().look)
