"""`burn`: keeps the device busy for a given time, for tests."""

from __future__ import annotations

import time
from collections.abc import Sequence

from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome

#: Enough to fill a card.
_ITEMS, _GROUP = 1 << 16, 256
#: Of a launch: short against the times that people ask for, long against the launch itself.
_LAUNCH_S = 0.001
_STEPS_MIN, _STEPS_MAX = 16, 1 << 24
_SOURCE = """
__kernel void burn(__global int *sink, int steps)
{
    uint x = get_global_id(0);
    for (int i = 0; i < steps; i++) x = x * 1664525u + 1013904223u;
    if (x == 42u) sink[0] = 1;  /* so that the loop is not removed */
}
"""


class Burn(api.CpuOperation):
    """Computes for `ms` of its own processor time."""

    name = "burn"
    implementation = "python"
    limits = api.Limits()
    signature = api.Signature(
        arguments=(
            api.Number(name="ms", meaning="processor time, milliseconds", least=0, most=600_000),
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


class KernelBurn(Burn):
    """Keeps a card busy for `ms` of elapsed time, by launches of about a millisecond."""

    implementation = "kernel-burn"
    kinds = ("opencl", "cuda")
    by_kernels = True

    def kernel_sources(self) -> Sequence[str]:
        return (_SOURCE,)

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        del inputs
        wanted_s = self.signature.read(args)["ms"] / 1000
        started_s = time.perf_counter()
        steps = _STEPS_MIN
        with api.calls_of(context).call(context.quota) as call:
            sink = call.memory(4)
            while (elapsed_s := time.perf_counter() - started_s) < wanted_s:
                call.launch(_SOURCE, "burn", (sink, api.Scalar("int", steps)), _ITEMS, _GROUP)
                call.finish()
                took_s = time.perf_counter() - started_s - elapsed_s
                if took_s < _LAUNCH_S:
                    steps = min(2 * steps, _STEPS_MAX)
                elif took_s > 4 * _LAUNCH_S:
                    steps = max(steps // 2, _STEPS_MIN)
        return {"ms": (time.perf_counter() - started_s) * 1000}, []


OPERATIONS = (Burn(), KernelBurn())
