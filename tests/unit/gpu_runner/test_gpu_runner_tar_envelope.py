"""Envelopes as tar.gz: valid and malformed ones."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from lambda_functions.gpu_runner import envelope
from lambda_functions.gpu_runner.envelope import Envelope
from lambda_functions.gpu_runner.errors import EnvelopeError
from tests.unit.gpu_runner.test_gpu_runner_envelope import GOOD, JOB, Answers

Entry = tuple[tarfile.TarInfo, bytes]


def entry(name: str, data: bytes = b"", kind: bytes = tarfile.REGTYPE, link: str = "") -> Entry:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    return info, data


def packed(*more: Entry, without: str = "") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for info, data in [*(entry(n, d) for n, d in GOOD.items() if n != without), *more]:
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def refused(data: bytes, said: str) -> None:
    with pytest.raises(EnvelopeError, match=said):
        Envelope(io.BytesIO(data), "tar.gz").close()


def test_a_valid_one_is_read(tmp_path: Path) -> None:
    with Envelope(io.BytesIO(packed()), "tar.gz") as found:
        assert found.job == JOB
        assert found.grant is not None
        assert found.grant.variables == {"A": "1"}
        assert found.save_input(tmp_path / "x") == 3
    assert (tmp_path / "x").read_bytes() == b"abc"


def test_a_valid_one_is_fetched() -> None:
    with envelope.fetch(Answers(io.BytesIO(packed())), "b", "k", "tar.gz") as found:
        assert found.job == JOB


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/passwd", "input/../../evil", "input/a/b", "input/..", "input/", "x"]
)
def test_other_names_are_refused(name: str) -> None:
    refused(packed(entry(name, b"abc"), without="input/k"), "unexpected entry")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"3", b"5"])
def test_only_plain_files_are_accepted(kind: bytes) -> None:
    refused(packed(entry("input/k", kind=kind, link="/etc/passwd"), without="input/k"), "plain")


def test_duplicate_names_are_refused() -> None:
    refused(packed(entry("job.json", GOOD["job.json"])), "twice")


def test_more_than_one_input_is_refused() -> None:
    refused(packed(entry("input/second", b"abc")), "too many|more than one")


def test_a_bomb_is_not_unpacked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "UNPACKED_BYTES_MAX", 2**20)
    refused(gzip.compress(bytes(2**24), 1), "larger than 1048576 bytes unpacked")


def test_a_truncated_download_is_an_envelope_error() -> None:
    data = packed()
    for size in range(0, len(data), 7):
        refused(data[:size], "not a|cut|unexpected|no env.json|no job.json")


def test_a_tar_truncated_inside_its_gzip_is_refused(tmp_path: Path) -> None:
    plain = gzip.decompress(packed())

    def read_all(data: bytes) -> None:
        with Envelope(io.BytesIO(gzip.compress(data, 1)), "tar.gz") as found:
            found.save_input(tmp_path / "x")

    for size in range(0, 3072, 100):  # before the input's own bytes
        with pytest.raises(EnvelopeError):
            read_all(plain[:size])


def test_random_bytes_are_an_envelope_error() -> None:
    refused(b"no tar at all", "tar.gz")
    refused(gzip.compress(bytes(range(256)) * 20), "tar")
