"""Call of a Python handler: `python -m lambda_functions.gpu_runner.script.call FOLDER MODULE.NAME`,
with a last argument `stays` several calls in turn.

A handler runs like a script, in its own process: the rules for scripts hold for handlers, and one
that hangs, crashes or leaves threads behind affects nothing else. Import and call are the user's
code: an exception becomes a traceback and exit status 1. The traceback begins with the user's first
line: what called it is ours or Python's own.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable

from contract.values import decode_value, encode_value
from lambda_functions.gpu_runner.script.resident import PART_BYTES_MAX, STAYS
from lambda_functions.work import Work


class Program:
    """A handler, with what its `load` has loaded."""

    def __init__(self, folder: str, handler: str) -> None:
        """Import the module from `folder`, and load. Raises whatever that raises."""
        began_s = time.monotonic()
        sys.path.insert(0, folder)
        module, _, name = handler.rpartition(".")
        self._handler = handler
        self._function = getattr(importlib.import_module(module), name)
        load = getattr(self._function, "__orchgpu_load__", None)  # of the decorator in `orchgpu`
        self._loaded = () if load is None else (load(),)
        self.loading_s = time.monotonic() - began_s

    def call(self, work: Work, send: Callable[[bytes], None] | None = None) -> None:
        """Call the handler; `send` gets the parts that it yields. Raises whatever that raises."""
        if getattr(self._function, "__orchgpu_values__", False):
            given = decode_value(work.input.name, work.input.read_bytes())
            suffix, content = encode_value(self._function(given, *self._loaded))
            (work.output_folder / f"{work.input.stem}{suffix}").write_bytes(content)
            return
        returned = self._function(work, *self._loaded)
        if send is not None and inspect.isgenerator(returned):
            _stream(returned, send)
        elif returned is not None:
            raise TypeError(
                f"{self._handler} returned {type(returned).__name__}: results are files in"
                " output_folder, return nothing"
            )


def call(folder: str, handler: str, work: Work) -> None:
    """Import the module from `folder` and call its function. Raises whatever that raises."""
    Program(folder, handler).call(work)


def serve(folder: str, handler: str) -> None:
    """Call the function for one job after another, as `script.resident` sends them, until there is
    none. Raises whatever the first call that fails raises."""
    calls = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=os.dup(0))
    none = os.open(os.devnull, os.O_RDONLY)
    os.dup2(none, 0)  # the user's code has no standard input
    os.close(none)
    program = None
    with calls, calls.makefile("rb") as lines:
        for line in lines:
            given = json.loads(line)
            os.environ.clear()
            os.environ.update(given["variables"])
            os.chdir(given["folder"])
            tempfile.tempdir = None  # that of this job is another
            program = program or Program(folder, handler)
            answer: dict[str, object] = {}
            if given["task"] == "job":
                program.call(Work.of(os.environ))
            elif given["task"] == "call" and _raised(program, folder, calls):
                answer["failed"] = True
            sys.stdout.flush()
            sys.stderr.flush()
            answer["loading_s"] = program.loading_s
            calls.sendall(json.dumps(answer).encode("ascii") + b"\n")


def _raised(program: Program, folder: str, calls: socket.socket) -> bool:
    """Serve a call of an endpoint; True: it raised, which the next call does not notice."""

    def send(part: bytes) -> None:
        calls.sendall(json.dumps({"part": len(part)}).encode("ascii") + b"\n" + part)

    try:
        program.call(Work.of(os.environ), send)
    except Exception as error:
        sys.stdout.flush()  # what it printed was before
        sys.stderr.write(traceback_of(error, folder))
        return True
    return False


def _stream(parts: Iterable[object], send: Callable[[bytes], None]) -> None:
    for part in parts:
        if not isinstance(part, bytes | str):
            raise TypeError(f"a part of an answer is bytes or text, not {type(part).__name__}")
        content = part.encode() if isinstance(part, str) else part
        for start in range(0, len(content), PART_BYTES_MAX):
            send(content[start : start + PART_BYTES_MAX])


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
    try:
        if sys.argv[3:] == [STAYS]:
            serve(sys.argv[1], sys.argv[2])
        else:
            call(sys.argv[1], sys.argv[2], Work.of(os.environ))
    except Exception as error:
        sys.stderr.write(traceback_of(error, sys.argv[1]))
        sys.exit(1)
