"""The devices that servers of other middlewares can see on this host, and their refusal.

A server is the operator's program: it sees the devices that gpud's user sees, less those that its
middleware can hide from it. The host does not start if a server would see more than the devices of
its lease.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path

from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import HostId
from gpu_scheduler.model import Device
from gpu_scheduler.monitor.ports import Probe
from gpu_scheduler.monitor.probes import probe_of
from remote_gpu.middleware import find
from remote_gpu.middleware.base import VisibleDevices

_ANSWER_S = 60.0  #: limit of a driver at the start; sleeping cards take seconds


async def visible_devices(host: HostId) -> VisibleDevices:
    """The devices found now by child processes, whether this host lends them or not.

    Raises AppError(TIMEOUT) where a driver does not answer: its devices are unknown then.
    """
    every, cards, nvidia = [
        await _seen(probe_of(name, host, _ANSWER_S)) for name in ("opencl", "opencl-cards", "nvml")
    ]
    return VisibleDevices(
        opencl_known=importlib.util.find_spec("pyopencl") is not None,
        cuda=max(len(nvidia), _nodes()),
        opencl_cards=len(cards),
        opencl_cpus=len(every) - len(cards),
    )


def check_middlewares(names: Iterable[str], visible: VisibleDevices) -> None:
    """Raises INVALID for a middleware whose servers would see devices of other leases."""
    for name in names:
        if (why := find(name).refusal(visible)) is not None:
            raise invalid(f"--middleware {name} is refused on this host: {why}")


def _nodes() -> int:
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


async def _seen(probe: Probe) -> Sequence[Device]:
    """The probe's devices; none where there is no driver."""
    try:
        return await probe.devices()
    except AppError as error:
        if error.code is ErrorCode.UNAVAILABLE:
            return ()
        raise
    finally:
        await probe.close()
