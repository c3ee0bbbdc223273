"""The server's state on disk: a log of (key, value) lines; the last value of a key wins.

One write() per request, before its answer, and one soon after every other change; no fsync: a
killed server loses nothing that was answered, a machine that loses power may lose the last seconds.
At start, and when most lines are outdated, the log is rewritten (temp file + os.replace).
A torn line (a full disk, a kill) is skipped when the log is read.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from corekit.errors import AppError, ErrorCode

logger = logging.getLogger(__name__)

#: Rewritten when the log has this many bytes and is four times what is alive.
COMPACT_BYTES = 64 * 2**20


class StateLog:
    """The log of one state directory, which it locks for as long as it is open."""

    def __init__(self, folder: Path, soon: Callable[[Callable[[], None]], object]) -> None:
        """`soon(flush)` is called after a change, to write it even if no request does."""
        self._soon = soon
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # bodies, code and keys lie in it
        self._path = folder / "cloud.jsonl"
        self._lock = _locked(folder / "lock")
        self._live = _read(self._path)
        self._live_bytes = sum(len(line) for line in self._live.values())
        self._pending: list[bytes] = []
        self._torn = False  # the last write ended in the middle of a line
        self._file = -1
        self._written = 0
        self._rewrite()

    def put(self, key: str, value: object) -> None:
        """Remember plain JSON data under `key`; durable after `flush`."""
        line = json.dumps([key, value], separators=(",", ":")).encode() + b"\n"
        self._live_bytes += len(line) - len(self._live.get(key, b""))
        self._live[key] = line
        self._append(line)

    def drop(self, key: str) -> None:
        """Remove `key`."""
        line = self._live.pop(key, None)
        if line is not None:
            self._live_bytes -= len(line)
            self._append(json.dumps([key]).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        if not self._pending:
            self._soon(self.flush)
        self._pending.append(line)

    def flush(self) -> None:
        """Write the pending lines to the operating system; after an OSError, call it again."""
        if not self._pending:
            return
        data = (b"\n" if self._torn else b"") + b"".join(self._pending)
        self._torn = True
        _write_all(self._file, data)
        self._torn = False
        self._pending.clear()
        self._written += len(data)
        if self._written > max(COMPACT_BYTES, 4 * self._live_bytes):
            self._rewrite()

    def items(self, kind: str) -> Iterator[tuple[list[str], Any]]:
        """(further components of the key, value) of every key that begins with `kind/`."""
        for key, line in self._live.items():
            first, *rest = key.split("/")
            if first == kind:
                yield [_unescaped(p) for p in rest], json.loads(line)[1]

    def get(self, key: str) -> Any:
        """The value of a key, or None."""
        line = self._live.get(key)
        return None if line is None else json.loads(line)[1]

    def close(self) -> None:
        """Write the pending lines and unlock the directory."""
        self.flush()
        os.close(self._file)
        os.close(self._lock)

    def _rewrite(self) -> None:
        fresh = self._path.with_suffix(".tmp")
        file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        _write_all(file, b"".join(self._live.values()))
        fresh.replace(self._path)
        if self._file >= 0:
            os.close(self._file)
        self._file = file
        self._written = self._live_bytes


def _locked(path: Path) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise AppError(
            ErrorCode.CONFLICT,
            f"the state directory {path.parent} is in use by another embedded cloud;"
            " stop that one or give another --state",
        ) from None
    return file


def _read(path: Path) -> dict[str, bytes]:
    """Last line of every key, in the order in which the keys first appeared."""
    lines: dict[str, bytes] = {}
    if not path.exists():
        return lines
    with path.open("rb") as file:
        for line in file:
            if line == b"\n":
                continue
            try:
                key, *value = json.loads(line)
            except ValueError:
                logger.warning("a torn line was skipped", extra={"event": "state_torn"})
                continue
            if value:
                lines[key] = line if line.endswith(b"\n") else line + b"\n"
            else:
                lines.pop(key, None)
    return lines


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _unescaped(part: str) -> str:
    return part.replace("%2F", "/").replace("%25", "%")
