"""`hostile`: any code in a worker, after it was isolated: what a kernel that breaks out can do."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from remote_gpu.api import Arguments, Context, CpuOperation, Limits, Outcome, Signature

#: Beside this file, not in a package: an operator's operation finds its modules as programs do.
attempts = importlib.import_module("attempts")


class Hostile(CpuOperation):
    """Runs the attempts of a caller in the worker's process."""

    name = "hostile"
    kinds = ("cpu",)
    implementation = "python"
    limits = Limits()
    signature = Signature(extra=True)

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        return {"found": attempts.run(args["what"], args["on"])}, []


OPERATIONS = (Hostile(),)
