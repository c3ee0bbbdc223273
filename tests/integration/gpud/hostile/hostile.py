"""`hostile`: any code in a worker, after it was isolated: what a kernel that breaks out can do."""

from __future__ import annotations

import attempts

from remote_gpu.worker.arguments import Signature
from remote_gpu.worker.operation import CpuOperation, Limits


class Hostile(CpuOperation):
    """Runs the attempts of a caller in the worker's process."""

    name = "hostile"
    kinds = ("cpu",)
    implementation = "python"
    limits = Limits()
    signature = Signature(extra=True)

    def run(self, context, args, inputs):
        return {"found": attempts.run(args["what"], args["on"])}, []


OPERATIONS = (Hostile(),)
