"""Scores by the kernel equal those of pyopal, with vectors and without."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from operations.alignment import scan, scoring
from operations.alignment.database import Database
from operations.alignment.fasta import Protein
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.backends.base import Backend
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from tests.drivers import needs_cpu_driver

MakeScanner = Callable[[list[bytes], bool, Quota], scan.Scanner]


@pytest.fixture(scope="module")
def backend() -> Backend:
    return Context().open_backend()


@pytest.fixture
def scanner(backend: Backend) -> Iterator[MakeScanner]:
    made: list[scan.Scanner] = []

    def make(subjects: list[bytes], vectors: bool, quota: Quota) -> scan.Scanner:
        packed = scan.pack([scoring.encode(subject) for subject in subjects])
        made.append(scan.Scanner(backend, quota, packed, vectors=vectors))
        return made[-1]

    yield make
    for each in made:
        each.close()


def random_proteins(count: int, longest: int) -> list[bytes]:
    stream = np.random.default_rng(7)
    letters = np.frombuffer(b"ARNDCQEGHILKMFPSTWYVBZXU", np.uint8)
    return [stream.choice(letters, stream.integers(1, longest)).tobytes() for _ in range(count)]


def by_pyopal(query: bytes, subjects: list[bytes]) -> list[int]:
    proteins = tuple(Protein(name=str(i), residues=s) for i, s in enumerate(subjects))
    return list(Database(proteins, sha256="").scores(query))


@needs_cpu_driver
@pytest.mark.parametrize("vectors", [True, False], ids=["vectors", "one each"])
@pytest.mark.parametrize("length", [1, 3, 57, 400])
def test_scores_are_those_of_another_implementation(
    scanner: MakeScanner, vectors: bool, length: int
) -> None:
    subjects = random_proteins(50, 300)
    query = (subjects[3] + subjects[9] + subjects[0])[:length]
    quota = Quota()
    found = scanner(subjects, vectors, quota).scores(scoring.encode(query))
    assert found.tolist() == by_pyopal(query, subjects)


@needs_cpu_driver
def test_scores_beyond_16_bits_are_computed_again(scanner: MakeScanner) -> None:
    long = b"W" * 3100  # 11 a pair: 34,100
    subjects = [*random_proteins(20, 60), long, b"W" * 2990, b"A" * 40]
    found = scanner(subjects, True, Quota()).scores(scoring.encode(long))
    assert max(found) == 34_100
    assert found.tolist() == by_pyopal(long, subjects)


@needs_cpu_driver
def test_memory_counts_in_the_quota_and_is_freed(scanner: MakeScanner) -> None:
    quota = Quota(200_000)
    subjects = random_proteins(30, 100)
    made = scanner(subjects, True, quota)
    resident = quota.used_bytes
    made.scores(scoring.encode(subjects[0]))
    assert quota.used_bytes == resident > 0
    with pytest.raises(OpFailed) as failed:
        made.scores(scoring.encode(b"A" * 20_000))
    assert failed.value.code is OpCode.ENOMEM
    assert quota.used_bytes == resident
    made.close()
    assert quota.used_bytes == 0


def test_groups_have_subjects_of_similar_length() -> None:
    subjects = [scoring.encode(b"A" * length) for length in (5, 40, 1, 39, *[38] * 20)]
    packed = scan.pack(subjects)
    assert packed.order[:3].tolist() == [1, 3, 4]
    assert packed.columns.tolist() == [40, 40]
    first = packed.residues[: 40 * scan.GROUP].reshape(40, scan.GROUP)
    assert [int((lane == 0).sum()) for lane in first.T][:3] == [40, 39, 38]
