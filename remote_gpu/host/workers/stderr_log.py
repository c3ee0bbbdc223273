"""The standard error of workers, passed through a pipe into gpud's log.

A worker with a descriptor of the log itself could empty the file, or write lines in gpud's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 14  #: limit of one read, and of one line of the log
#: Limit for all workers together, enough for some tracebacks; output beyond it is dropped.
_BYTES_PER_S = 1 << 16


class StderrLog:
    """The reading end of a pipe, until the last writer has closed the other end."""

    def __init__(self, reading: int, source: str) -> None:
        self._reading = reading
        self._source = source
        self._since_s, self._bytes = 0.0, 0
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, self._read)

    @classmethod
    def open(cls, source: str) -> tuple[StderrLog, int]:
        """Open a pipe; the caller passes the returned writing end on, then closes it."""
        reading, writing = os.pipe()
        os.fchmod(writing, 0o200)  # a holder could reopen it to read the output of others
        return cls(reading, source), writing

    def close(self) -> None:
        """Stop reading. Idempotent."""
        if self._reading >= 0:
            asyncio.get_running_loop().remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            output = os.read(self._reading, _READ_BYTES)
            if not output:
                self.close()
            elif self._fits(len(output)):
                text = output.decode("utf-8", "replace").rstrip()
                logger.warning("standard error of %s", self._source, extra={"output": text})

    def _fits(self, count: int) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._since_s >= 1.0:
            self._since_s, self._bytes = now_s, 0
        self._bytes += count
        return self._bytes <= _BYTES_PER_S
