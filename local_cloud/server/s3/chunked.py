"""The aws-chunked encoding: chunks with optional signatures, then trailers. Pure: bytes in and out.

Source: "Signature calculations for the Authorization header: transferring payload in multiple
chunks". Signatures are skipped.
"""

from __future__ import annotations

from local_cloud.model.errors import refused

_LINE_BYTES_MAX = 16 * 1024


class ChunkDecoder:
    """Feed it what arrives; it gives the payload. After the last chunk `trailers` is filled."""

    def __init__(self) -> None:
        self._pending = b""
        self._left = 0  # bytes of the current chunk that are still to come
        self._state = "size"
        self.trailers: dict[str, str] = {}

    @property
    def complete(self) -> bool:
        """True once the final chunk was seen."""
        return self._state in ("trailers", "end")

    def feed(self, data: bytes) -> list[bytes]:
        """Decode more bytes. Raises InvalidRequest for anything that is not aws-chunked."""
        self._pending += data
        found: list[bytes] = []
        while self._pending and self._step(found):
            pass
        return found

    def _step(self, found: list[bytes]) -> bool:
        """One chunk, line or part of one; False when more bytes are needed."""
        if self._state == "data":
            return self._take_data(found)
        line, separator, rest = self._pending.partition(b"\r\n")
        if not separator:
            if len(self._pending) > _LINE_BYTES_MAX:
                raise _broken()
            return False
        self._pending = rest
        if self._state == "size":
            self._begin_chunk(line)
        elif self._state == "after":
            if line:
                raise _broken()
            self._state = "size"
        elif not line:
            self._state = "end"
        else:
            name, _, value = line.decode("latin-1").partition(":")
            self.trailers[name.strip().lower()] = value.strip()
        return self._state != "end"

    def _begin_chunk(self, line: bytes) -> None:
        try:
            self._left = int(line.split(b";", 1)[0], 16)
        except ValueError:
            raise _broken() from None
        if self._left < 0:
            raise _broken()
        self._state = "data" if self._left else "trailers"

    def _take_data(self, found: list[bytes]) -> bool:
        piece, self._pending = self._pending[: self._left], self._pending[self._left :]
        self._left -= len(piece)
        found.append(piece)
        if not self._left:
            self._state = "after"
        return bool(self._pending)


def _broken() -> Exception:
    return refused("InvalidRequest", "The body is not valid aws-chunked content")
