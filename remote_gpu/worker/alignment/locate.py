"""Where the best local alignment of two proteins lies: Smith-Waterman with affine gaps, in numpy.

Among alignments with the best score one is chosen by a rule that no implementation detail can
bend: the lowest subject end, then the lowest query end, then the highest subject start, then the
highest query start (so the shortest on the subject).

The ends are found by one pass over the matrix, the starts by the same pass over the reversed
prefixes: an alignment with the best score inside those prefixes cannot end earlier on either
sequence, or its end would have been chosen, so every one of them ends exactly at the chosen cell.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remote_gpu.worker.alignment.scoring import BLOSUM62, GAP_EXTEND, GAP_OPEN, Codes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The chosen alignment; positions are 1-based and inclusive."""

    score: int
    query_start: int
    query_end: int
    subject_start: int
    subject_end: int


def locate(query: Codes, subject: Codes) -> Placement | None:
    """The best local alignment, or None where none scores above 0.

    Time grows with len(query) * len(subject), memory with their sum.
    """
    score, query_end, subject_end = best_end(query, subject)
    if score == 0:
        return None
    _, query_back, subject_back = best_end(query[:query_end][::-1], subject[:subject_end][::-1])
    return Placement(
        score=score,
        query_start=query_end - query_back + 1,
        query_end=query_end,
        subject_start=subject_end - subject_back + 1,
        subject_end=subject_end,
    )


def best_end(query: Codes, subject: Codes) -> tuple[int, int, int]:
    """Best score, and how many residues of query and subject lie up to where it is first reached.

    "First" is the lowest subject end, then the lowest query end. (0, 0, 0) if nothing scores.
    """
    if len(query) <= len(subject):  # rows are python steps, columns are vectorised: few rows
        score, row, column = _best_cell(query, subject, lowest_column=True)
        return score, row, column
    score, row, column = _best_cell(subject, query, lowest_column=False)
    return score, column, row


def _best_cell(rows: Codes, columns: Codes, *, lowest_column: bool) -> tuple[int, int, int]:
    """Best score and its 1-based cell; ties by lowest column, or by lowest row, then the other.

    Row by row: `h` holds the best score ending in each cell, `f` the best that ends in a gap along
    the rows. A gap along the columns is a running maximum: opening one at k costs the same for
    every later column but for the extensions, which `slope` takes out. Opening such a gap right
    after another gap of the row never pays, because opening costs at least as much as extending.
    """
    width = len(columns)
    profile = BLOSUM62[:, columns]
    slope = np.arange(width, dtype=np.int32) * GAP_EXTEND
    h = np.zeros(width + 1, dtype=np.int32)
    f = np.full(width, -GAP_OPEN, dtype=np.int32)
    best = best_row = best_column = 0
    for row, code in enumerate(rows.tolist(), 1):
        np.maximum(h[1:] - GAP_OPEN, f - GAP_EXTEND, out=f)
        current = np.maximum(h[:-1] + profile[code], f)
        np.maximum(current, 0, out=current)
        opened = np.maximum.accumulate(current + slope)
        np.maximum(current[1:], opened[:-1] - slope[:-1] - GAP_OPEN, out=current[1:])
        h[1:] = current
        column = int(current.argmax())
        score = int(current[column])
        if score > best or (lowest_column and score == best and column + 1 < best_column):
            best, best_row, best_column = score, row, column + 1
    return best, best_row, best_column
