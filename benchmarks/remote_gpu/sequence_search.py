"""The operation sequence_search: correctness of its scores, and its cost over a bare SIMD scan.

    python -m benchmarks.remote_gpu.sequence_search [--json] [--database FASTA] [--queries FASTA]

Without files: the example's 150 proteins and 120 shuffled copies of each (seeded), 5.3 million
residues, searched with the example's queries. Positions cost the same whatever the size of the
database, so the share of the scan grows with it. A larger real set: Debian's `mmseqs2-examples` has
20,000 proteins (`DB.fasta.gz`, to be unpacked). Rates are billions of cells (query residue x
subject residue) per second of this process's CPU time. `pocl_ratio` is the kernel of
`alignment.scan` on the host's OpenCL CPU device against pyopal, without positions; it is left out
where there is no such device. `benchmarks.remote_gpu.search_curve` has whole jobs.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import parasail

from benchmarks.measure import times_s
from benchmarks.report import ROOT, Figure, arguments, show
from operations.alignment import scan, scoring
from operations.alignment.database import Database
from operations.alignment.fasta import Protein, parse_fasta
from operations.plugins.sequence_search import SequenceSearch
from remote_gpu.worker.backends.base import HostBackend
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context

EXAMPLE = ROOT / "fdl/examples/sequence-search"
COPIES = 120
REPEATS = 3
#: parasail aligns one pair per call: this many subjects per query are enough to compare with.
PARASAIL_SUBJECTS = 2000


def enlarged(data: bytes) -> bytes:
    """The proteins and shuffled copies: equal lengths and composition, no relation."""
    stream = random.Random(1)
    lines = [data]
    for protein in parse_fasta(data, file="database"):
        for copy in range(COPIES):
            residues = bytes(stream.sample(protein.residues, len(protein.residues)))
            lines.append(f">shuffled{copy}-{protein.name}\n".encode() + residues + b"\n")
    return b"".join(lines)


def cpu_s(work: Callable[[], object]) -> float:
    """CPU seconds of the fastest of some repeats."""
    return min(times_s(work, REPEATS, time.process_time))


def parasail_scores(query: Protein, subjects: tuple[Protein, ...]) -> list[int]:
    """Scores by a library that the operation does not use."""
    profile = parasail.profile_create_sat(
        scoring.scored_letters(query.residues).decode(), parasail.blosum62
    )
    return [
        parasail.sw_striped_profile_sat(
            profile, scoring.scored_letters(s.residues).decode(), 11, 1
        ).score
        for s in subjects
    ]


def measure(database_path: Path, fasta: bytes) -> list[Figure]:
    """All figures for one database and one file of queries."""
    operation, context = SequenceSearch(), Context(data={"measured": database_path})
    database = Database.from_fasta(database_path.read_bytes(), file=database_path.name)
    operation.prepare(context)
    queries = parse_fasta(fasta, file="queries")
    subjects = database.proteins[:PARASAIL_SUBJECTS]
    equal = compared = 0
    for query in queries:
        theirs = parasail_scores(query, subjects)
        ours = database.scores(query.residues)
        equal += sum(a == b for a, b in zip(ours, theirs, strict=False))
        compared += len(theirs)
    cells = sum(len(q.residues) for q in queries) * database.residues
    scan_s = cpu_s(lambda: [database.scores(q.residues) for q in queries])
    args = {"database": "measured", "top": 10}
    whole_s = cpu_s(lambda: operation.run(context, args, [memoryview(fasta)]))
    pairs_s = cpu_s(lambda: [parasail_scores(q, subjects) for q in queries])
    pair_cells = sum(len(q.residues) for q in queries) * sum(len(s.residues) for s in subjects)
    measured = figures(equal, compared, cells / scan_s, cells / whole_s, pair_cells / pairs_s)
    return [*measured, *kernel_figures(database, queries, cells, cells / scan_s)]


def kernel_figures(
    database: Database, queries: tuple[Protein, ...], cells: int, bare: float
) -> list[Figure]:
    """Figures of the kernel; `bare`: cells per second of pyopal on the same queries."""
    backend = Context().open_backend()
    if isinstance(backend, HostBackend):
        print("no OpenCL device: pocl_ratio is not measured", file=sys.stderr)
        return []
    packed = scan.pack([scoring.encode(protein.residues) for protein in database.proteins])
    scanner = scan.Scanner(backend, Quota(), packed, vectors=True)
    encoded = [scoring.encode(query.residues) for query in queries]
    equal = all(
        (scanner.scores(codes) == database.scores(query.residues)).all()
        for codes, query in zip(encoded, queries, strict=True)
    )
    ratio = cells / cpu_s(lambda: [scanner.scores(codes) for codes in encoded]) / bare
    scanner.close()
    return [
        Figure(
            "pocl_scores_equal",
            float(equal),
            f"of {len(queries)} queries",
            "pyopal, every subject",
            1.0,
            target=">= 1",
        ),
        Figure(
            "pocl_ratio",
            ratio,
            "ratio",
            "pyopal, GCUPS per CPU second",
            bare / 1e9,
            target=">= 0.6",
        ),
    ]


def figures(equal: int, compared: int, scan: float, whole: float, pairs: float) -> list[Figure]:
    """The figures; parameters in cells per second, figures in billions of cells per second."""
    return [
        Figure("scores_equal", equal / compared, f"of {compared}", "parasail", 1.0, target=">= 1"),
        Figure(
            "search_rate",
            whole / 1e9,
            "GCUPS",
            "bare pyopal scan, no positions",
            scan / 1e9,
            whole / scan,
            ">= 0.8",
            whole >= 0.8 * scan,
        ),
        Figure(
            "search_rate_vs_parasail",
            whole / pairs,
            "x",
            "parasail, striped, GCUPS",
            pairs / 1e9,
            whole / pairs,
        ),
    ]


def main() -> None:
    """Measure and print."""
    parser = arguments(__doc__)
    parser.add_argument("--database", type=Path, help="FASTA of proteins, unpacked")
    parser.add_argument("--queries", type=Path, help="FASTA of proteins")
    options = parser.parse_args()
    examples = sorted((EXAMPLE / "input").glob("*.fasta"))
    files = [options.queries] if options.queries else examples
    fasta = b"".join(path.read_bytes() for path in files)
    with tempfile.TemporaryDirectory() as folder:
        database = options.database or Path(folder, "enlarged.fasta")
        if options.database is None:
            database.write_bytes(enlarged((EXAMPLE / "database/proteins.fasta").read_bytes()))
        show("remote_gpu.sequence_search", measure(database, fasta), as_json=options.json)


if __name__ == "__main__":
    main()
