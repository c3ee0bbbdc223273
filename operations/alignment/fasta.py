"""A strict reader of protein sequences in FASTA: errors name file and line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

#: The letters of a sequence in upper case; lower case is converted. `*` is a stop.
LETTERS = b"ABCDEFGHIKLMNPQRSTVWXYZUOJ*"
#: The longest known protein has some 45,000 residues.
RESIDUES_MAX = 100_000
PARSED_EVERY = 1000  #: sequences between two calls of `parsed`
_EITHER_CASE = LETTERS + LETTERS.lower()


class FastaError(ValueError):
    """The text is not FASTA of proteins; the message begins with `file:line:`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Protein:
    """One sequence."""

    name: str  #: the first word of its header, as in `sp|P02654|APOC1_HUMAN`
    residues: bytes  #: upper case, letters of `LETTERS` only, never empty


def parse_fasta(
    data: bytes,
    *,
    file: str,
    residues_max: int = RESIDUES_MAX,
    parsed: Callable[[int], None] | None = None,
) -> tuple[Protein, ...]:
    """All sequences, in order of the file. `file` names the text in errors; `parsed` is called
    with the number of sequences so far, every `PARSED_EVERY`.

    Accepts upper and lower case, LF or CRLF, blank lines and lines of any length. Raises FastaError
    without a sequence, and for an empty sequence, one above `residues_max`, a nameless or repeated
    header, text before the first header, and letters that are not residues.
    """
    proteins: list[Protein] = []
    seen: dict[str, int] = {}
    for line, header, chunks in _records(data, file):
        name = _name(header, file, line)
        if name in seen:
            raise FastaError(f"{file}:{line}: {name!r} occurs already in line {seen[name]}")
        seen[name] = line
        residues = b"".join(chunks)
        if not residues:
            raise FastaError(f"{file}:{line}: {name!r} has no residues")
        if len(residues) > residues_max:
            raise FastaError(
                f"{file}:{line}: {name!r} has {len(residues)} residues, more than {residues_max}"
            )
        proteins.append(Protein(name=name, residues=residues))
        if parsed is not None and not len(proteins) % PARSED_EVERY:
            parsed(len(proteins))
    if not proteins:
        raise FastaError(f"{file}:1: no sequence; begin each sequence with a line '>name'")
    return tuple(proteins)


def _records(data: bytes, file: str) -> Iterator[tuple[int, bytes, list[bytes]]]:
    """Yield the header's line number, the header without `>`, and the lines of residues."""
    start, header, chunks = 0, b"", list[bytes]()
    for number, line in enumerate(data.split(b"\n"), 1):
        text = line.strip()
        if text.startswith(b">"):
            if start:
                yield start, header, chunks
            start, header, chunks = number, text[1:], []
        elif text and not start:
            raise FastaError(f"{file}:{number}: expected a header line '>name' first")
        elif text:
            chunks.append(_residues(text, file, number))
    if start:
        yield start, header, chunks


def _name(header: bytes, file: str, line: int) -> str:
    try:
        words = header.decode("utf-8").split(None, 1)
    except UnicodeDecodeError:
        raise FastaError(f"{file}:{line}: the header is not UTF-8") from None
    if not words or not words[0].isprintable():
        raise FastaError(f"{file}:{line}: a header needs a name after '>'")
    return words[0]


def _residues(text: bytes, file: str, line: int) -> bytes:
    if foreign := text.translate(None, _EITHER_CASE):
        first = foreign[0]
        shown = repr(chr(first)) if 32 < first < 127 else f"'\\x{first:02x}'"
        column = text.index(foreign[:1]) + 1
        raise FastaError(f"{file}:{line}: {shown} (column {column}) is not a residue")
    return text.upper()
