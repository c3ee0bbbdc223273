"""The log of all leases and warm workers of this host, as JSON lines.

    {"event": "placed", "at_s": 12.5, "lease": "…", "fence": 7, "shares": [{"device", "memory_mib",
     "compute_guarantee_pct", "exclusive"}], …}

`at_s` is this machine's monotonic clock. A lease occupies its shares from `placed` to `cut` or
`unplaced`; no two leases may overlap on one share (the tests' `lease_overlaps` checks logs). A run
of gpud begins with `started`: leases placed before have ended with the run before.

A warm worker occupies memory beside the leases from `warm_kept` to `warm_gone`, or until a `placed`
names it in `warm`: then it is the lease's. `evict` names those that are killed, `warm_start` the
one that gets a lease's first lane.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

from remote_gpu.host.leases.steps import LeaseStep
from remote_gpu.host.warm.table import WarmWorker

logger = logging.getLogger(__name__)

#: A file of this size is rotated; one old file is kept. It holds about 100,000 leases.
FILE_BYTES_MAX = 64 << 20
#: Buffer while the disk is full; further lines are lost, and gpud's log reports the loss.
_WAITING_BYTES_MAX = 4 << 20
#: Of each share.
_SHARE_FIELDS = ("device", "memory_mib", "compute_guarantee_pct", "exclusive")


class LeaseLog:
    """Appends one line per step; a step is taken whether or not the line can be written."""

    def __init__(self, path: Path, bytes_max: int = FILE_BYTES_MAX) -> None:
        """Raises OSError."""
        self._path = path
        self._bytes_max = bytes_max
        self._waiting = bytearray()
        self._full = False
        self._open()
        if self._size and os.pread(self._descriptor, 1, self._size - 1) != b"\n":
            self._waiting += b"\n"  # the run before was stopped in the middle of a line
        started = {"event": "started", "at_s": round(time.monotonic(), 6), "lease": "", "fence": 0}
        self._append(started | {"shares": []})

    def write(self, step: LeaseStep, event: str, at_s: float) -> None:
        """Record one step; on a full disk as soon as there is room."""
        line = {
            "event": event,
            "at_s": round(at_s, 6),
            "lease": step.lease,
            "fence": step.fence,
            "shares": [
                {name: getattr(share, name) for name in _SHARE_FIELDS} for share in step.shares
            ],
            "nonce": step.nonce,
            "reason": step.reason,
            "detail": step.detail,
        }
        self._append(line | ({"warm": list(step.warm)} if step.warm else {}))

    def write_warm(self, worker: WarmWorker, event: str, at_s: float, **fields: object) -> None:
        line = {
            "event": event,
            "at_s": round(at_s, 6),
            "lease": "",
            "fence": 0,
            "shares": [],
            "warm": [worker.id],
            "memory_mib": dict(worker.memory_mib),
            "tenant": worker.tenant,
            "workload": worker.workload,
            "loading_s": round(worker.loading_s, 6),
        }
        self._append(line | fields)

    def close(self) -> None:
        os.close(self._descriptor)

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._descriptor = os.open(self._path, flags, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _append(self, line: Mapping[str, object]) -> None:
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if len(self._waiting) + len(text) > _WAITING_BYTES_MAX:
            logger.error("a line of the lease log is lost", extra={"line": dict(line)})
        else:
            self._waiting += text
        try:
            if self._size >= self._bytes_max and text == self._waiting:  # the last line is whole
                self._rotate()
            written = os.write(self._descriptor, self._waiting)
        except OSError as error:  # the end of a lease must not wait for a disk
            if not self._full:
                logger.error("the lease log cannot be written", extra={"why": str(error)})
            self._full = True
            return
        self._full = False
        self._size += written
        del self._waiting[:written]

    def _rotate(self) -> None:
        with contextlib.suppress(FileNotFoundError):  # it was moved before no file could be opened
            self._path.replace(self._path.with_name(f"{self._path.name}.1"))
        before = self._descriptor
        self._open()
        os.close(before)
