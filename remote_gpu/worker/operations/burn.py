"""`burn`: keeps the device busy for a given time. For tests of holding, capping and revoking."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from remote_gpu.worker.arguments import number, only
from remote_gpu.worker.operation import Context, Limits, Outcome


class Burn:
    """`ms` (0…600,000) of computing → {"ms": what it really took}."""

    name = "burn"
    version = 1
    kinds = ("cpu",)
    implementation = "python"
    limits = Limits()

    def prepare(self, context: Context) -> None:
        """Needs nothing."""

    def run(
        self, context: Context, args: Mapping[str, Any], inputs: Sequence[memoryview]
    ) -> Outcome:
        del context, inputs
        only(args, "ms")
        started_s = time.perf_counter()
        # its own time: a turn of somebody else's in between is not computing
        end_s = time.thread_time() + number(args, "ms", 0, 600_000) / 1000
        while time.thread_time() < end_s:
            sum(range(1000))
        return {"ms": (time.perf_counter() - started_s) * 1000}, []


OPERATIONS = (Burn(),)
