"""`python -m lambda_functions.gpu_runner.call FOLDER MODULE.FUNCTION`: calls a Python handler.

It is run like a script, in a process of its own: what holds for scripts holds for handlers, and a
handler that hangs, crashes or leaves threads behind harms nobody. Import and call are the user's
code, so whatever they raise is a traceback and exit status 1.
"""

from __future__ import annotations

import importlib
import os
import sys

from lambda_functions.work import Work


def call(folder: str, handler: str) -> None:
    """Import the module from `folder` and call its function. Raises whatever that raises."""
    sys.path.insert(0, folder)
    module, _, name = handler.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    returned = function(Work.of(os.environ))
    if returned is not None:
        raise TypeError(
            f"{handler} returned {type(returned).__name__}: results are files in output_folder,"
            " return nothing"
        )


if __name__ == "__main__":
    call(sys.argv[1], sys.argv[2])
