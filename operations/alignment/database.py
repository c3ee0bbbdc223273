"""A protein database on the host: parsed and indexed once, searched with SIMD."""

from __future__ import annotations

import hashlib
import importlib.metadata
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyopal
from scoring_matrices.lib import ScoringMatrix

from operations.alignment import scoring
from operations.alignment.fasta import Protein, parse_fasta
from operations.alignment.locate import PASS_CELL_BYTES, PASS_CELLS_MAX, HitPlacement, locate

#: The libraries for scores and positions; part of every result.
IMPLEMENTATION = (
    f"pyopal {importlib.metadata.version('pyopal')} (scores), numpy {np.__version__} (positions)"
)
#: Larger files are refused: an index takes several times as much memory.
FILE_BYTES_MAX = 2**30
#: Of one `DatabaseCache`; the least recently used one is evicted.
DATABASES_MAX = 4


#: Follows the indexing of a file: its sequences, and the finished part from 0 to 1.
Indexing: TypeAlias = Callable[[int, float], None]
#: The part of the time that parsing takes; the index of pyopal is built in one call.
_PARSING = 0.5
#: The scores of a query with every subject, in their order.
Scores: TypeAlias = Callable[[bytes], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """The best alignment of a query with one subject."""

    subject: str
    placement: HitPlacement


class Database:
    """Indexed proteins in the order of their file. Immutable and thread-safe."""

    def __init__(self, proteins: tuple[Protein, ...], *, sha256: str) -> None:
        self.sha256 = sha256  #: of the file it came from
        self.proteins = proteins
        self.residues = sum(len(p.residues) for p in proteins)
        self._longest = max(len(p.residues) for p in proteins)
        self._aligner = _aligner()
        letters = [_labels(p.residues) for p in proteins]
        self._index = pyopal.Database(letters, alphabet=self._aligner.alphabet)

    @classmethod
    def from_fasta(cls, data: bytes, *, file: str, indexing: Indexing | None = None) -> Database:
        """Raises FastaError (`file:line: …`)."""
        count = data.count(b"\n>") + data.startswith(b">")
        if indexing is None:
            proteins = parse_fasta(data, file=file)
        else:
            indexing(count, 0.0)
            proteins = parse_fasta(
                data, file=file, parsed=lambda done: indexing(count, _PARSING * done / count)
            )
            indexing(count, _PARSING)
        database = cls(proteins, sha256=hashlib.sha256(data).hexdigest())
        if indexing is not None:
            indexing(count, 1.0)
        return database

    def scores(self, query: bytes) -> npt.NDArray[np.int64]:
        """Smith-Waterman score of the query with every subject, in their order."""
        found = self._aligner.align(_labels(query), self._index, mode="score")
        assert [found[0].target_index, found[-1].target_index] == [0, len(self.proteins) - 1]
        return np.fromiter((result.score for result in found), np.int64, len(found))

    def working_bytes(self, query: bytes) -> int:
        """The approximate memory of a search besides the index: results, and one pass of `locate`.

        A result of pyopal with its rank takes 200 bytes (measured).
        """
        pass_bytes = PASS_CELL_BYTES * max(PASS_CELLS_MAX, self._longest)
        return 200 * len(self.proteins) + pass_bytes + len(query)

    def search(self, query: bytes, *, top: int, scores: Scores | None = None) -> Iterator[Hit]:
        """At most `top` hits: best score first, then lowest subject index.

        `scores`: computes the scores in place of pyopal. One alignment per subject, chosen by
        `locate`; subjects without one are omitted.
        """
        found = (scores or self.scores)(query)
        ranked = np.argsort(-found, kind="stable")[:top]
        ranked = ranked[found[ranked] > 0]
        chosen = [self.proteins[i] for i in ranked]
        subjects = [scoring.encode(protein.residues) for protein in chosen]
        placements = locate(scoring.encode(query), subjects)
        for index, protein, placement in zip(ranked, chosen, placements, strict=True):
            if placement is None or placement.score != found[index]:
                raise AssertionError(
                    f"{protein.name}: score {found[index]}, but located as {placement}"
                )
            yield Hit(subject=protein.name, placement=placement)


class DatabaseCache:
    """Databases by content: a file is read again only after a change, and indexed once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_file: dict[Path, tuple[tuple[int, int, int], str]] = {}
        self._by_content: dict[str, Database] = {}

    def open(self, path: Path, indexing: Indexing | None = None) -> Database:
        """The database in a file, which `indexing` follows.

        Raises FastaError, OSError, or ValueError if it is too large.
        """
        with self._lock:
            status = path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._by_file.get(path)
            if known is not None and known[0] == stamp and known[1] in self._by_content:
                return self._used(known[1])
            if status.st_size > FILE_BYTES_MAX:
                raise ValueError(
                    f"{path.name} has {status.st_size} bytes, more than {FILE_BYTES_MAX}"
                )
            data = path.read_bytes()
            digest = hashlib.sha256(data).hexdigest()
            if digest not in self._by_content:
                self._by_content[digest] = Database.from_fasta(
                    data, file=path.name, indexing=indexing
                )
            self._by_file[path] = (stamp, digest)
            return self._used(digest)

    def databases(self) -> tuple[Database, ...]:
        """All cached databases."""
        with self._lock:
            return tuple(self._by_content.values())

    def _used(self, digest: str) -> Database:
        database = self._by_content.pop(digest)
        self._by_content[digest] = database  # last in the dict = used last
        while len(self._by_content) > DATABASES_MAX:
            del self._by_content[next(iter(self._by_content))]
        return database


#: pyopal takes letters only, not `*`: they name the rows of the matrix A, B, C, …
_LABELS = bytes.maketrans(bytes(range(24)), b"ABCDEFGHIJKLMNOPQRSTUVWX")


def _labels(residues: bytes) -> bytes:
    return scoring.encode(residues).tobytes().translate(_LABELS)


def _aligner() -> Any:
    """An aligner with our matrix; pyopal's default differs. The library has no types."""
    matrix = ScoringMatrix(scoring.BLOSUM62.astype(float).tolist(), _LABELS[:24].decode())
    return pyopal.Aligner(matrix, gap_open=scoring.GAP_OPEN, gap_extend=scoring.GAP_EXTEND)
