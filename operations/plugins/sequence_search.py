"""`sequence_search`: protein queries against a database on the host, by Smith-Waterman alignment.

BLOSUM62; a gap of length k costs 11 + (k - 1); sequences are upper-cased; U, O and J are scored as
`*`, X, B and Z by the matrix. The database is a FASTA file of the host data (`gpud --data`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from operations.alignment import scan, scoring
from operations.alignment.database import (
    IMPLEMENTATION,
    Database,
    DatabaseCache,
    Hit,
    Scores,
)
from operations.alignment.fasta import FastaError, Protein, parse_fasta
from remote_gpu import api
from remote_gpu.api import Arguments, Context, OpCode, OpFailed, Outcome, invalid

HEADER = "query\tsubject\tscore\tquery_start\tquery_end\tsubject_start\tsubject_end\n"
TOP_DEFAULT = 10
#: Positions are computed per hit, in numpy: more would take minutes.
TOP_MAX = 1000
QUERIES_MAX = 1000
#: Titin isoforms, the longest known proteins, have 35,000 to 40,000 residues.
QUERY_RESIDUES_MAX = 50_000
_QUERY_BYTES_MAX = 4 * 2**20
#: Host data with these suffixes is indexed before the first lease.
_FASTA_SUFFIXES = (".fasta", ".fa", ".faa")

_log = logging.getLogger(__name__)


class SequenceSearch(api.CpuOperation):
    """Protein queries in FASTA → their best hits in a database, as a TSV with `HEADER`.

    Queries keep their order; their hits are sorted by score, then by position in the database; each
    subject appears once, with the alignment that `alignment.locate` selects.
    """

    name = "sequence_search"
    implementation = IMPLEMENTATION
    libraries: tuple[str, ...] = ("pyopal", "numpy")
    loads = ("database",)
    limits = api.Limits(inputs_min=1, inputs_max=1, input_bytes_max=_QUERY_BYTES_MAX)
    signature = api.Signature(
        arguments=(
            api.Text(name="database", meaning="host data, a FASTA file"),
            api.Integer(
                name="top", meaning="hits per query", least=1, most=TOP_MAX, default=TOP_DEFAULT
            ),
            api.Text(name="file", meaning="name of the query in errors", default="query"),
        ),
        inputs=(
            api.Port(
                name="queries",
                meaning=f"FASTA; at most {QUERIES_MAX} of {QUERY_RESIDUES_MAX} residues",
            ),
        ),
        outputs=(api.Port(name="hits", meaning="a TSV with a header line"),),
        values="`queries`, `hits`, `cells` (of the alignments), `database`, `scoring`",
    )

    def prepare(self, context: Context) -> None:
        """Index every FASTA file of the host data; a malformed one is logged, and named again in
        the error of its callers."""
        databases = _cache(context)
        for name, path in context.data.items():
            if path.suffix.lower() not in _FASTA_SUFFIXES:
                continue
            try:
                databases.open(path, partial(context.indexing, name))
            except (ValueError, OSError) as error:
                _log.warning(
                    "database not indexed", extra={"event": "data", "data": name, "why": str(error)}
                )

    def load(self, context: Context, args: Arguments) -> None:
        self._scores(context, _database(context, self.signature.read(args)["database"]))

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        args = self.signature.read(args)
        top = args["top"]
        queries = _queries(bytes(inputs[0]), args["file"])
        database = _database(context, args["database"])
        scores = self._scores(context, database)
        lines = [HEADER]
        for query in queries:
            with context.quota.held(database.working_bytes(query.residues)):
                hits = database.search(query.residues, top=top, scores=scores)
                lines += [_line(query, hit) for hit in hits]
        values = {
            "queries": len(queries),
            "hits": len(lines) - 1,
            "cells": sum(len(q.residues) for q in queries) * database.residues,
            "database": {
                "sequences": len(database.proteins),
                "residues": database.residues,
                "sha256": database.sha256,
            },
            "scoring": "BLOSUM62, gap of k residues: 11 + (k - 1)",
        }
        return values, ["".join(lines).encode()]

    def _scores(self, context: Context, database: Database) -> Scores:
        del context
        return database.scores


class KernelSearch(SequenceSearch):
    """`sequence_search` with scores by the kernel of `alignment.scan`, on hosts with OpenCL."""

    implementation = "opencl-smith-waterman"
    kinds: tuple[str, ...] = ("cpu", "opencl")
    by_kernels = True

    def kernel_sources(self) -> Sequence[str]:
        return (scan.source(1), scan.source_of_pairs())

    def prepare(self, context: Context) -> None:
        """Index and pack the host's FASTA files; a lease's first call copies them to the device."""
        super().prepare(context)
        for database in _cache(context).databases():
            _packed(context, database)

    def _scores(self, context: Context, database: Database) -> Scores:
        def load() -> scan.Scanner:
            backend, packed = context.open_backend(), _packed(context, database)
            return scan.Scanner(backend, context.quota, packed, vectors=backend.on_host)

        device = f"{context.kind} {context.device}"
        scanner = context.warm.get(f"scanner of {database.sha256} on {device}", load)
        return lambda query: scanner.scores(scoring.encode(query))


class CudaSearch(KernelSearch):
    """`sequence_search` on an NVIDIA card, with its instructions for pairs of 16-bit scores."""

    implementation = "cuda-smith-waterman"
    kinds = ("cuda",)
    libraries = ("cuda-bindings",)


def _packed(context: Context, database: Database) -> scan.Packed:
    def load() -> scan.Packed:
        return scan.pack([scoring.encode(protein.residues) for protein in database.proteins])

    return context.warm.get(f"packed {database.sha256}", load)


def _line(query: Protein, hit: Hit) -> str:
    place = hit.placement
    fields = (
        query.name,
        hit.subject,
        place.score,
        place.query_start,
        place.query_end,
        place.subject_start,
        place.subject_end,
    )
    return "\t".join(map(str, fields)) + "\n"


def _queries(data: bytes, file: str) -> tuple[Protein, ...]:
    try:
        queries = parse_fasta(data, file=file, residues_max=QUERY_RESIDUES_MAX)
    except FastaError as error:
        raise invalid(str(error)) from None
    if len(queries) > QUERIES_MAX:
        message = (
            f"{file}: {len(queries)} queries, more than {QUERIES_MAX} per call; split the file"
        )
        raise OpFailed(OpCode.E2BIG, message)
    return queries


def _database(context: Context, name: str) -> Database:
    path: Path = context.data_path(name)
    try:
        database = _cache(context).open(path)
    except OSError as error:
        message = f"database {name!r} of this host cannot be read: {error.strerror}"
        raise OpFailed(OpCode.EIO, message) from None
    except ValueError as error:
        message = f"database {name!r} of this host is not valid: {error}"
        raise OpFailed(OpCode.EIO, message) from None
    context.note_use(api.DATA, name, database.sha256)
    return database


def _cache(context: Context) -> DatabaseCache:
    return context.warm.get("sequence_search", DatabaseCache)


OPERATIONS = (SequenceSearch(), KernelSearch(), CudaSearch())
