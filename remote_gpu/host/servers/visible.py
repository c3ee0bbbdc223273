"""What the servers of other middlewares could see on this host, and whether that is too much.

A server is the operator's program: it sees what the machine shows to gpud's user, less what its
middleware can hide from it. Where that is more than a lease's devices, the host does not start.
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
from remote_gpu.middleware import VisibleDevices, find

_ANSWER_S = 60.0  #: of a driver, at the start; cards that sleep take seconds


async def visible_devices(host: HostId) -> VisibleDevices:
    """Looked for now, in children: lent or not, and whatever this host was told to list.

    Raises AppError(TIMEOUT) where a driver does not answer: what it shows is not known.
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
    """Raises INVALID for one whose servers would see devices of other leases."""
    for name in names:
        if (why := find(name).refusal(visible)) is not None:
            raise invalid(f"--middleware {name} is refused on this host: {why}")


def _nodes() -> int:
    """NVIDIA's boards by their device files, for a machine whose NVML is not installed."""
    return len(list(Path("/dev").glob("nvidia[0-9]*")))


async def _seen(probe: Probe) -> Sequence[Device]:
    """Its devices; none where there is no driver."""
    try:
        return await probe.devices()
    except AppError as error:
        if error.code is ErrorCode.UNAVAILABLE:
            return ()
        raise
    finally:
        await probe.close()
