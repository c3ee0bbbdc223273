"""Masking of secrets in the script's output and in the runner's messages.

Each line of a value is masked wherever it appears; of a JSON object also its longer texts. Values
of fewer than CHARACTERS_MIN characters are not masked: they would hide half of every log. An
encoded value (base64, escaped, in parts) is another text and stays visible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator

MASK = "***"
#: Of a value, and of a line of one with several.
CHARACTERS_MIN = 4
#: Of a text in a JSON object: shorter ones are often words of any log (`true`, `admin`).
JSON_CHARACTERS_MIN = 8
#: A longer line is masked in pieces of this size, so that little output is held back.
PIECE_CHARACTERS = 1024


class Masker:
    """Replaces the parts of values in text and in bytes."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        found = dict.fromkeys(part for value in values for part in _parts(value))
        parts = sorted(found, key=len, reverse=True)  # the longest one that matches wins
        self.parts = tuple(part.encode() for part in parts)
        self._text = re.compile("|".join(map(re.escape, parts))) if parts else None
        self.pattern = re.compile(b"|".join(map(re.escape, self.parts))) if parts else None

    def text(self, text: str) -> str:
        """The text with MASK in place of each part."""
        return text if self._text is None else self._text.sub(MASK, text)


class MaskedStream:
    """Masks the parts of values in a stream of bytes, wherever its chunks are divided."""

    def __init__(self, masker: Masker) -> None:
        self._masker = masker
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        """The masked bytes so far; an end that may be the beginning of a part is held back."""
        pattern = self._masker.pattern
        if pattern is None:
            return chunk
        data, done = self._held + chunk, 0
        kept = self._begun(data)
        masked = bytearray()
        while (match := pattern.search(data, done)) is not None and match.start() < kept:
            masked += data[done : match.start()] + MASK.encode()
            done = match.end()
        kept = max(kept, done)
        masked += data[done:kept]
        self._held = data[kept:]
        return bytes(masked)

    def finish(self) -> bytes:
        """The masked rest."""
        held, self._held = self._held, b""
        pattern = self._masker.pattern
        return held if pattern is None else pattern.sub(MASK.encode(), held)

    def _begun(self, data: bytes) -> int:
        """The first place at which the end of `data` is the beginning of a part."""
        first = len(data)
        for part in self._masker.parts:
            at = data.find(part[:1], max(0, len(data) - len(part) + 1), first)
            while at >= 0:
                if part.startswith(data[at:]):
                    first = at
                    break
                at = data.find(part[:1], at + 1, first)
        return first


def masks(value: str) -> bool:
    """Whether anything of a value is masked."""
    return next(_parts(value), None) is not None


def _parts(value: str) -> Iterator[str]:
    lines = [line.strip() for line in value.splitlines()]
    texts = [line for line in lines if len(line) >= CHARACTERS_MIN]
    texts += [text for text in _texts_of_json(value) if len(text) >= JSON_CHARACTERS_MIN]
    for text in texts:
        for at in range(0, len(text), PIECE_CHARACTERS):
            piece = text[at : at + PIECE_CHARACTERS]
            if len(piece) >= CHARACTERS_MIN:
                yield piece


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
