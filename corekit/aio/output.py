"""Standard output and standard error as resources that can be lost: a closed pipe, a full disk.

While a command runs, an `OSError` of either stream becomes `OutputLost`, so that it is not taken
for an error of a file or a socket; `exiting_by_output` turns it into the exit status.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec, TextIO, TypeVar, cast

T = TypeVar("T")
P = ParamSpec("P")

#: The output could not be written (EX_IOERR of sysexits.h); the command may have been done.
UNWRITABLE_STATUS = 74
#: What a shell reports for a program whose reader went away.
BROKEN_PIPE_STATUS = 141

_GONE = select.POLLERR | select.POLLHUP


class OutputLost(Exception):
    """The output of a command cannot be written."""


class ReaderGone(OutputLost, BrokenPipeError):
    """The reader of the output has closed it. Without errno: click handles EPIPE by itself."""


class _Guarded:
    """A text stream whose failures are `OutputLost`; everything else is unchanged."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return _translated(lambda: self._stream.write(text))

    def flush(self) -> None:
        _translated(self._stream.flush)


def _translated(work: Callable[[], T]) -> T:
    try:
        return work()
    except OSError as error:
        raise _lost(error) from error


def _lost(error: OSError) -> OutputLost:
    reason = error.strerror or str(error)
    if isinstance(error, BrokenPipeError):
        return error if isinstance(error, OutputLost) else ReaderGone(reason)
    return OutputLost(reason)


@contextlib.contextmanager
def exiting_by_output(program: str, *, errors: bool = True) -> Iterator[None]:
    """End the process with a status when the output of the block cannot be written.

    One line on standard error reports it, except for a closed pipe. `errors`: standard error is
    watched too; not in a daemon, which continues when its log cannot be written.
    """
    try:
        with _guarded(errors=errors):
            try:
                yield
            except SystemExit:
                sys.stdout.flush()
                raise
            sys.stdout.flush()  # here a full disk shows, not when the interpreter ends
    except ReaderGone:
        _abandon()
        sys.exit(BROKEN_PIPE_STATUS)
    except OutputLost as lost:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{program}: cannot write the output: {lost}\n")
        _abandon()
        sys.exit(UNWRITABLE_STATUS)


@contextlib.contextmanager
def _guarded(*, errors: bool) -> Iterator[None]:
    """Raise `OutputLost` for every failure to write, until the block ends.

    A stream that was closed from the start, as by `>&-`, is replaced by the null device.
    """
    streams: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr)
    with contextlib.ExitStack() as stack:
        nowhere = Path(os.devnull)
        found = [one or stack.enter_context(nowhere.open("w")) for one in streams]
        sys.stdout = cast("TextIO", _Guarded(found[0]))
        sys.stderr = cast("TextIO", _Guarded(found[1]) if errors else found[1])
        try:
            yield
        finally:
            sys.stdout, sys.stderr = cast("tuple[TextIO, TextIO]", streams)


def _abandon() -> None:
    """Drop the buffers, which the interpreter would fail to write at its end."""
    streams: tuple[TextIO | None, ...] = (sys.stdout, sys.stderr)
    for stream in filter(None, streams):
        try:
            stream.flush()
        except OSError:
            _to_nowhere(stream)


def ignoring_closed_pipe(show: Callable[P, None]) -> Callable[P, None]:
    """`show`, whose output is dropped once the reader of the pipe has gone away."""

    def shown(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            show(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            for stream in (sys.stdout, sys.stderr):
                if _reader_gone(stream.fileno(), 0):
                    _to_nowhere(stream)

    return shown


def _reader_gone(descriptor: int, within_s: float) -> bool:
    """True when the kernel reports that a pipe's reader is gone (POLLERR); nothing is written."""
    poller = select.poll()
    poller.register(descriptor, 0)
    return any(event & _GONE for _, event in poller.poll(within_s * 1000))


def _to_nowhere(stream: TextIO) -> None:
    with contextlib.suppress(OSError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def pause(seconds: float) -> None:
    """Sleep. Raises `ReaderGone` as soon as the reader of the standard output has closed it.

    The kernel reports a closed pipe also while nothing is written (POLLERR).
    """
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # captured by a test: no file
        time.sleep(seconds)
        return
    poller = select.poll()
    poller.register(output, 0)
    for _, event in poller.poll(seconds * 1000):
        if event & _GONE:
            raise ReaderGone(os.strerror(errno.EPIPE))
        time.sleep(seconds)  # POLLNVAL: closed from the start, as by `>&-`
