"""Call of a Python handler: `python -m lambda_functions.gpu_runner.script.call FOLDER MODULE.NAME`.

A handler runs like a script, in its own process: the rules for scripts hold for handlers, and one
that hangs, crashes or leaves threads behind affects nothing else. Import and call are the user's
code: an exception becomes a traceback and exit status 1. The traceback begins with the user's first
line: what called it is ours or Python's own.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

from contract.values import decode_value, encode_value
from lambda_functions.work import Work


def call(folder: str, handler: str, work: Work) -> None:
    """Import the module from `folder` and call its function. Raises whatever that raises."""
    sys.path.insert(0, folder)
    module, _, name = handler.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    if getattr(function, "__orchgpu_values__", False):  # of the decorator in `orchgpu`
        value = function(decode_value(work.input.name, work.input.read_bytes()))
        suffix, content = encode_value(value)
        (work.output_folder / f"{work.input.stem}{suffix}").write_bytes(content)
        return
    returned = function(work)
    if returned is not None:
        raise TypeError(
            f"{handler} returned {type(returned).__name__}: results are files in output_folder,"
            " return nothing"
        )


def traceback_of(error: BaseException, folder: str) -> str:
    """The traceback from the user's first line on, with paths as the package has them."""
    found = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = found
    while part is not None:
        _leave_out_callers(part, folder)
        part = part.__cause__ or part.__context__
    text = "".join(found.format())
    return text.replace(f"{os.path.dirname(folder.rstrip('/'))}/", "")  # noqa: PTH120 - as given


def _leave_out_callers(part: traceback.TracebackException, folder: str) -> None:
    """Drop the frames before the first one of the user's; all of them where there is none."""
    inside = f"{folder.rstrip('/')}/"
    first = next((n for n, one in enumerate(part.stack) if one.filename.startswith(inside)), None)
    del part.stack[: len(part.stack) if first is None else first]


if __name__ == "__main__":
    given = Work.of(os.environ)
    try:
        call(sys.argv[1], sys.argv[2], given)
    except Exception as error:
        sys.stderr.write(traceback_of(error, sys.argv[1]))
        sys.exit(1)
