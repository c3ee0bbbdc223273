"""Bytes come back as they were sent: encodings, checksums, parts, and what is refused of them."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anycrc
import pytest

from tests.embedded_cloud import Address, Answer, client_of, cloud_in

MIB = 2**20


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with cloud_in(tmp_path_factory.mktemp("bytes")) as address:
        assert address.ask("PUT", "/bucket").status == 200
        yield address


@pytest.fixture(scope="module")
def s3(cloud: Address) -> Iterator[Any]:
    with client_of(cloud, "s3") as client:
        yield client


def crc(name: str, data: bytes) -> str:
    value = int(anycrc.Model(name).calc(data))
    return base64.b64encode(value.to_bytes(8 if "64" in name else 4, "big")).decode()


def sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


# --- content encodings

PLAIN = b"some text " * 1000


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(PLAIN, mtime=0)),
        ("deflate", zlib.compress(PLAIN)),
        ("deflate, gzip", PLAIN),
        ("gzip", b""),
    ],
)
def test_an_encoded_body_is_kept_as_it_was_sent(cloud: Address, encoding: str, body: bytes) -> None:
    digest = {"x-amz-checksum-sha256": sha256(body), "x-amz-sdk-checksum-algorithm": "SHA256"}
    headers = {"Content-Encoding": encoding, **digest}
    assert cloud.ask("PUT", "/bucket/encoded", body, headers).status == 200
    answer = cloud.ask("GET", "/bucket/encoded")
    assert (answer.body, answer.headers["Content-Encoding"]) == (body, encoding)
    if body:
        part = cloud.ask("GET", "/bucket/encoded", headers={"Range": "bytes=0-4"})
        assert part.body == body[:5]


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("aws-chunked", None),
        ("gzip, aws-chunked", "gzip"),
        ("aws-chunked,gzip", "gzip"),
        ("aws-chunked, aws-chunked", None),
    ],
)
def test_aws_chunked_is_not_stored_with_the_object(
    cloud: Address, sent: str, kept: str | None
) -> None:
    body = gzip.compress(PLAIN, mtime=0)
    wire = b"%x\r\n%b\r\n0\r\nx-amz-checksum-crc32:%b\r\n\r\n" % (
        len(body),
        body,
        crc("CRC32", body).encode(),
    )
    headers = {
        "Content-Encoding": sent,
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": str(len(body)),
        "x-amz-trailer": "x-amz-checksum-crc32",
    }
    assert cloud.ask("PUT", "/bucket/chunked", wire, headers).status == 200
    answer = cloud.ask("GET", "/bucket/chunked")
    assert (answer.body, answer.headers["Content-Encoding"]) == (body, kept)


def test_other_services_inflate_nothing(cloud: Address) -> None:
    bomb = gzip.compress(b" " * 64 * MIB, mtime=0)
    headers = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Encoding": "gzip"}
    answer = cloud.ask("POST", "/", bomb, headers)
    assert (answer.status, json.loads(answer.body)["message"]) == (400, "The body is not JSON")


# --- what is sent and what is told about it


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"Content-MD5": base64.b64encode(b"x" * 16).decode()}, "BadDigest"),
        ({"x-amz-content-sha256": "0" * 64}, "XAmzContentSHA256Mismatch"),
        ({"x-amz-checksum-crc32": "AAAAAA=="}, "BadDigest"),
        ({"x-amz-checksum-crc32c": "AAAAAA=="}, "BadDigest"),
        ({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}, "BadDigest"),
        ({"x-amz-checksum-md4": "AAAAAA=="}, "InvalidRequest"),
        ({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-sha1": "AA=="}, "InvalidRequest"),
    ],
)
def test_a_body_that_differs_from_its_headers_is_refused(
    cloud: Address, headers: dict[str, str], wanted: str
) -> None:
    assert cloud.ask("PUT", "/bucket/untouched", b"old").status == 200
    answer = cloud.ask("PUT", "/bucket/untouched", b"data", headers)
    assert (answer.status, answer.code) == (400, wanted)
    assert cloud.ask("GET", "/bucket/untouched").body == b"old"
    document = cloud.ask("PUT", "/bucket?versioning", b"data", headers)
    assert (document.status, document.code) == (400, wanted)


def test_a_chunked_body_without_its_trailer_or_its_chunks_is_refused(cloud: Address) -> None:
    headers = {
        "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        "x-amz-decoded-content-length": "4",
        "x-amz-trailer": "x-amz-checksum-crc32",
    }
    for body, code in (
        (b"4\r\ndata\r\n0\r\n\r\n", "MalformedTrailerError"),
        (b"no chunks at all", "IncompleteBody"),
    ):
        answer = cloud.ask("PUT", "/bucket/trailer", body, headers)
        assert (answer.status, answer.code) == (400, code)
    assert cloud.ask("GET", "/bucket/trailer").status == 404


# --- checksums


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [
        ("crc32", crc("CRC32", PLAIN)),
        ("crc32c", crc("CRC32C", PLAIN)),
        ("sha256", sha256(PLAIN)),
        ("crc64nvme", crc("CRC64-NVME", PLAIN)),
        ("sha1", base64.b64encode(hashlib.sha1(PLAIN).digest()).decode()),
    ],
)
def test_a_checksum_is_verified_kept_and_shown_on_demand(
    cloud: Address, algorithm: str, value: str
) -> None:
    header = f"x-amz-checksum-{algorithm}"
    put = cloud.ask("PUT", "/bucket/sum", PLAIN, {header: value})
    assert (put.headers[header], put.headers["x-amz-checksum-type"]) == (value, "FULL_OBJECT")
    for method in ("GET", "HEAD"):
        assert header not in cloud.ask(method, "/bucket/sum").headers
        shown = cloud.ask(method, "/bucket/sum", headers={"x-amz-checksum-mode": "ENABLED"}).headers
        assert (shown[header], shown["x-amz-checksum-type"]) == (value, "FULL_OBJECT")
    cut = {"x-amz-checksum-mode": "ENABLED", "Range": "bytes=0-3"}
    assert header not in cloud.ask("GET", "/bucket/sum", headers=cut).headers


PIECES = (b"a" * 5 * MIB, b"b" * 5 * MIB, b"tail")


def uploaded(cloud: Address, key: str, algorithm: str, kind: str, numbers: Any) -> Answer:
    """A finished upload of PIECES with part checksums by the algorithm."""
    wanted = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": kind}
    started = cloud.ask("POST", f"/bucket/{key}?uploads", headers=wanted if algorithm else {})
    assert started.status == 200, started.body
    upload = started.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    listed = []
    for number, piece in zip(numbers, PIECES, strict=True):
        path = f"/bucket/{key}?uploadId={upload}&partNumber={number}"
        headers = {"x-amz-checksum-crc32c": crc("CRC32C", piece)} if algorithm == "CRC32C" else {}
        part = cloud.ask("PUT", path, piece, headers)
        assert part.status == 200, part.body
        listed.append(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{part.headers['ETag']}</ETag></Part>"
        )
    document = f"<CompleteMultipartUpload>{''.join(listed)}</CompleteMultipartUpload>".encode()
    return cloud.ask("POST", f"/bucket/{key}?uploadId={upload}", document)


@pytest.mark.parametrize(
    ("algorithm", "kind", "element", "value"),
    [
        ("CRC32", "FULL_OBJECT", "ChecksumCRC32", crc("CRC32", b"".join(PIECES))),
        ("CRC32C", "FULL_OBJECT", "ChecksumCRC32C", crc("CRC32C", b"".join(PIECES))),
        ("CRC64NVME", "", "ChecksumCRC64NVME", crc("CRC64-NVME", b"".join(PIECES))),
        ("", "", "ChecksumCRC64NVME", crc("CRC64-NVME", b"".join(PIECES))),
        (
            "SHA256",
            "",
            "ChecksumSHA256",
            sha256(b"".join(hashlib.sha256(p).digest() for p in PIECES)) + "-3",
        ),
        (
            "CRC32C",
            "COMPOSITE",
            "ChecksumCRC32C",
            crc("CRC32C", b"".join(base64.b64decode(crc("CRC32C", p)) for p in PIECES)) + "-3",
        ),
    ],
)
def test_checksums_of_parts_are_combined(
    cloud: Address, s3: Any, algorithm: str, kind: str, element: str, value: str
) -> None:
    done = uploaded(cloud, "joined", algorithm, kind, (1, 5, 9))
    assert f"<{element}>{value}</{element}>".encode() in done.body
    wanted = "COMPOSITE" if value.endswith("-3") else "FULL_OBJECT"
    head = s3.head_object(Bucket="bucket", Key="joined", ChecksumMode="ENABLED")
    assert (head[element], head["ChecksumType"]) == (value, wanted)
    part = s3.get_object(Bucket="bucket", Key="joined", PartNumber=3)
    with part["Body"] as body:
        assert (body.read(), part["PartsCount"]) == (b"tail", 3)


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [("SHA256", "FULL_OBJECT"), ("CRC64NVME", "COMPOSITE"), ("CRC32", "HALF"), ("MD4", "")],
)
def test_a_checksum_type_that_s3_has_not_is_refused(
    cloud: Address, algorithm: str, kind: str
) -> None:
    headers = {"x-amz-checksum-algorithm": algorithm, "x-amz-checksum-type": kind}
    answer = cloud.ask("POST", "/bucket/k?uploads", headers=headers)
    assert (answer.status, answer.code) == (400, "InvalidRequest")


def test_a_wrong_checksum_of_the_whole_does_not_end_the_upload(cloud: Address, s3: Any) -> None:
    where = {"Bucket": "bucket", "Key": "wrong"}
    upload = s3.create_multipart_upload(**where, ChecksumAlgorithm="SHA256")["UploadId"]
    part = s3.upload_part(
        **where, UploadId=upload, PartNumber=1, Body=b"x", ChecksumAlgorithm="SHA256"
    )
    document = (
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%s</ETag>%s</Part>"
        "</CompleteMultipartUpload>"
    )
    plain = (document % (part["ETag"], "")).encode()
    other = (document % (part["ETag"], f"<ChecksumSHA256>{sha256(b'y')}</ChecksumSHA256>")).encode()
    path = f"/bucket/wrong?uploadId={upload}"
    for body, headers, wanted in (
        (plain, {"x-amz-checksum-sha256": sha256(b"y")}, "BadDigest"),
        (other, {}, "InvalidPart"),
    ):
        answer = cloud.ask("POST", path, body, headers)
        assert (answer.status, answer.code) == (400, wanted)
    mismatch = cloud.ask(
        "PUT", f"{path}&partNumber=2", b"x", {"x-amz-checksum-crc32": crc("CRC32", b"x")}
    )
    assert (mismatch.status, mismatch.code) == (400, "InvalidRequest")
    assert cloud.ask("POST", path, plain).status == 200


def test_a_copy_is_one_piece_with_a_checksum_of_its_own(s3: Any, cloud: Address) -> None:
    """CopyObject writes the bytes again: the etag is their md5, and no part is left."""
    uploaded(cloud, "source", "SHA256", "", (1, 2, 3))
    whole = b"".join(PIECES)
    where = {"Bucket": "bucket", "Key": "copy"}
    made = s3.copy_object(**where, CopySource="bucket/source")["CopyObjectResult"]
    etag = f'"{hashlib.md5(whole).hexdigest()}"'
    assert (made["ETag"], made["ChecksumSHA256"]) == (etag, sha256(whole))
    assert "PartsCount" not in s3.head_object(**where, PartNumber=1)
    again = s3.copy_object(**where, CopySource="bucket/source", ChecksumAlgorithm="CRC32")
    assert again["CopyObjectResult"]["ChecksumCRC32"] == crc("CRC32", whole)
    s3.copy({"Bucket": "bucket", "Key": "source"}, "bucket", "in-parts")  # by UploadPartCopy
    with s3.get_object(Bucket="bucket", Key="in-parts")["Body"] as body:
        assert body.read() == whole


def test_checksums_of_an_upload_last_over_a_restart(tmp_path: Path) -> None:
    with cloud_in(tmp_path) as first:
        first.ask("PUT", "/bucket")
        headers = {"x-amz-checksum-algorithm": "SHA1"}
        started = first.ask("POST", "/bucket/k?uploads", headers=headers)
        upload = started.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
        first.ask("PUT", f"/bucket/k?uploadId={upload}&partNumber=1", b"x")
    with cloud_in(tmp_path) as second:
        part = b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber></Part>"
        made = second.ask(
            "POST", f"/bucket/k?uploadId={upload}", part + b"</CompleteMultipartUpload>"
        )
        of_part = hashlib.sha1(b"x").digest()
        value = base64.b64encode(hashlib.sha1(of_part).digest())
        assert b"<ChecksumSHA1>" + value + b"-1<" in made.body
