"""Scores and positions of protein alignments, compared with parasail and a plain program."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import parasail
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operations.alignment import locate as placing
from operations.alignment import scoring
from operations.alignment.database import Database, DatabaseCache
from operations.alignment.fasta import FastaError, Protein, parse_fasta
from operations.alignment.locate import HitPlacement, locate
from tests.unit.operations.plain_alignment import Found, align

EXAMPLE = Path(__file__).resolve().parents[3] / "fdl/examples/sequence-search"
DATABASE = EXAMPLE / "database/proteins.fasta"
#: All letters, odd ones as likely as others; and a few letters only, where ties are common.
SEQUENCES = st.one_of(
    st.text("ACDEFGHIKLMNPQRSTVWYBZXUOJ*acuoj", min_size=1, max_size=40),
    st.text("AW*", min_size=1, max_size=25),
)


def found_by_us(query: str, subject: str) -> Found | None:
    (placed,) = locate(encoded(query), [encoded(subject)])
    return None if placed is None else as_found(placed)


def encoded(sequence: str) -> scoring.Codes:
    return scoring.encode(sequence.upper().encode())


def as_found(placed: HitPlacement) -> Found:
    return Found(
        placed.score,
        placed.query_start,
        placed.query_end,
        placed.subject_start,
        placed.subject_end,
    )


def score_by_parasail(query: bytes, subject: bytes) -> int:
    texts = [scoring.scored_letters(s).decode() for s in (query, subject)]
    return int(parasail.sw_striped_sat(*texts, 11, 1, parasail.blosum62).score)


def database_of(*sequences: str) -> Database:
    text = "".join(f">s{i}\n{s}\n" for i, s in enumerate(sequences))
    return Database.from_fasta(text.encode(), file="test.fasta")


def test_the_matrix_is_the_one_that_ncbi_and_parasail_have() -> None:
    theirs = np.array(parasail.blosum62.matrix)[:24, :24]
    assert (theirs == scoring.BLOSUM62).all()
    assert (scoring.BLOSUM62.T == scoring.BLOSUM62).all()


@settings(max_examples=150)
@given(query=SEQUENCES, subject=SEQUENCES)
@example(query="U", subject="u")  # scored as `*` with `*`: 1
@example(query="WWWAWWW", subject="WWWWWW")
@example(query="AWAWAWAW", subject="WAWAWAWA")
@example(query="ACDEFGHIKLMNPQRSTVWY", subject="ACDEFGHIK")
def test_positions_equal_the_plain_programme(query: str, subject: str) -> None:
    assert found_by_us(query, subject) == align(query, subject)


@settings(max_examples=60)
@given(query=SEQUENCES, subjects=st.lists(SEQUENCES, min_size=1, max_size=6))
def test_subjects_placed_together_are_placed_as_each_alone(query: str, subjects: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        together = list(locate(encoded(query), [encoded(s) for s in subjects]))
        patch.setattr(placing, "PASS_CELLS_MAX", 50)  # most passes take two or three of them
        few = list(locate(encoded(query), [encoded(s) for s in subjects]))
    alone = [align(query, subject) for subject in subjects]
    assert [None if p is None else as_found(p) for p in together] == alone
    assert few == together


@settings(max_examples=100)
@given(query=SEQUENCES, subjects=st.lists(SEQUENCES, min_size=1, max_size=6))
def test_scores_equal_both_oracles(query: str, subjects: list[str]) -> None:
    scores = database_of(*subjects).scores(query.upper().encode()).tolist()
    plain = [align(query, subject) for subject in subjects]
    assert scores == [0 if found is None else found.score for found in plain]
    uppers = [subject.upper().encode() for subject in subjects]
    assert scores == [score_by_parasail(query.upper().encode(), s) for s in uppers]


def test_a_gap_of_k_residues_costs_11_and_one_more_for_each_further() -> None:
    left, right = "WCWYWFWM", "HKNQEDRGHKNEQDRG"
    own = database_of(left + right).scores((left + right).encode())[0]
    for k in range(1, 6):
        assert database_of(left + right).scores((left + "P" * k + right).encode()).tolist() == [
            own - (11 + (k - 1))
        ]


def test_scores_beyond_16_bits_are_exact() -> None:
    long = "W" * 3100
    assert database_of(long, "A").scores(long.encode()).tolist() == [3100 * 11, 0]
    assert found_by_us(long, long) == Found(34100, 1, 3100, 1, 3100)


def test_every_score_on_the_example_data_equals_parasail() -> None:
    database = DatabaseCache().open(DATABASE)
    assert len(database.proteins) == 150
    for file in sorted((EXAMPLE / "input").iterdir()):
        for query in parse_fasta(file.read_bytes(), file=file.name):
            expected = [score_by_parasail(query.residues, p.residues) for p in database.proteins]
            assert database.scores(query.residues).tolist() == expected


def test_positions_on_the_example_data_equal_the_plain_programme() -> None:
    database = DatabaseCache().open(DATABASE)
    subjects = {p.name: p.residues.decode() for p in database.proteins}
    file = EXAMPLE / "input/altered.fasta"
    for query in parse_fasta(file.read_bytes(), file=file.name):
        for hit in database.search(query.residues, top=6):
            plain = align(query.residues.decode(), subjects[hit.subject])
            assert as_found(hit.placement) == plain


def test_hits_are_sorted_by_score_then_by_position_without_misses() -> None:
    database = database_of("AAAA", "WWWW", "PPPP", "WWWW", "WWW")
    hits = [(hit.subject, hit.placement.score) for hit in database.search(b"WWWW", top=4)]
    assert hits == [("s1", 44), ("s3", 44), ("s4", 33)]
    assert [hit.subject for hit in database.search(b"WWWW", top=1)] == ["s1"]


def test_fasta_variants_are_accepted() -> None:
    text = b"\r\n>one first protein\r\nmkv l\r\n".replace(b" l", b"L") + b"\n>two\nA*\n\nuoj\n"
    assert parse_fasta(text, file="f") == (
        Protein(name="one", residues=b"MKVL"),
        Protein(name="two", residues=b"A*UOJ"),
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "f:1: no sequence"),
        (b"\n\n", "f:1: no sequence"),
        (b"\nMKV\n>a\nM\n", "f:2: expected a header"),
        (b">a\n>b\nM\n", "f:1: 'a' has no residues"),
        (b">a\nM\n>b\n\n", "f:3: 'b' has no residues"),
        (b">\nM\n", "f:1: a header needs a name"),
        (b">a\nM\n>a x\nM\n", "f:3: 'a' occurs already in line 1"),
        (b">a\nMKV\nMK1V\n", "f:3: '1' (column 3) is not a residue"),
        (b">a\nM-V\n", "f:2: '-' (column 2) is not a residue"),
        (b">a\nM V\n", "f:2: '\\x20' (column 2) is not a residue"),
        (b">a\nM\xffV\n", "f:2: '\\xff' (column 2) is not a residue"),
        (b">\xff\nM\n", "f:1: the header is not UTF-8"),
        (b">a\n" + b"M" * 11 + b"\n", "f:1: 'a' has 11 residues, more than 10"),
        (b"PK\x03\x04 a zip", "f:1: expected a header"),
    ],
)
def test_bad_fasta_names_file_and_line(text: bytes, message: str) -> None:
    with pytest.raises(FastaError) as caught:
        parse_fasta(text, file="f", residues_max=10)
    assert str(caught.value).startswith(message)


@given(st.binary(max_size=200))
def test_fasta_raises_fasta_errors_only(data: bytes) -> None:
    with contextlib.suppress(FastaError):
        assert all(p.residues and p.name for p in parse_fasta(data, file="f"))


def test_a_database_is_indexed_once_per_content(tmp_path: Path) -> None:
    first, second = tmp_path / "a.fasta", tmp_path / "b.fasta"
    for path in (first, second):
        path.write_bytes(b">a\nMKV\n")
    shelf = DatabaseCache()
    database = shelf.open(first)
    assert shelf.open(first) is database
    assert shelf.open(second) is database
    first.write_bytes(b">a\nMKVW\n")
    changed = shelf.open(first)
    assert changed.residues == 4
    assert changed.sha256 != database.sha256
    assert shelf.open(second) is database
