"""`noop`: gives its inputs back. The smallest proof that a device can be reached."""

from __future__ import annotations

from collections.abc import Sequence

from remote_gpu.worker.arguments import Arguments, Port, Signature
from remote_gpu.worker.operation import Context, CpuOperation, Limits, Outcome


class Noop(CpuOperation):
    """Gives its inputs back, unchanged: for measuring, and to see that a device is there."""

    name = "noop"
    kinds = ("cpu", "opencl", "cuda")
    implementation = "none"
    limits = Limits(inputs_max=16)
    signature = Signature(
        inputs=(Port(name="any", dtype="bytes", shape="", meaning="up to 16 buffers"),),
        outputs=(Port(name="same", dtype="bytes", shape="", meaning="the inputs"),),
        values="`args`: the arguments, when there were any",
        extra=True,
    )

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        del context  # uses nothing of the host
        return ({"args": dict(args)} if args else {}), list(inputs)


OPERATIONS = (Noop(),)
