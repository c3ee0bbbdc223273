"""Envelopes: valid ones, and a corpus of malformed ones."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import stat
import struct
import tarfile
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


Entry = tuple[str | zipfile.ZipInfo | tarfile.TarInfo, bytes]
FORMS = pytest.mark.parametrize("form", ["zip", "tar.gz"])


def packed(
    *more: Entry,
    without: str = "",
    form: str = "zip",
    method: int = zipfile.ZIP_DEFLATED,
    **changed: bytes,
) -> bytes:
    """The good entries, some `changed` (by the first part of their names), and more."""
    good = {name: changed.get(re.split(r"[./]", name)[0], data) for name, data in GOOD.items()}
    entries: list[Entry] = [(name, data) for name, data in good.items() if name != without]
    buffer = io.BytesIO()
    if form == "tar.gz":
        with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
            for name, data in [*entries, *more]:
                info = name if isinstance(name, tarfile.TarInfo) else tarfile.TarInfo(str(name))
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return buffer.getvalue()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w", method) as archive:
        warnings.simplefilter("ignore", UserWarning)  # a name that is there twice
        for name, data in [*entries, *more]:
            assert not isinstance(name, tarfile.TarInfo)
            archive.writestr(name, data)
    return buffer.getvalue()


def opened(data: bytes, form: str = "zip") -> Envelope:
    return Envelope(io.BytesIO(data), form)


def refused(data: bytes, said: str, tmp_path: Path | None = None, form: str = "zip") -> None:
    def read_all() -> None:
        with opened(data, form) as found:
            if tmp_path is not None:
                found.save_input(tmp_path / "x")

    with pytest.raises(EnvelopeError, match=said):
        read_all()


@pytest.mark.parametrize("form", ["zip", "tar.gz", "stored"])
def test_a_valid_one_is_read(tmp_path: Path, form: str) -> None:
    method = zipfile.ZIP_STORED if form == "stored" else zipfile.ZIP_DEFLATED
    kind = form.replace("stored", "zip")
    with opened(packed(form=kind, method=method), kind) as found:
        assert found.job == JOB
        assert found.grant is not None
        assert found.grant.middleware == "builtin"
        assert found.grant.connection == {"lease": "l"}
        assert found.grant.variables == {"A": "1"}
        assert found.save_input(tmp_path / "x") == 3
    assert (tmp_path / "x").read_bytes() == b"abc"


@FORMS
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
def test_other_names_are_refused(name: str, form: str) -> None:
    refused(packed((name, b"abc"), without="input/k", form=form), "unexpected entry", form=form)


def test_a_name_with_a_nul_is_refused() -> None:
    data = packed(("input/kXX", b""), without="input/k")
    refused(data.replace(b"input/kXX", b"job.json\0"), "unexpected entry")


@FORMS
@pytest.mark.parametrize("name", ["job.json", "env.json", "input/k"])
def test_duplicate_names_are_refused(name: str, form: str) -> None:
    without = "input/k" if name != "input/k" else "env.json"
    refused(packed((name, GOOD[name]), without=without, form=form), "twice", form=form)


@FORMS
def test_two_inputs_are_refused(form: str) -> None:
    data = packed(("input/l", b""), without="env.json", form=form)
    refused(data, "more than one input", form=form)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFDIR])
def test_entries_other_than_plain_files_are_refused(kind: int) -> None:
    info = zipfile.ZipInfo("input/k")
    info.external_attr = (kind | 0o777) << 16
    refused(packed((info, b"/etc/passwd"), without="input/k"), "not a plain file")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, b"3", b"5"])
def test_members_other_than_plain_files_are_refused(kind: bytes) -> None:
    info = tarfile.TarInfo("input/k")
    info.type, info.linkname = kind, "/etc/passwd"
    data = packed((info, b""), without="input/k", form="tar.gz")
    refused(data, "not a plain file", form="tar.gz")


@pytest.mark.parametrize("missing", ["job.json", "env.json", "input/k"])
@FORMS
def test_a_missing_entry_is_named(missing: str, form: str, tmp_path: Path) -> None:
    data = packed(without=missing, form=form)
    refused(data, f"no {missing.partition('/')[0]}", tmp_path, form)


def test_too_many_entries_are_refused_before_they_are_parsed() -> None:
    refused(packed(*((f"input/{i}", b"") for i in range(5000))), "too many")


def test_a_zip64_directory_is_refused() -> None:
    data = packed()
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, 0, 1)
    refused(data[:-22] + locator + data[-22:], "zip64")


def test_an_encrypted_entry_is_refused() -> None:
    data = bytearray(packed())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    refused(bytes(data), "encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_compression_methods_are_refused(method: int) -> None:
    refused(packed(method=method), "method")


def test_a_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "INPUT_BYTES_MAX", 2**20)
    refused(packed(input=bytes(2**20 + 1)), "too large", tmp_path)
    assert (tmp_path / "x").stat().st_size <= 2**20


def test_deeply_nested_json_is_refused() -> None:
    refused(packed(job=b" " * (envelope.JSON_BYTES_MAX + 1)), "too large")


def test_highly_compressible_input_is_accepted(tmp_path: Path) -> None:
    job = Job(**{**json.loads(JOB.to_json()), "input_size": 8 * 2**20})
    data = packed(job=job.to_json(), input=bytes(8 * 2**20))
    assert opened(data).save_input(tmp_path / "x") == 8 * 2**20


def test_wrong_sizes_are_refused(tmp_path: Path) -> None:
    """The directory says one compressed byte; the ratio is counted against what it says."""
    data = bytearray(packed(input=bytes(2**20)))
    place = data.rindex(b"PK\x01\x02")
    data[place + 20 : place + 24] = struct.pack("<L", 1)
    refused(bytes(data), "cannot be read|too large", tmp_path)


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    data = packed(method=zipfile.ZIP_STORED).replace(b"abc", b"abd")
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
    data = packed(job=text) if name == "job.json" else packed(env=text)
    if said is None:
        grant = opened(data).grant
        assert grant is not None
        assert grant.variables == {}
    else:
        refused(data, said)


@given(st.binary(max_size=400))
def test_bytes_other_than_a_zip_are_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        opened(data)


@given(st.integers(0, 700), st.binary(min_size=1, max_size=8))
def test_damage_is_an_envelope_error_or_without_effect(place: int, noise: bytes) -> None:
    data = bytearray(packed())
    data[place : place + len(noise)] = noise
    with contextlib.suppress(EnvelopeError), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        opened(bytes(data)).close()


@FORMS
def test_a_truncated_download_is_an_envelope_error(form: str) -> None:
    data = packed(form=form)
    for size in range(0, len(data), 7 if form == "tar.gz" else 1):
        refused(data[:size], "not|cut|no env.json|no job.json|cannot be read", form=form)


def test_a_tar_truncated_inside_its_gzip_is_refused(tmp_path: Path) -> None:
    plain = gzip.decompress(packed(form="tar.gz"))
    for size in range(0, 3072, 100):  # before the input's own bytes
        refused(gzip.compress(plain[:size], 1), "tar|cut|no ", tmp_path, "tar.gz")


def test_a_bomb_of_a_tar_is_not_unpacked_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "UNPACKED_BYTES_MAX", 2**20)
    bomb = gzip.compress(bytes(2**24), 1)
    refused(bomb, "larger than 1048576 bytes unpacked", form="tar.gz")


@pytest.mark.parametrize("data", [b"no tar at all", gzip.compress(bytes(range(256)) * 20)])
def test_bytes_other_than_a_tar_are_refused(data: bytes) -> None:
    refused(data, "not a readable tar", form="tar.gz")


class Answers:
    """As much of an S3 client as `fetch` uses."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def get_object(self, **_: object) -> dict[str, Any]:
        return {"Body": self._body}


@FORMS
def test_one_is_fetched_by_the_form_in_its_key(form: str) -> None:
    body = io.BytesIO(packed(form=form))
    with envelope.fetch(Answers(body), "b", "k", form) as found:
        assert found.job == JOB


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
