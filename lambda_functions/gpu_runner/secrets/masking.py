"""Masking of secrets in the script's output and in the runner's messages.

The parts of a value are its lines and, of a JSON object, also its longer texts. A part of fewer
than RUN_BYTES is masked where it appears whole; of a longer one every run of RUN_BYTES or more
is, also where it is printed from its middle or wrapped. Values of fewer than CHARACTERS_MIN
characters are not masked: they would hide half of every log. An encoded value (base64, escaped)
is another text and stays visible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Set

MASK = "***"
#: Of a value, and of a line of one with several.
CHARACTERS_MIN = 4
#: Of a text in a JSON object: shorter ones are often words of any log (`true`, `admin`).
JSON_CHARACTERS_MIN = 8
#: A longer part is found by its windows, which follow one another: any run of RUN_BYTES has one.
WINDOW_BYTES = 32
RUN_BYTES = 2 * WINDOW_BYTES - 1
#: Whether a byte is masked depends on so many bytes before it and behind it, and on one line.
_REACH_BYTES = RUN_BYTES - 1
_SIDE_BYTES = WINDOW_BYTES - 1

#: What is before and behind a text wherever a secret has it.
Sides = Set[tuple[bytes, bytes]]


class Masker:
    """Finds the parts of values."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        parts = {part.encode() for value in values for part in _parts(value)}
        short: dict[bytes, Sides] = {}
        windows: dict[bytes, set[tuple[bytes, bytes]]] = {}
        for part in parts:
            if len(part) < RUN_BYTES:
                short[part] = frozenset({(b"", b"")})
                continue
            for at in range(0, len(part) - WINDOW_BYTES + 1, WINDOW_BYTES):
                end = at + WINDOW_BYTES
                sides = part[max(0, at - _SIDE_BYTES) : at], part[end : end + _SIDE_BYTES]
                windows.setdefault(part[at:end], set()).add(sides)
        self._indexes = [_Index(known) for known in (short, windows) if known]

    def __bool__(self) -> bool:
        return bool(self._indexes)

    def text(self, text: str) -> str:
        """The text with MASK in place of everything masked."""
        data, stream = text.encode("utf-8", "surrogatepass"), MaskedStream(self)
        masked = stream.feed(data) + stream.finish()
        return text if masked == data else masked.decode("utf-8", "replace")

    def spans(self, data: bytes) -> list[tuple[int, int]]:
        """The beginning and the end of everything masked, in order; they may overlap."""
        return sorted(span for index in self._indexes for span in index.spans(data))


class _Index:
    """Finds texts by their first bytes: their number and size do not change the cost of a place."""

    def __init__(self, known: Mapping[bytes, Sides]) -> None:
        self._known = known
        self._head_bytes = min(map(len, known))
        self._sizes: dict[bytes, list[int]] = {}  #: of the texts that begin so, the largest first
        for head, size in sorted({(one[: self._head_bytes], -len(one)) for one in known}):
            self._sizes.setdefault(head, []).append(-size)
        columns = (re.escape(bytes(set(column))) for column in zip(*self._sizes, strict=True))
        self._possible = re.compile(b"(?=[%b])" % b"][".join(columns))

    def spans(self, data: bytes) -> Iterator[tuple[int, int]]:
        for place in self._possible.finditer(data):
            first = place.start()
            for size in self._sizes.get(data[first : first + self._head_bytes], ()):
                if sides := self._known.get(data[first : first + size]):
                    yield _widened(data, first, first + size, sides)
                    break


class MaskedStream:
    """Masks the parts of values in a stream of bytes, wherever its chunks are divided.

    At most _REACH_BYTES are held back, of a line that has not ended.
    """

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._data = b""  #: the last bytes that were returned, and those held back
        self._done = 0  #: how many of `_data` were returned
        self._open = False  #: the last of them was masked

    def feed(self, chunk: bytes) -> bytes:
        """The masked bytes up to what the next chunk may yet change."""
        if not self._masker:
            return chunk
        self._data += chunk
        line = 1 + max(self._data.rfind(b"\n"), self._data.rfind(b"\r"))
        return self._masked(max(self._done, line, len(self._data) - _REACH_BYTES))

    def finish(self) -> bytes:
        """The masked rest."""
        return self._masked(len(self._data))

    def _masked(self, until: int) -> bytes:
        masked, at = bytearray(), self._done
        for span in self._masker.spans(self._data):
            first, end = (min(place, until) for place in span)
            if at < first:
                masked += self._data[at:first]
                at, self._open = first, False
            if at < end:
                masked += b"" if self._open else MASK.encode()
                at, self._open = end, True
        if at < until:
            masked += self._data[at:until]
            self._open = False
        kept = max(0, until - _REACH_BYTES)
        self._data, self._done = self._data[kept:], until - kept
        return bytes(masked)


def masks(value: str) -> bool:
    """Whether anything of a value is masked."""
    return next(_parts(value), None) is not None


def _parts(value: str) -> Iterator[str]:
    lines = [line.strip() for line in value.splitlines()]
    texts = [line for line in lines if len(line) >= CHARACTERS_MIN]
    texts += [text for text in _texts_of_json(value) if len(text) >= JSON_CHARACTERS_MIN]
    yield from texts


def _texts_of_json(value: str) -> Iterator[str]:
    """The texts directly in a JSON object: Secrets Manager keeps several values as one."""
    if not value.lstrip().startswith("{"):
        return
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return
    for text in parsed.values() if isinstance(parsed, dict) else ():
        if isinstance(text, str):
            yield from text.splitlines()


def _widened(data: bytes, first: int, end: int, sides: Sides) -> tuple[int, int]:
    """A find with as much of its sides as `data` has; no character of UTF-8 is divided."""
    before, behind = data[max(0, first - _SIDE_BYTES) : first][::-1], data[end : end + _SIDE_BYTES]
    first -= max(_common_bytes(before, one[::-1]) for one, _ in sides)
    end += max(_common_bytes(behind, one) for _, one in sides)
    while first < end and data[first] & 0xC0 == 0x80:
        first += 1
    while end < len(data) and data[end] & 0xC0 == 0x80:
        end -= 1
    return first, end


def _common_bytes(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
