"""Smith-Waterman with affine gaps as a plain loop over cells: slow, but simple.

Independent of the implementation: no numpy, no reversed pass. Every cell carries the best score
that ends there and, among alignments with it, the highest start (subject first, then query), so the
chosen alignment needs no traceback.
"""

from __future__ import annotations

from typing import NamedTuple

from operations.alignment.scoring import ALPHABET, BLOSUM62

_SCORES = {
    (a, b): int(BLOSUM62[i, j]) for i, a in enumerate(ALPHABET) for j, b in enumerate(ALPHABET)
}
_NEVER = -(10**9)


class Cell(NamedTuple):
    """Compared as a tuple: more score first, then a later start."""

    score: int
    subject_start: int
    query_start: int


class Found(NamedTuple):
    score: int
    query_start: int
    query_end: int
    subject_start: int
    subject_end: int


def _letters(sequence: str) -> str:
    return sequence.upper().translate(str.maketrans("UOJ", "***"))


def align(query: str, subject: str) -> Found | None:
    """Best score; lowest subject end, lowest query end, highest subject start, query start."""
    query, subject = _letters(query), _letters(subject)
    nowhere = Cell(_NEVER, 0, 0)
    h_row = [nowhere] * (len(subject) + 1)
    f_row = [nowhere] * (len(subject) + 1)
    best: tuple[tuple[int, int, int, int, int], Found] | None = None
    for i, a in enumerate(query, 1):
        diagonal, e = h_row[0], nowhere
        for j, b in enumerate(subject, 1):
            e = max(_less(h_row[j - 1], 11), _less(e, 1))
            f_row[j] = max(_less(h_row[j], 11), _less(f_row[j], 1))
            begun = max(diagonal, Cell(0, j, i))  # go on, or begin with this pair
            matched = begun._replace(score=begun.score + _SCORES[a, b])
            diagonal, h_row[j] = h_row[j], max(matched, e, f_row[j])
            cell = h_row[j]
            if cell.score > 0:
                rank = (cell.score, -j, -i, cell.subject_start, cell.query_start)
                if best is None or rank > best[0]:
                    found = Found(cell.score, cell.query_start, i, cell.subject_start, j)
                    best = (rank, found)
    return best[1] if best is not None else None


def _less(cell: Cell, cost: int) -> Cell:
    return cell._replace(score=cell.score - cost)
