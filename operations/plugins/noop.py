"""`noop`: returns its inputs, to show that a device is reachable."""

from __future__ import annotations

from collections.abc import Sequence

from remote_gpu.api import Arguments, Context, CpuOperation, Limits, Outcome, Port, Signature


class Noop(CpuOperation):
    """Returns its inputs unchanged, for measurements and to check that a device is reachable."""

    name = "noop"
    kinds = ("cpu", "opencl", "cuda")
    implementation = "none"
    limits = Limits(inputs_max=16)
    signature = Signature(
        inputs=(Port(name="any", meaning="up to 16 buffers"),),
        outputs=(Port(name="same", meaning="the inputs"),),
        values="`args`: the arguments, if any",
        extra=True,
    )

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        del context
        return ({"args": dict(args)} if args else {}), list(inputs)


OPERATIONS = (Noop(),)
