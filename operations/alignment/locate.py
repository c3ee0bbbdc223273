"""The position of the best local alignment: Smith-Waterman with affine gaps, in numpy.

Among alignments with the best score the rule is, independent of the implementation: the lowest
subject end, then the lowest query end, then the highest subject start, then the highest query start
(so the shortest on the subject).

The ends are found by one pass over the matrix, the starts by the same pass over the reversed
prefixes: an alignment with the best score inside those prefixes cannot end earlier on either
sequence, or its end would have been chosen, so every one of them ends exactly at the chosen cell.

One pass processes many subjects, padded to the longest: the cost of a pass over a single pair is
numpy's overhead per call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from operations.alignment.scoring import BLOSUM62, GAP_EXTEND, GAP_OPEN, Codes

Numbers: TypeAlias = npt.NDArray[np.int32]

#: Subjects times residues of the longest, in one pass; a longer subject has its own pass.
PASS_CELLS_MAX = 2**17
#: Memory of a pass per such cell, measured: 25 scores of 4 bytes, and some ten vectors.
PASS_CELL_BYTES = 160
_PADDING = len(BLOSUM62)
#: Padding has such low scores that no alignment includes it.
_PADDED = np.pad(BLOSUM62, (0, 1), constant_values=-10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class HitPlacement:
    """The chosen alignment; positions are 1-based and inclusive."""

    score: int
    query_start: int
    query_end: int
    subject_start: int
    subject_end: int


def locate(query: Codes, subjects: Sequence[Codes]) -> Iterator[HitPlacement | None]:
    """The best local alignment of the query with each subject; None where none scores above 0.

    Time grows with the cells of all matrices; memory with PASS_CELLS_MAX or the longest subject.
    """
    for batch in _batches(subjects):
        scores, query_ends, subject_ends = _best_cells([query] * len(batch), batch)
        ends = list(zip(query_ends.tolist(), subject_ends.tolist(), strict=True))
        queries_back = [query[:end][::-1] for end, _ in ends]
        subjects_back = [s[:end][::-1] for s, (_, end) in zip(batch, ends, strict=True)]
        _, query_lengths, subject_lengths = _best_cells(queries_back, subjects_back)
        for i, (query_end, subject_end) in enumerate(ends):
            yield (
                None
                if scores[i] == 0
                else HitPlacement(
                    score=int(scores[i]),
                    query_start=query_end - int(query_lengths[i]) + 1,
                    query_end=query_end,
                    subject_start=subject_end - int(subject_lengths[i]) + 1,
                    subject_end=subject_end,
                )
            )


def _batches(subjects: Sequence[Codes]) -> Iterator[list[Codes]]:
    batch, width = list[Codes](), 0
    for subject in subjects:
        wider = max(width, len(subject))
        if batch and wider * (len(batch) + 1) > PASS_CELLS_MAX:
            yield batch
            batch, wider = [], len(subject)
        batch.append(subject)
        width = wider
    if batch:
        yield batch


def _best_cells(
    queries: Sequence[Codes], subjects: Sequence[Codes]
) -> tuple[Numbers, Numbers, Numbers]:
    """For each pair the best score and its cell, as numbers of residues of query and subject: the
    lowest on the subject, then the lowest on the query. Zeros for a score of 0.

    One step per residue of the query. `h` holds the best score ending in each cell, `f` the best
    that ends in a gap along the query. A gap along the subject is a running maximum: opening one at
    k costs the same for every later residue but for the extensions, which `slope` takes out.
    Opening such a gap right after another one is never better: opening costs at least as much as
    extending.
    """
    rows, columns = _padded(queries).T, _padded(subjects)
    pairs, width = columns.shape
    every = np.arange(pairs)
    number = _number(len(rows), width)
    profile = _PADDED.astype(number)[:, columns]
    slope = np.arange(0, width * GAP_EXTEND, GAP_EXTEND, dtype=number)
    h = np.zeros((pairs, width + 1), dtype=number)
    f = np.full((pairs, width), -GAP_OPEN, dtype=number)
    best, best_row, best_column = np.zeros((3, pairs), dtype=np.int32)
    for row, codes in enumerate(rows, 1):
        np.maximum(h[:, 1:] - GAP_OPEN, f - GAP_EXTEND, out=f)
        current = np.maximum(h[:, :-1] + profile[codes, every], f)
        np.maximum(current, 0, out=current)
        opened = np.maximum.accumulate(current + slope, axis=1)
        opened -= slope + GAP_OPEN
        np.maximum(current[:, 1:], opened[:, :-1], out=current[:, 1:])
        h[:, 1:] = current
        column = current.argmax(axis=1)
        score = current[every, column]
        better = (score > best) | ((score == best) & (score > 0) & (column + 1 < best_column))
        if better.any():
            best[better], best_row[better] = score[better], row
            best_column[better] = column[better] + 1
    return best, best_row, best_column


def _number(length: int, width: int) -> type[np.int16] | type[np.int32]:
    """The narrowest type that holds all scores plus slope: half the width, half the time."""
    most = int(BLOSUM62.max()) * min(length, width) + GAP_EXTEND * width
    return np.int16 if most + GAP_OPEN < np.iinfo(np.int16).max else np.int32


def _padded(sequences: Sequence[Codes]) -> Codes:
    table = np.full((len(sequences), max(map(len, sequences))), _PADDING, dtype=np.uint8)
    for row, sequence in zip(table, sequences, strict=True):
        row[: len(sequence)] = sequence
    return table
