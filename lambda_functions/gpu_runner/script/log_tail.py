"""The output of the script: echoed to the function's log, its end kept for the result."""

from __future__ import annotations

import codecs
import sys

from contract.result import LOG_TAIL_BYTES_MAX
from lambda_functions.gpu_runner.secrets.masking import MaskedStream, Masker

#: An endless output must not fill the account's log; the tail is kept beyond this limit too.
ECHO_BYTES_MAX = 4 * 2**20


class LogTail:
    """The end of stdout and stderr together, in the order of arrival."""

    def __init__(self, echo_bytes_max: int = ECHO_BYTES_MAX, masker: Masker | None = None) -> None:
        """`masker`: of the values that neither the log nor the tail may show."""
        self._echo_bytes_max = echo_bytes_max
        self._masked = MaskedStream(masker or Masker())
        self._tail = bytearray()
        self._seen_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line_open = False  #: the last echo did not end its line

    def feed(self, chunk: bytes) -> None:
        """Echo `chunk` within the limit, and keep the newest LOG_TAIL_BYTES_MAX bytes of all."""
        self._take(self._masked.feed(chunk))

    def _take(self, chunk: bytes) -> None:
        room = self._echo_bytes_max - self._seen_bytes
        if room > 0:
            self._echo(self._decoder.decode(chunk[:room]))
            if len(chunk) >= room:
                self._echo(f"\n[log: over {self._echo_bytes_max} bytes, the rest is not shown]\n")
        self._seen_bytes += len(chunk)
        self._tail += chunk
        del self._tail[: max(0, len(self._tail) - LOG_TAIL_BYTES_MAX)]

    def text(self) -> str:
        """The tail, without a character cut at its start; other malformed bytes are marked."""
        start = 0
        if self._seen_bytes > len(self._tail):
            while start < min(4, len(self._tail)) and self._tail[start] & 0xC0 == 0x80:
                start += 1
        return self._tail[start:].decode("utf-8", "replace")

    def finish(self) -> None:
        """End the last line: the next record of the function's log begins a new one."""
        self._take(self._masked.finish())
        self._echo(self._decoder.decode(b"", final=True))
        if self._line_open:
            self._echo("\n")
        sys.stdout.flush()

    def _echo(self, text: str) -> None:
        if text:
            sys.stdout.write(text)
            self._line_open = not text.endswith("\n")
