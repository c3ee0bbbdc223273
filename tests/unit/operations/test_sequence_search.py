"""The operation sequence_search: golden results on the example data, determinism, errors."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from operations.alignment import scan, scoring
from operations.alignment.database import Database
from operations.alignment.fasta import Protein
from operations.plugins.sequence_search import HEADER, KernelSearch, SequenceSearch
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from tests.drivers import needs_cpu_driver
from tests.unit.operations.conftest import Card

EXAMPLE = Path(__file__).resolve().parents[3] / "fdl/examples/sequence-search"
GOLDEN = Path(__file__).parent / "golden"
QUERIES = sorted((EXAMPLE / "input").glob("*.fasta"))


@pytest.fixture(scope="module")
def context() -> Context:
    context = Context(data={"proteins": EXAMPLE / "database/proteins.fasta"})
    SequenceSearch().prepare(context)
    return context


def search(context: Context, fasta: bytes, **args: Any) -> tuple[dict[str, Any], str]:
    args = {"database": "proteins", **args}
    values, buffers = SequenceSearch().run(context, args, [memoryview(fasta)])
    (table,) = buffers
    return values, bytes(table).decode()


@pytest.mark.parametrize("query", QUERIES, ids=lambda path: path.stem)
def test_the_examples_give_the_golden_tables(context: Context, query: Path) -> None:
    values, table = search(context, query.read_bytes())
    assert table == (GOLDEN / f"{query.stem}.tsv").read_text()
    assert values["hits"] == table.count("\n") - 1
    assert search(context, query.read_bytes()) == (values, table)


@needs_cpu_driver
@pytest.mark.parametrize("query", QUERIES[:2], ids=lambda path: path.stem)
def test_the_kernel_gives_the_same_tables(context: Context, query: Path) -> None:
    KernelSearch().prepare(context)
    args = {"database": "proteins", "implementation": "opencl-smith-waterman"}
    _, (table,) = KernelSearch().run(context, args, [memoryview(query.read_bytes())])
    assert bytes(table).decode() == (GOLDEN / f"{query.stem}.tsv").read_text()


def random_proteins(stream: random.Random, count: int) -> list[bytes]:
    lengths = [1, 2, scan.TILE - 1, scan.TILE, scan.TILE + 1, 100, 400]
    letters = scoring.ALPHABET.encode()
    return [bytes(stream.choices(letters, k=stream.choice(lengths))) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 16, 75])
def test_scores_for_cards_are_those_of_the_library(card: Card, count: int) -> None:
    stream = random.Random(count)
    subjects = [*random_proteins(stream, count), b"W" * 3500]  # 16 bits are not enough for it
    proteins = tuple(
        Protein(name=f"p{n}", residues=residues) for n, residues in enumerate(subjects)
    )
    database = Database(proteins, sha256="")
    packed = scan.pack([scoring.encode(residues) for residues in subjects])
    context = card()
    scanner = scan.Scanner(context.open_backend(), context.quota, packed, vectors=False)
    for query in [*random_proteins(stream, 6), b"W" * 3300]:
        found = scanner.scores(scoring.encode(query))
        assert found.tolist() == database.scores(query).tolist()
    scanner.close()
    assert context.quota.used_bytes == 0


def test_a_small_lease_is_searched_in_batches(card: Card) -> None:
    stream = random.Random(7)
    subjects = random_proteins(stream, 400)
    packed = scan.pack([scoring.encode(residues) for residues in subjects])
    tables = packed.residues.nbytes + (1 << 16)
    context = card(Quota(2 * tables))
    small = scan.Scanner(context.open_backend(), context.quota, packed, vectors=False)
    large_context = card()
    large = scan.Scanner(large_context.open_backend(), Quota(), packed, vectors=False)
    query = scoring.encode(random_proteins(stream, 1)[0])
    assert small.scores(query).tolist() == large.scores(query).tolist()
    small.close()
    large.close()


def test_values_describe_the_search(context: Context) -> None:
    values, table = search(context, b">q\nMKVLW\n", top=3)
    assert table.startswith(HEADER)
    assert values["queries"] == 1
    assert values["database"]["sequences"] == 150
    assert values["cells"] == 5 * values["database"]["residues"]
    assert SequenceSearch.implementation.startswith("pyopal ")


def test_queries_keep_their_order_and_each_has_its_top(context: Context) -> None:
    _, table = search(context, b">z\nMKVLWAALLV\n>a\nMSTNPKPQRK\n", top=2)
    assert [line.split("\t")[0] for line in table.splitlines()[1:]] == ["z", "z", "a", "a"]


def test_a_query_without_any_hit_gives_a_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "p.fasta"
    path.write_bytes(b">p\nPPPP\n")
    values, table = search(Context(data={"proteins": path}), b">q\nW\n")
    assert (values["hits"], table) == (0, HEADER)


@pytest.mark.parametrize(
    ("fasta", "args", "code", "message"),
    [
        (b"", {}, OpCode.EINVAL, "query:1: no sequence"),
        (b">q\nMK!\n", {"file": "my.fasta"}, OpCode.EINVAL, "my.fasta:2: '!' (column 3)"),
        (b">q\n" + b"M" * 50_001, {}, OpCode.EINVAL, "has 50001 residues, more than 50000"),
        (b">q\nM\n", {"database": "genes"}, OpCode.ENOENT, "no data 'genes'"),
        (b">q\nM\n", {"database": 3}, OpCode.EINVAL, "'database' must be a string"),
        (b">q\nM\n", {"top": 0}, OpCode.EINVAL, "'top' must be an integer of 1…1000"),
        (b">q\nM\n", {"tops": 1}, OpCode.EINVAL, "unknown argument 'tops'"),
        (
            b"".join(b">%d\nM\n" % i for i in range(1001)),
            {},
            OpCode.E2BIG,
            "1001 queries, more than 1000",
        ),
    ],
)
def test_invalid_calls_are_named(
    context: Context, fasta: bytes, args: dict[str, Any], code: OpCode, message: str
) -> None:
    with pytest.raises(OpFailed) as caught:
        search(context, fasta, **args)
    assert caught.value.code == code
    assert message in caught.value.message


def test_a_malformed_database_is_eio_and_affects_no_other(tmp_path: Path) -> None:
    broken = tmp_path / "broken.fasta"
    broken.write_bytes(b">p\nMK7\n")
    context = Context(
        data={
            "broken": broken,
            "gone": tmp_path / "gone.fasta",
            "proteins": EXAMPLE / "database/proteins.fasta",
        }
    )
    SequenceSearch().prepare(context)
    for name, message in (("broken", "broken.fasta:2: '7'"), ("gone", "No such file")):
        with pytest.raises(OpFailed, match="of this host") as caught:
            search(context, b">q\nM\n", database=name)
        assert caught.value.code == OpCode.EIO
        assert message in caught.value.message
    assert search(context, b">q\nMKVLW\n", top=1)[0]["hits"] == 1


def test_memory_is_reserved_before_the_work_and_freed(context: Context) -> None:
    small = Context(data=context.data, warm=context.warm, quota=Quota(1000))
    with pytest.raises(OpFailed) as caught:
        search(small, b">q\nMKVLW\n")
    assert caught.value.code == OpCode.ENOMEM
    assert small.quota.used_bytes == 0
