"""`exec`: runs a program of the host operator's list (`gpud --program`)."""

from __future__ import annotations

from collections.abc import Sequence

from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome, invalid

_STDIN_BYTES_MAX = 256 << 20
_AT_MOST = f"at most {api.OUTPUT_BYTES_MAX >> 20} MiB"


class Exec(api.CpuOperation):
    """Runs a program of the operator's list to its end.

    Callers cannot pass programs, paths or options.
    """

    name = "exec"
    kinds = ("cpu", "opencl", "cuda")
    implementation = "process"
    limits = api.Limits(inputs_max=1, input_bytes_max=_STDIN_BYTES_MAX)
    signature = api.Signature(
        arguments=(
            api.Text(name="program", meaning="its name in the operator's list"),
            api.Structure(
                name="words",
                meaning="values of the placeholders in its command",
                rule="an object of plain words by placeholder",
                default={},
            ),
            api.Number(
                name="timeout_s", meaning="time limit, seconds", least=0.01, most=900, default=60.0
            ),
        ),
        inputs=(api.Port(name="stdin", meaning="absent: empty"),),
        outputs=(
            api.Port(name="stdout", meaning=_AT_MOST),
            api.Port(name="stderr", meaning=_AT_MOST),
        ),
        values="`status`: exit status, −n for signal n",
    )

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        args = self.signature.read(args)
        program = context.program(args["program"])
        if not isinstance(args["words"], dict):
            raise invalid("'words' must be an object of plain words by placeholder")
        command = program.filled(args["words"])
        stdin = inputs[0] if inputs else memoryview(b"")
        context.taint()
        ran = api.run_program(command, stdin, args["timeout_s"], context.quota, context.lifeline)
        return {"status": ran.status}, [ran.stdout, ran.stderr]


OPERATIONS = (Exec(),)
