"""Call of a Python handler: `python -m lambda_functions.gpu_runner.script.call FOLDER MODULE.NAME`.

A handler runs like a script, in its own process: the rules for scripts hold for handlers, and one
that hangs, crashes or leaves threads behind affects nothing else. Import and call are the user's
code: an exception becomes a traceback and exit status 1.
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
