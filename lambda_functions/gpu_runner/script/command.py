"""The command that runs the user's script.

SCAR's supervisor always takes `/bin/sh`, so a `#!/bin/bash` script breaks. The kernel honours the
shebang of an executable file. Zip packages often lose the executable bit; then this module applies
the kernel's rule: one interpreter, at most one argument.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed

#: The kernel reads this much of a script's first line (BINPRM_BUF_SIZE).
_LINE_BYTES_MAX = 256
_ELF = b"\x7fELF"


def command_of(script: Path) -> list[str]:
    """The argument list that runs `script`. Raises AttemptFailed(SCRIPT_ERROR)."""
    try:
        with script.open("rb") as file:
            line = file.read(_LINE_BYTES_MAX).split(b"\n", 1)[0]
    except OSError as error:
        raise script_error(f"script {script.name} cannot be read: {error.strerror}") from None
    executable = os.access(script, os.X_OK)
    if line.startswith(b"#!"):
        return _by_shebang(script, line, executable)
    if line.startswith(_ELF):
        if not executable:
            raise script_error(
                f"{script.name} is a program without the executable bit; set it (chmod +x)"
            )
        return [str(script)]
    return ["/bin/sh", str(script)]


def handler_command(folder: Path, handler: str) -> list[str]:
    """The argument list that calls a Python handler of a module in `folder`."""
    return [sys.executable, "-m", "lambda_functions.gpu_runner.script.call", str(folder), handler]


def _by_shebang(script: Path, line: bytes, executable: bool) -> list[str]:
    interpreter, *argument = os.fsdecode(line[2:]).strip(" \t").split(maxsplit=1) or [""]
    if line.endswith(b"\r"):
        raise script_error(
            f"script {script.name} has Windows line endings; convert them to Unix ones"
        )
    if not os.access(interpreter, os.X_OK):
        raise script_error(
            f"script {script.name}: interpreter {interpreter!r} does not exist in this function"
        )
    if executable:
        return [str(script)]
    return [interpreter, *(part.rstrip(" \t") for part in argument), str(script)]


def script_error(detail: str) -> AttemptFailed:
    """The failure of an attempt whose code cannot be started."""
    return AttemptFailed(Reason.SCRIPT_ERROR, detail)
