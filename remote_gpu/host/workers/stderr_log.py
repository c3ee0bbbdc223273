"""What workers write to their standard error, in gpud's log: their words, never the log itself.

A worker that held the log's own descriptor could empty the file, or write lines as if gpud did.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os

logger = logging.getLogger(__name__)

_READ_BYTES = 1 << 14  #: at once, and in one line of the log
#: Of the log that all workers together may fill: some tracebacks; what is beyond is dropped.
_BYTES_PER_S = 1 << 16


class StderrLog:
    """The reading end of a pipe, until the last writer has closed the other."""

    def __init__(self, reading: int, who: str) -> None:
        self._reading = reading
        self._who = who
        self._since_s, self._bytes = 0.0, 0
        os.set_blocking(reading, False)
        asyncio.get_running_loop().add_reader(reading, self._hear)

    @classmethod
    def open(cls, who: str) -> tuple[StderrLog, int]:
        """With the writing end, to be inherited and then closed by the caller."""
        reading, writing = os.pipe()
        os.fchmod(writing, 0o200)  # whoever has it could open it to read: the words of the others
        return cls(reading, who), writing

    def close(self) -> None:
        """Hear no more. Safe to repeat."""
        if self._reading >= 0:
            asyncio.get_running_loop().remove_reader(self._reading)
            os.close(self._reading)
            self._reading = -1

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            words = os.read(self._reading, _READ_BYTES)
            if not words:
                self.close()
            elif self._fits(len(words)):
                text = words.decode("utf-8", "replace").rstrip()
                logger.warning("standard error of %s", self._who, extra={"words": text})

    def _fits(self, count: int) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._since_s >= 1.0:
            self._since_s, self._bytes = now_s, 0
        self._bytes += count
        return self._bytes <= _BYTES_PER_S
