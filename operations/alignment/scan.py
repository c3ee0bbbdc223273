"""Smith-Waterman scores by a kernel, on any device with a backend for OpenCL C.

Subjects are packed once per database: sorted by length, in groups of 16 of about the same length,
padded with a letter that ends every alignment. A CPU computes a group in the lanes of one vector
(16 bits per score; inter-sequence with a profile per block of columns: Rognes, "Faster
Smith-Waterman database searches with inter-sequence SIMD parallelisation", BMC Bioinformatics
2011). A card computes two subjects per work-item, in the halves of 32-bit words, with a tile of the
query in registers (after Schmidt et al., "CUDASW++4.0", BMC Bioinformatics 2024). The few scores
above 16 bits are computed again with 32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from operations.alignment.scoring import BLOSUM62, GAP_EXTEND, GAP_OPEN, Codes
from remote_gpu.api import Backend, Call, Calls, Quota, Scalar

Numbers: TypeAlias = npt.NDArray[np.int32]

GROUP = 16  #: subjects side by side: the lanes of a 256-bit vector of 16-bit scores
BLOCK = 4  #: columns per pass over the query; the kernel is written for this many
LETTERS = len(BLOSUM62) + 1
_PADDING = len(BLOSUM62)
_PADDED = np.full((LETTERS, LETTERS), -1000, np.int16)
_PADDED[:-1, :-1] = BLOSUM62
#: A block may add BLOCK steps of the best pair to the score it began with.
LIMIT = 2**15 - 1 - (BLOCK + 1) * int(BLOSUM62.max())
TILE = 32  #: residues of the query in a card's registers: 64 of at most 255
#: As LIMIT, of a tile.
TILE_LIMIT = 2**15 - 1 - (TILE + 1) * int(BLOSUM62.max())
#: Of the unfinished rows of all work-items of a host, and of a card (two subjects of 400 residues
#: take 3,200 bytes, and a large card runs 250,000 work-items at once).
SCRATCH_BYTES_MAX = 64 * 2**20
CARD_SCRATCH_BYTES_MAX = 512 * 2**20
#: Enough for the cores of any host.
VECTOR_WORKERS = 64
#: Enough to fill a card.
SCALAR_WORKERS = 32_768
#: Work-items of a group on a card: four warps, whose 127 registers each fit any architecture.
CARD_GROUP = 128
_OPTIONS = {
    "GROUP": GROUP,
    "LETTERS": LETTERS,
    "GAP_OPEN": GAP_OPEN,
    "GAP_EXTEND": GAP_EXTEND,
}
_BLOCK_OPTIONS = {"BLOCK": BLOCK, "LIMIT": LIMIT, "UNREACHED": "(cell)(-30000)"}
_TILE_OPTIONS = {"TILE": TILE, "LIMIT": TILE_LIMIT, "UNREACHED": -30000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Packed subjects for the kernel. Immutable; made before any lease, shared by all."""

    order: npt.NDArray[np.int64]  #: subject of each slot: longest first
    residues: Codes  #: of all groups, GROUP residues side by side
    starts: Numbers  #: of each group in `residues`
    columns: Numbers  #: of each group: residues of its longest, rounded up to BLOCK


def pack(subjects: Sequence[Codes]) -> Packed:
    """Pack the subjects in groups. Raises ValueError if 32-bit offsets are too small."""
    lengths = np.fromiter(map(len, subjects), np.int64, len(subjects))
    order = np.argsort(-lengths, kind="stable")
    longest = lengths[order[::GROUP]]
    columns = (longest + BLOCK - 1) // BLOCK * BLOCK
    ends = np.cumsum(columns * GROUP)
    if ends[-1] >= 2**31:
        raise ValueError(f"{ends[-1]} packed residues, more than {2**31 - 1}")
    starts = ends - columns * GROUP
    residues = np.full(int(ends[-1]), _PADDING, np.uint8)
    for slot, index in enumerate(order):
        first = int(starts[slot // GROUP]) + slot % GROUP
        residues[first : first + GROUP * int(lengths[index]) : GROUP] = subjects[index]
    return Packed(
        order=order,
        residues=residues,
        starts=starts.astype(np.int32),
        columns=columns.astype(np.int32),
    )


class Scanner:
    """One packed database on one device. Thread-safe; scans are serialised."""

    def __init__(self, backend: Backend, quota: Quota, packed: Packed, *, vectors: bool) -> None:
        """`vectors`: the device is a CPU. Raises OpFailed(ENOMEM, ENOTSUP, EINVAL)."""
        self._calls = Calls(backend)
        self._quota = quota
        self._packed = packed
        self._vectors = vectors
        with ExitStack() as held:
            resident = Call(self._calls, quota, held)
            tables = (packed.residues, packed.starts, packed.columns, _PADDED)
            self._tables = [resident.stored(table) for table in tables]
            self._resident = held.pop_all()

    def scores(self, query: Codes) -> npt.NDArray[np.int64]:
        """Score of the query with every subject, in their order before packing.

        Raises OpFailed(ENOMEM, EIO).
        """
        found = self._scores(query)
        scores = np.zeros(len(self._packed.order), np.int64)
        scores[self._packed.order] = found[: len(scores)]
        return scores

    def close(self) -> None:
        """Free the device's memory."""
        self._resident.close()

    def _scores(self, query: Codes) -> Numbers:
        if self._vectors:
            groups = np.arange(len(self._packed.columns), dtype=np.int32)
            found, limit, together = self._scan(query, groups, lanes=GROUP), LIMIT, GROUP
        else:
            found, limit, together = self._scan_pairs(query), TILE_LIMIT, 2
        (wide,) = np.nonzero((found.reshape(-1, together) >= limit).any(axis=1))
        again = (wide[:, None] * together + np.arange(together)).ravel().astype(np.int32)
        if again.size:
            found[again] = self._scan(query, again, lanes=1)[again]
        return found

    def _scan_pairs(self, query: Codes) -> Numbers:
        """Scores with at most 16 bits, two subjects per work-item."""
        slots = len(self._packed.columns) * GROUP
        residues, starts, columns, matrix = self._tables
        limit_bytes = self._quota.limit_bytes or CARD_SCRATCH_BYTES_MAX
        batches = _batches(self._packed, min(CARD_SCRATCH_BYTES_MAX, limit_bytes // 4))
        with self._calls.call(self._quota) as call:
            stored_query = call.stored(query)
            rows = call.memory(max(batch.row_bytes for batch in batches))
            scores = call.memory(slots * 2)
            for batch in batches:
                arguments = (
                    residues,
                    starts,
                    columns,
                    _int(batch.first),
                    _int(batch.groups),
                    stored_query,
                    _int(len(query)),
                    matrix,
                    rows,
                    scores,
                )
                items = batch.groups * GROUP // 2
                call.launch(source_of_pairs(), "scan_pairs", arguments, items, CARD_GROUP)
            return np.frombuffer(call.result(scores), np.int16)[:slots].astype(np.int32)

    def _scan(self, query: Codes, tasks: Numbers, *, lanes: int) -> Numbers:
        cell = np.dtype(np.int16 if lanes == GROUP else np.int32)
        slots = len(self._packed.columns) * GROUP
        workers = _workers(len(query), lanes, cell.itemsize, len(tasks))
        group = 1 if self._vectors else CARD_GROUP
        workers = -(-workers // group) * group
        residues, starts, columns, matrix = self._tables
        with self._calls.call(self._quota) as call:
            scratch = call.memory(2 * len(query) * workers * lanes * cell.itemsize)
            scores = call.memory(slots * cell.itemsize)
            arguments = (
                residues,
                starts,
                columns,
                call.stored(tasks),
                _int(len(tasks)),
                call.stored(query),
                _int(len(query)),
                matrix,
                scratch,
                scores,
            )
            call.launch(source(lanes), "scan", arguments, workers, group)
            return np.frombuffer(call.result(scores), cell)[:slots].astype(np.int32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    """Neighbouring groups of subjects that a card computes in one launch."""

    first: int
    groups: int
    row_bytes: int  #: of their unfinished rows: two words of 4 bytes per column and pair


def _batches(packed: Packed, bytes_max: int) -> list[_Batch]:
    """All groups in order; a batch above the limit has one group only."""
    row_bytes = packed.columns.astype(np.int64) * (GROUP // 2) * 8
    batches, first, total = [], 0, 0
    for group, size in enumerate(row_bytes.tolist()):
        if total and total + size > bytes_max:
            batches.append(_Batch(first=first, groups=group - first, row_bytes=total))
            first, total = group, 0
        total += size
    return [*batches, _Batch(first=first, groups=len(row_bytes) - first, row_bytes=total)]


def source(lanes: int) -> str:
    """The kernel `scan` with this number of subjects per work-item: GROUP or 1."""
    return _source("scan.cl", {"LANES": lanes, **_OPTIONS, **_BLOCK_OPTIONS})


def source_of_pairs() -> str:
    """The kernel `scan_pairs`, for cards."""
    return _source("scan_pairs.cl", {**_OPTIONS, **_TILE_OPTIONS})


def _source(name: str, options: Mapping[str, object]) -> str:
    defines = "".join(f"#define {name} {value}\n" for name, value in options.items())
    return defines + files(__package__).joinpath(name).read_text(encoding="ascii")


def _workers(length: int, lanes: int, cell_bytes: int, tasks: int) -> int:
    room = SCRATCH_BYTES_MAX // (2 * length * lanes * cell_bytes)
    most = VECTOR_WORKERS if lanes == GROUP else SCALAR_WORKERS
    return max(1, min(most, room, tasks))


def _int(value: int) -> Scalar:
    return Scalar(kind="int", value=value)
