"""Envelopes: valid ones, and a corpus of malformed ones."""

from __future__ import annotations

import contextlib
import io
import json
import stat
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.envelope import Job
from lambda_functions.gpu_runner import envelope
from lambda_functions.gpu_runner.envelope import Envelope
from lambda_functions.gpu_runner.errors import EnvelopeError

JOB = Job(
    job_id="j1",
    attempt=1,
    fence=1,
    function="f",
    input_bucket="b",
    input_key="k",
    input_version=None,
    input_etag="",
    input_size=3,
    input_inline=True,
    event={},
    outputs=[],
    intermediate_bucket="m",
    staged_at_s=0.0,
    connect_by_s=1.0,
)
GOOD = {
    "job.json": JOB.to_json(),
    "env.json": b'{"middleware": "builtin", "connection": {"lease": "l"}, "variables": {"A": "1"}}',
    "input/k": b"abc",
}


def packed(
    entries: dict[str, bytes] | list[tuple[str | zipfile.ZipInfo, bytes]],
    method: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    buffer = io.BytesIO()
    listed = list(entries.items()) if isinstance(entries, dict) else entries
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore", UserWarning)  # a name that is there twice
        for name, data in listed:
            archive.writestr(name, data)
    return buffer.getvalue()


def opened(data: bytes) -> Envelope:
    return Envelope(io.BytesIO(data))


def refused(data: bytes, said: str, tmp_path: Path | None = None) -> None:
    def read_all() -> None:
        found = opened(data)
        if tmp_path is not None:
            found.save_input(tmp_path / "x")

    with pytest.raises(EnvelopeError, match=said):
        read_all()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_valid_one_is_read(tmp_path: Path, method: int) -> None:
    with opened(packed(GOOD, method)) as found:
        assert found.job == JOB
        assert found.grant is not None
        assert found.grant.middleware == "builtin"
        assert found.grant.connection == {"lease": "l"}
        assert found.grant.variables == {"A": "1"}
        assert found.save_input(tmp_path / "x") == 3
    assert (tmp_path / "x").read_bytes() == b"abc"


@pytest.mark.parametrize(
    "name",
    [
        "../evil",
        "/etc/passwd",
        "input/../../evil",
        "input/a/b",
        "input/..",
        "input/.",
        "input/",
        "input\\x",
        "input/a\\b",
        "job.json/",
        "JOB.JSON",
        "Job.json",
        "x",
        "./job.json",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    entries: list[tuple[str | zipfile.ZipInfo, bytes]] = [
        (n, d) for n, d in GOOD.items() if n != "input/k"
    ]
    refused(packed([*entries, (name, b"abc")]), "unexpected entry")


def test_a_name_with_a_nul_is_refused() -> None:
    entries = {n: d for n, d in GOOD.items() if n != "input/k"} | {"input/kXX": b""}
    refused(packed(entries).replace(b"input/kXX", b"job.json\0"), "unexpected entry")


@pytest.mark.parametrize("name", ["job.json", "env.json", "input/k"])
def test_duplicate_names_are_refused(name: str) -> None:
    entries: list[tuple[str | zipfile.ZipInfo, bytes]] = [
        (n, d) for n, d in GOOD.items() if n == name or n == "job.json"
    ]
    refused(packed([*entries, (name, GOOD[name])]), "twice")


def test_two_inputs_are_refused() -> None:
    entries = {n: d for n, d in GOOD.items() if n != "env.json"}
    refused(packed(entries | {"input/l": b""}), "more than one input")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_entries_other_than_plain_files_are_refused(kind: int) -> None:
    info = zipfile.ZipInfo("input/k")
    info.external_attr = (kind | 0o777) << 16
    entries: list[tuple[str | zipfile.ZipInfo, bytes]] = [
        (n, d) for n, d in GOOD.items() if n != "input/k"
    ]
    refused(packed([*entries, (info, b"/etc/passwd")]), "not a plain file")


@pytest.mark.parametrize("missing", ["job.json", "env.json", "input/k"])
def test_a_missing_entry_is_named(missing: str, tmp_path: Path) -> None:
    entries = {name: data for name, data in GOOD.items() if name != missing}
    refused(packed(entries), f"no {missing.partition('/')[0]}", tmp_path)


def test_too_many_entries_are_refused_before_they_are_parsed() -> None:
    refused(packed(GOOD | {f"input/{i}": b"" for i in range(5000)}), "too many")


def test_a_zip64_directory_is_refused() -> None:
    data = packed(GOOD)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1)
    refused(data[:-22] + locator + data[-22:], "zip64")


def test_an_encrypted_entry_is_refused() -> None:
    data = bytearray(packed(GOOD))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    refused(bytes(data), "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_refused(method: int) -> None:
    refused(packed(GOOD, method), "method")


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "INPUT_BYTES_MAX", 2**20)
    refused(packed(GOOD | {"input/k": bytes(2**20 + 1)}), "too large", tmp_path)
    assert (tmp_path / "x").stat().st_size <= 2**20


def test_deeply_nested_json_is_refused() -> None:
    refused(packed(GOOD | {"job.json": b" " * (envelope.JSON_BYTES_MAX + 1)}), "too large")


def test_highly_compressible_input_is_accepted(tmp_path: Path) -> None:
    job = Job(**{**json.loads(JOB.to_json()), "input_size": 8 * 2**20})
    entries = GOOD | {"job.json": job.to_json(), "input/k": bytes(8 * 2**20)}
    assert opened(packed(entries)).save_input(tmp_path / "x") == 8 * 2**20


def test_wrong_sizes_are_refused(tmp_path: Path) -> None:
    """The directory says one compressed byte; the ratio is counted against what it says."""
    data = bytearray(packed(GOOD | {"input/k": bytes(2**20)}))
    place = data.rindex(b"PK\x01\x02")
    data[place + 20 : place + 24] = struct.pack("<L", 1)
    refused(bytes(data), "cannot be read|too large", tmp_path)


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    data = packed(GOOD, zipfile.ZIP_STORED).replace(b"abc", b"abd")
    refused(data, "cannot be read", tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("job.json", b"{}", "version"),
        ("job.json", b"[]", "version"),
        ("job.json", b"nonsense", "Expecting"),
        ("job.json", b'{"version": 1}', "missing"),
        ("job.json", b"\xff", "codec"),
        ("job.json", b"[" * 100_000, "recursion"),
        ("env.json", b'{"connection": ' * 50_000, "recursion"),
        ("env.json", b"[]", "no connection"),
        ("env.json", b'{"connection": 1}', "no connection"),
        ("env.json", b'{"connection": {}, "variables": {"A": 1}}', "variables"),
        ("env.json", b'{"connection": {}, "variables": []}', None),
        ("env.json", b'{"connection": {}, "variables": [1]}', "variables"),
    ],
)
def test_other_json_is_refused(name: str, text: bytes, said: str | None) -> None:
    if said is None:
        grant = opened(packed(GOOD | {name: text})).grant
        assert grant is not None
        assert grant.variables == {}
    else:
        refused(packed(GOOD | {name: text}), said)


@given(st.binary(max_size=400))
def test_bytes_other_than_a_zip_are_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        opened(data)


@given(st.integers(0, 700), st.binary(min_size=1, max_size=8))
def test_damage_is_an_envelope_error_or_without_effect(place: int, noise: bytes) -> None:
    data = bytearray(packed(GOOD))
    data[place : place + len(noise)] = noise
    with contextlib.suppress(EnvelopeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        opened(bytes(data)).close()


def test_a_truncated_download_is_an_envelope_error() -> None:
    data = packed(GOOD)
    for size in range(len(data)):
        with pytest.raises(EnvelopeError):
            opened(data[:size])


class Answers:
    """As much of an S3 client as `fetch` uses."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def get_object(self, **_: object) -> dict[str, Any]:
        return {"Body": self._body}


def test_the_error_names_the_object() -> None:
    with pytest.raises(EnvelopeError, match=r"s3://b/k: not a zip"):
        envelope.fetch(Answers(io.BytesIO(b"no zip at all")), "b", "k", "zip")


def test_an_endless_envelope_is_refused_at_its_limit() -> None:
    class Endless:
        read_bytes = 0

        def read(self, count: int) -> bytes:
            self.read_bytes += count
            return bytes(count)

    body = Endless()
    with pytest.raises(EnvelopeError, match="larger than"):
        envelope.fetch(Answers(body), "b", "k", "zip")
    assert body.read_bytes <= envelope.ARCHIVE_BYTES_MAX + 2**20
