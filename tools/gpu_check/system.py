"""A scheduler and a host with one kind of device, for parts, and the memory in use there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.remote_gpu.host import Host
from gpu_scheduler.model import DeviceKind
from remote_gpu.client import Session
from tools.gpu_check.first_device import card_used_mib
from tools.gpu_check.part import Target

#: Options of gpud by kind, after those of `Host`.
_OPTIONS = {"cuda": ("--nvml",), "opencl": ("--opencl", "all"), "cpu": ()}

_CONTEXT_MIB = 2048  #: of a lease on a card, for its context and the libraries' work areas


@contextlib.contextmanager
def system(target: Target, *options: str) -> Iterator[Host]:
    """Real daemons with the devices of the kind, until the block ends."""
    cores = sorted(os.sched_getaffinity(0))
    lent = cores if target.kind == "cuda" else cores[:1]
    with contextlib.ExitStack() as stack:
        given = (*_OPTIONS[target.kind], "--cpus", ",".join(map(str, lent)), *options)
        yield Host(stack, target.folder / "system", cores[0], *given)


def session(
    host: Host, target: Target, memory_mib: int, guarantee_pct: float = 0, **fields: Any
) -> Session:
    """An open lease on a device of the kind."""
    kinds = (DeviceKind(target.kind),)
    of_context_mib = _CONTEXT_MIB if target.kind == "cuda" else 0
    return host.session(guarantee_pct, memory_mib + of_context_mib, kinds=kinds, **fields)


def used_memory_mib(target: Target, host: Host) -> Callable[[], float]:
    """Reads the memory in use: of the first card by NVML, else of the host's workers."""
    return card_used_mib if target.kind == "cuda" else host.private_mib
