"""The description of emulated devices: memory, slots, and the times of operations.

An emulated device is for experiments with scheduling where the accelerators are absent: a call of
one of its operations takes the time that the description states. Nothing about its speed is
measured. Its model begins with `emulated `, so that no list shows it as a real device.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from corekit.errors import invalid
from corekit.values import Checked, Meta, field
from gpu_scheduler.model import DeviceKind, MemoryMib, Name, Version
from gpu_scheduler.names import EMULATED_PREFIX
from remote_gpu.worker.arguments import Arguments

#: The longest time of one call or of one loading.
TIME_MS_MAX = 3_600_000.0
SLOTS_MAX = 64
#: Parts of a time that the spread may take away or add: times stay symmetric and positive.
_SPREAD_LIMIT = 0.9
#: Of each input: its beginning and its end determine the time of a call.
_DIGEST_BYTES = 4096
_OPERATION_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_NO_OPERATIONS = ("graph", "operations", "sync")  #: words that lanes and devices use

Milliseconds = Annotated[float, Meta(ge=0, le=TIME_MS_MAX)]


class OperationTimes(Checked):
    """The times of one operation on one model of device."""

    warm_ms: Milliseconds  #: median of a call whose workload is loaded
    cold_ms: Milliseconds = 0.0  #: additional time of the first call of a workload in a worker
    #: Standard deviation of the time of a warm call, in percent of its median.
    spread_pct: Annotated[float, Meta(ge=0, le=50)] = 0.0
    memory_mib: MemoryMib = 0  #: that a loaded workload takes of its lease's share


class EmulatedDevice(Checked):
    """One emulated device, or several equal ones."""

    kind: DeviceKind
    model: Name  #: without the prefix
    memory_mib: MemoryMib
    slots: Annotated[int, Meta(ge=1, le=SLOTS_MAX)] = 1  #: calls at the same time
    count: Annotated[int, Meta(ge=1, le=SLOTS_MAX)] = 1
    driver: Version | None = None
    runtime: Version | None = None
    operations: Mapping[str, OperationTimes]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind is DeviceKind.CPU:
            raise invalid("kind cpu cannot be emulated: gpud lends the real cores of its machine")
        for name in self.operations:
            if not _OPERATION_NAME.fullmatch(name) or name in _NO_OPERATIONS:
                raise invalid(f"operations: {name!r} is not a name such as sgemm or detect_2")

    @property
    def published_model(self) -> str:
        """The model that the scheduler and its clients see."""
        return EMULATED_PREFIX + self.model


class Emulation(Checked):
    """The emulated devices of one host."""

    devices: Annotated[tuple[EmulatedDevice, ...], Meta(max_length=SLOTS_MAX)]
    seed: int = 0  #: of the spread of times
    #: Factor of all times of the file: 0.25 runs an experiment four times as fast.
    time_scale: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    #: Argument of a call that distinguishes the workloads of one operation.
    workload_argument: str = field(default="model")


def call_s(
    emulation: Emulation,
    device: EmulatedDevice,
    operation: str,
    args: Arguments,
    inputs: Sequence[memoryview],
) -> float:
    """The time of a warm call, scaled. The same call takes the same time on every equal device.

    Times are distributed normally around the median, which is also their mean.
    """
    times = device.operations[operation]
    drawn = 0.0
    if times.spread_pct:
        stream = random.Random(
            f"{emulation.seed}/{device.model}/{operation}/{_digest(args, inputs)}"
        )
        drawn = stream.gauss(0.0, times.spread_pct / 100)
    factor = 1.0 + max(-_SPREAD_LIMIT, min(_SPREAD_LIMIT, drawn))
    return times.warm_ms * factor * emulation.time_scale / 1000


def _digest(args: Arguments, inputs: Sequence[memoryview]) -> str:
    digest = hashlib.sha256(json.dumps(args, sort_keys=True, default=str).encode())
    for view in inputs:
        digest.update(f"/{view.nbytes}/".encode())
        digest.update(view[:_DIGEST_BYTES])
        digest.update(view[-_DIGEST_BYTES:])
    return digest.hexdigest()
