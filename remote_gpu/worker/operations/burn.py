"""`burn`: keeps the device busy for a given time, for tests."""

from __future__ import annotations

import time
from collections.abc import Sequence

from remote_gpu.worker.arguments import Arguments, Number, Signature
from remote_gpu.worker.operation import Context, CpuOperation, Limits, Outcome


class Burn(CpuOperation):
    """Computes for `ms` of its own processor time."""

    name = "burn"
    implementation = "python"
    limits = Limits()
    signature = Signature(
        arguments=(
            Number(name="ms", meaning="processor time, milliseconds", least=0, most=600_000),
        ),
        values="`ms`: elapsed time, milliseconds",
    )

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        del context, inputs
        wanted_s = self.signature.read(args)["ms"] / 1000
        started_s = time.perf_counter()
        # processor time, without turns of other leases in between
        end_s = time.thread_time() + wanted_s
        while time.thread_time() < end_s:
            sum(range(1000))
        return {"ms": (time.perf_counter() - started_s) * 1000}, []


OPERATIONS = (Burn(),)
