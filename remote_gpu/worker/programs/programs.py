"""Programs of the operator's list, run for callers: fixed commands with placeholders.

A caller names a program and fills its placeholders with plain words; paths, options and environment
are fixed. The program runs in an empty folder and its own session, with the worker's memory limit;
its environment has only the variables of the lease's NVIDIA devices. It ends by itself, at its time
limit, or with its caller's lease, together with all processes that it started (`warden.py`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import selectors
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.worker.control import VARIABLES
from remote_gpu.worker.memory.quota import Quota

#: Of each of the two streams that a program writes.
OUTPUT_BYTES_MAX = 64 << 20
_PLACE = re.compile(r"\{([a-z][a-z0-9_]*)\}")
#: A plain word: no option, no path (including `..`), no character special to shells and parsers.
_WORD = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.,:+@=][A-Za-z0-9_.,:+@=-]{0,127}")
_WARDEN = Path(__file__).with_name("warden.py")
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedProgram:
    """One program for callers."""

    command: tuple[str, ...]  #: absolute path and arguments, with placeholders as `{name}`

    @property
    def places(self) -> tuple[str, ...]:
        """The names of its placeholders, in order."""
        found = (name for part in self.command[1:] for name in _PLACE.findall(part))
        return tuple(dict.fromkeys(found))

    def filled(self, words: Mapping[str, object]) -> list[str]:
        """The filled command. Raises OpFailed(EINVAL) unless each placeholder gets a plain word."""
        if set(words) != set(self.places):
            places = ", ".join(self.places) or "none"
            raise invalid(f"'words' must fill the program's placeholders: {places}")
        for name, word in words.items():
            if not isinstance(word, str) or not _WORD.fullmatch(word):
                message = f"{name!r} must be a word of 1…128 letters, digits and _ . , : + @ = -"
                raise invalid(message)
        fill = {name: str(word) for name, word in words.items()}
        rest = (_PLACE.sub(lambda found: fill[found[1]], part) for part in self.command[1:])
        return [self.command[0], *rest]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletedProgram:
    """The end of a program."""

    status: int  #: exit status; −n for signal n
    stdout: bytes
    stderr: bytes


def parse_program(text: str) -> ListedProgram:
    """Parse `/absolute/path argument {placeholder} …`, quoted as for a shell. Raises ValueError."""
    command = tuple(shlex.split(text))
    if not command or not Path(command[0]).is_absolute():
        raise ValueError(f"{text!r} does not begin with the absolute path of a program")
    if not os.access(command[0], os.X_OK) or not Path(command[0]).is_file():
        raise ValueError(f"{command[0]} is not an executable file")
    return ListedProgram(command=command)


def run_program(
    command: list[str],
    stdin: memoryview,
    timeout_s: float,
    quota: Quota,
    lifeline: int | None = None,
) -> CompletedProgram:
    """Run to the end. Raises OpFailed: ETIMEDOUT, E2BIG for too much output, ENOMEM.

    `lifeline`: a descriptor that stays open until all processes of the program have ended.
    """
    with contextlib.ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="program-")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)  # if the warden did not start
        read_end, status = os.pipe()
        result = stack.enter_context(os.fdopen(read_end, "rb", 0))
        try:
            held = [status] if lifeline is None else [status, lifeline]
            warden = [str(_WARDEN), str(os.getpid()), ",".join(map(str, held)), folder]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", *warden, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=held,
                env={name: os.environ[name] for name in VARIABLES if name in os.environ},
                cwd=folder,
                start_new_session=True,
            )
        finally:
            os.close(status)
        stack.callback(_reap, process)
        exchange = _Exchange(process, result, stdin, quota)
        stack.callback(exchange.close)
        exchange.run(time.monotonic() + timeout_s, f"{command[0]} took more than {timeout_s:g} s")
        stdout, stderr, code = (bytes(output) for output in exchange.outputs)
        if not code:
            raise OpFailed(OpCode.EIO, f"{command[0]} was killed from outside")
        return CompletedProgram(status=int(code), stdout=stdout, stderr=stderr)


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait()


class _Exchange:
    """The concurrent transfer of a program's input and outputs."""

    def __init__(
        self, process: subprocess.Popen[bytes], result: IO[bytes], stdin: memoryview, quota: Quota
    ) -> None:
        """`result`: the pipe for the exit status."""
        self._quota = quota
        self._left = stdin
        self._selector = selectors.DefaultSelector()
        self._held = 0
        self.outputs = (bytearray(), bytearray(), bytearray())  #: stdout, stderr, status
        assert process.stdin is not None, "all three are pipes"
        assert process.stdout is not None, "all three are pipes"
        assert process.stderr is not None, "all three are pipes"
        self._streams = (process.stdin, process.stdout, process.stderr, result)
        for stream in self._streams:
            os.set_blocking(stream.fileno(), False)
        self._watch(process.stdin, selectors.EVENT_WRITE, self._write)
        for stream, sink in zip(self._streams[1:], self.outputs, strict=True):
            self._watch(stream, selectors.EVENT_READ, functools.partial(self._read, sink))

    def run(self, deadline_s: float, late: str) -> None:
        """Transfer until all streams have ended. Raises OpFailed."""
        while self._selector.get_map():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise OpFailed(OpCode.ETIMEDOUT, late)
            for key, _ in self._selector.select(left_s):
                key.data(key.fileobj)

    def close(self) -> None:
        self._selector.close()
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.close()
        self._quota.free(self._held)

    def _watch(self, stream: IO[bytes], events: int, act: Callable[[IO[bytes]], None]) -> None:
        self._selector.register(stream, events, act)

    def _write(self, stream: IO[bytes]) -> None:
        try:
            self._left = self._left[os.write(stream.fileno(), self._left[:_CHUNK_BYTES]) :]
        except BrokenPipeError:  # it does not read all of its input
            self._left = self._left[:0]
        if not self._left:
            self._selector.unregister(stream)
            stream.close()

    def _read(self, sink: bytearray, stream: IO[bytes]) -> None:
        data = os.read(stream.fileno(), _CHUNK_BYTES)
        if not data:
            self._selector.unregister(stream)
            return
        if len(sink) + len(data) > OUTPUT_BYTES_MAX:
            message = f"the program wrote more than {OUTPUT_BYTES_MAX} bytes"
            raise OpFailed(OpCode.E2BIG, message)
        self._quota.reserve(len(data))
        self._held += len(data)
        sink += data
