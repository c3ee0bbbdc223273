"""Smith-Waterman scores by a kernel, on any device with a backend for OpenCL C.

Subjects are packed once per database: sorted by length, in groups of 16 of about the same length,
padded with a letter that ends every alignment. A CPU computes a group in the lanes of one vector
(16 bits per score; inter-sequence with a profile per block of columns: Rognes, "Faster
Smith-Waterman database searches with inter-sequence SIMD parallelisation", BMC Bioinformatics
2011), a card one subject per work-item (32 bits). The few scores above 16 bits are computed again
with 32.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.resources import files
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from remote_gpu.wire.graphs import Scalar
from remote_gpu.worker.alignment.scoring import BLOSUM62, GAP_EXTEND, GAP_OPEN, Codes
from remote_gpu.worker.backends.base import Backend, DeviceMemory, Program
from remote_gpu.worker.memory.quota import Quota

Numbers: TypeAlias = npt.NDArray[np.int32]

GROUP = 16  #: subjects side by side: the lanes of a 256-bit vector of 16-bit scores
BLOCK = 4  #: columns per pass over the query; the kernel is written for this many
LETTERS = len(BLOSUM62) + 1
_PADDING = len(BLOSUM62)
_PADDED = np.full((LETTERS, LETTERS), -1000, np.int16)
_PADDED[:-1, :-1] = BLOSUM62
#: A block may add BLOCK steps of the best pair to the score it began with.
LIMIT = 2**15 - 1 - (BLOCK + 1) * int(BLOSUM62.max())
#: Of the unfinished rows of all work-items.
SCRATCH_BYTES_MAX = 64 * 2**20
#: Enough for the cores of any host.
VECTOR_WORKERS = 64
#: Enough to fill a card.
SCALAR_WORKERS = 32_768
_OPTIONS = {
    "GROUP": GROUP,
    "BLOCK": BLOCK,
    "LETTERS": LETTERS,
    "LIMIT": LIMIT,
    "GAP_OPEN": GAP_OPEN,
    "GAP_EXTEND": GAP_EXTEND,
    "UNREACHED": "(cell)(-30000)",
}


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
        self._backend = backend
        self._quota = quota
        self._packed = packed
        self._vectors = vectors
        self._lock = threading.Lock()
        self._programs: dict[int, Program] = {}
        self._resident = ExitStack()
        try:
            tables = (packed.residues, packed.starts, packed.columns, _PADDED)
            self._tables = [self._stored(self._resident, table) for table in tables]
        except BaseException:
            self.close()
            raise

    def scores(self, query: Codes) -> npt.NDArray[np.int64]:
        """Score of the query with every subject, in their order before packing.

        Raises OpFailed(ENOMEM, EIO).
        """
        with self._lock:
            found = self._scores(query)
        scores = np.zeros(len(self._packed.order), np.int64)
        scores[self._packed.order] = found[: len(scores)]
        return scores

    def close(self) -> None:
        """Free the device's memory."""
        self._resident.close()

    def _scores(self, query: Codes) -> Numbers:
        """The scores of every slot."""
        slots = len(self._packed.columns) * GROUP
        if self._vectors:
            found = self._scan(query, np.arange(slots // GROUP, dtype=np.int32), lanes=GROUP)
            (wide,) = np.nonzero((found.reshape(-1, GROUP) >= LIMIT).any(axis=1))
            again = (wide[:, None] * GROUP + np.arange(GROUP)).ravel().astype(np.int32)
        else:
            found, again = np.zeros(slots, np.int32), np.arange(slots, dtype=np.int32)
        if again.size:
            found[again] = self._scan(query, again, lanes=1)[again]
        return found

    def _scan(self, query: Codes, tasks: Numbers, *, lanes: int) -> Numbers:
        cell = np.dtype(np.int16 if lanes == GROUP else np.int32)
        slots = len(self._packed.columns) * GROUP
        workers = _workers(len(query), lanes, cell.itemsize, len(tasks))
        residues, starts, columns, matrix = self._tables
        with ExitStack() as held:
            scratch_bytes = 2 * len(query) * workers * lanes * cell.itemsize
            scratch = self._held(held, scratch_bytes)
            scores = self._held(held, slots * cell.itemsize)
            arguments = (
                residues,
                starts,
                columns,
                self._stored(held, tasks),
                _int(len(tasks)),
                self._stored(held, query),
                _int(len(query)),
                matrix,
                scratch,
                scores,
            )
            self._program(lanes).kernel("scan", arguments).enqueue((workers,), (1,))
            self._backend.finish()
            return np.frombuffer(scores.read(), cell)[:slots].astype(np.int32)

    def _program(self, lanes: int) -> Program:
        if lanes not in self._programs:
            self._programs[lanes] = self._backend.build(source(lanes))
        return self._programs[lanes]

    def _stored(self, owner: ExitStack, values: npt.NDArray[np.generic]) -> DeviceMemory:
        memory = self._held(owner, values.nbytes)
        memory.write(np.ascontiguousarray(values).data.cast("B"))
        return memory

    def _held(self, owner: ExitStack, size: int) -> DeviceMemory:
        memory = self._backend.allocate(self._quota, size)
        owner.callback(memory.close)
        return memory


def source(lanes: int) -> str:
    """The kernel with this number of subjects per work-item: GROUP or 1."""
    options = {"LANES": lanes, **_OPTIONS}
    defines = "".join(f"#define {name} {value}\n" for name, value in options.items())
    return defines + files(__package__).joinpath("scan.cl").read_text(encoding="ascii")


def _workers(length: int, lanes: int, cell_bytes: int, tasks: int) -> int:
    room = SCRATCH_BYTES_MAX // (2 * length * lanes * cell_bytes)
    most = VECTOR_WORKERS if lanes == GROUP else SCALAR_WORKERS
    return max(1, min(most, room, tasks))


def _int(value: int) -> Scalar:
    return Scalar(kind="int", value=value)
