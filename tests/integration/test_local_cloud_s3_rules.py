"""S3's smaller rules: names, locations, markers, copies, limits, documents, clients that leave."""

from __future__ import annotations

import logging
import socket
import struct
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from botocore.exceptions import ClientError

from local_cloud.model.s3.body import Segment
from local_cloud.server.bodies import FileBodies
from tests.embedded_cloud import Address, client_of, cloud_in


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with cloud_in(tmp_path_factory.mktemp("rules")) as address:
        assert address.ask("PUT", "/bucket").status == 200
        yield address


@pytest.fixture(scope="module")
def s3(cloud: Address) -> Iterator[Any]:
    with client_of(cloud, "s3") as client:
        yield client


def test_every_answer_has_request_ids(cloud: Address) -> None:
    for path in ("/bucket", "/none", "/bucket/none"):
        for method in ("GET", "HEAD", "DELETE"):
            headers = cloud.ask(method, path).headers
            assert len(headers["x-amz-request-id"]) == 16
            assert headers["x-amz-id-2"]
        cloud.ask("PUT", "/bucket")
    failed = cloud.ask("GET", "/bucket/none")
    request_id, host_id = failed.headers["x-amz-request-id"], failed.headers["x-amz-id-2"]
    assert f"<RequestId>{request_id}</RequestId><HostId>{host_id}<".encode() in failed.body


def test_names_that_s3_has_not_are_refused(cloud: Address) -> None:
    ends = ("bucket-s3alias", "bucket--ol-s3", "abc--x-s3", "abc.mrap", "abc-", "abc.")
    begins = ("xn--bucket", "sthree-abc", "-abc", ".abc")
    inside = ("a.-b", "a-.b", "a..b", "Abc", "a_b")
    for name in (*ends, *begins, *inside, "192.168.1.1", "ab", "a" * 64):
        answer = cloud.ask("PUT", f"/{name}")
        assert (answer.status, answer.code) == (400, "InvalidBucketName")
    for name in ("192.168.1.1a", "a.b", "1.2.3", "x-n--b", "a--b", "a" * 63):
        assert cloud.ask("PUT", f"/{name}").status == 200


def location(place: str) -> bytes:
    constraint = f"<LocationConstraint>{place}</LocationConstraint>"
    return f"<CreateBucketConfiguration>{constraint}</CreateBucketConfiguration>".encode()


def test_making_ones_own_bucket_again(cloud: Address) -> None:
    """Succeeds in us-east-1 and changes nothing; not elsewhere."""
    cloud.ask("PUT", "/again")
    cloud.ask("PUT", "/again/key", b"kept")
    assert cloud.ask("PUT", "/again").status == 200
    assert cloud.ask("GET", "/again/key").body == b"kept"
    assert cloud.ask("PUT", "/far", location("eu-west-1")).status == 200
    for body in (b"", location("eu-west-1"), location("eu-west-2")):
        answer = cloud.ask("PUT", "/far", body)
        assert (answer.status, answer.code) == (409, "BucketAlreadyOwnedByYou")


def test_a_location_is_remembered(cloud: Address, s3: Any) -> None:
    cloud.ask("PUT", "/placed", location("ap-south-2"))
    assert s3.get_bucket_location(Bucket="placed")["LocationConstraint"] == "ap-south-2"
    assert cloud.ask("HEAD", "/placed").headers["x-amz-bucket-region"] == "ap-south-2"
    assert s3.get_bucket_location(Bucket="bucket")["LocationConstraint"] is None
    for place in ("us-east-1", "the moon"):
        answer = cloud.ask("PUT", "/nowhere", location(place))
        assert (answer.status, answer.code) == (400, "InvalidLocationConstraint")


def test_delete_markers_are_named_in_headers(cloud: Address, s3: Any) -> None:
    cloud.ask("PUT", "/marked")
    s3.put_bucket_versioning(Bucket="marked", VersioningConfiguration={"Status": "Enabled"})
    cloud.ask("PUT", "/marked/k", b"x")
    marker = cloud.ask("DELETE", "/marked/k").headers["x-amz-version-id"]
    for method in ("GET", "HEAD"):
        gone = cloud.ask(method, "/marked/k")
        shown = (gone.headers["x-amz-delete-marker"], gone.headers["x-amz-version-id"])
        assert (gone.status, shown) == (404, ("true", marker))
        itself = cloud.ask(method, f"/marked/k?versionId={marker}")
        assert (itself.status, itself.headers["x-amz-delete-marker"]) == (405, "true")
        assert itself.headers["Allow"] == "DELETE"
    undone = cloud.ask("DELETE", f"/marked/k?versionId={marker}")
    assert undone.headers["x-amz-delete-marker"] == "true"
    assert "x-amz-delete-marker" not in cloud.ask("GET", "/marked/never").headers


def test_a_copy_to_itself_must_change_something(cloud: Address) -> None:
    cloud.ask("PUT", "/bucket/self", b"x", {"x-amz-meta-a": "1"})
    source = {"x-amz-copy-source": "/bucket/self"}
    refused = cloud.ask("PUT", "/bucket/self", headers=source)
    assert (refused.status, refused.code) == (400, "InvalidRequest")
    for change in (
        {"x-amz-metadata-directive": "REPLACE", "x-amz-meta-a": "2"},
        {"x-amz-storage-class": "STANDARD"},
        {"x-amz-checksum-algorithm": "SHA256"},
        {"x-amz-server-side-encryption": "AES256"},
    ):
        assert cloud.ask("PUT", "/bucket/self", headers=source | change).status == 200
    assert cloud.ask("GET", "/bucket/self").headers["x-amz-meta-a"] == "2"
    assert cloud.ask("PUT", "/bucket/other", headers=source).status == 200
    assert cloud.ask("GET", "/bucket/other").headers["x-amz-meta-a"] == "2"


def test_metadata_has_a_limit_of_two_kilobytes(cloud: Address) -> None:
    fits = {"x-amz-meta-a": "v" * 1023, "x-amz-meta-b": "v" * 1023}
    assert cloud.ask("PUT", "/bucket/meta", b"x", fits).status == 200
    answer = cloud.ask("PUT", "/bucket/meta", b"x", fits | {"x-amz-meta-c": ""})
    assert (answer.status, answer.code) == (400, "MetadataTooLarge")
    assert b"2048" in answer.body


def test_a_body_without_a_length_is_refused(cloud: Address) -> None:
    with closing(socket.create_connection(("127.0.0.1", cloud.port))) as connection:
        connection.sendall(
            b"PUT /bucket/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        connection.settimeout(60)
        assert connection.recv(65536).startswith(b"HTTP/1.1 411 ")


def test_another_accounts_bucket_is_not_expected(cloud: Address) -> None:
    owner = "x-amz-expected-bucket-owner"
    answer = cloud.ask("GET", "/bucket", headers={owner: "111122223333"})
    assert (answer.status, answer.code) == (403, "AccessDenied")
    assert cloud.ask("GET", "/bucket", headers={owner: "000000000000"}).status == 200


# --- documents

BOMB = """<?xml version="1.0" encoding="{name}"?><!DOCTYPE T [<!ENTITY a "aaaaaaaaaa">
<!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]><Tagging><TagSet><Tag><Key>&b;</Key><Value>x</Value></Tag>
</TagSet></Tagging>"""


def test_a_document_that_is_not_plain_xml_is_refused(cloud: Address) -> None:
    good = "<Tagging><TagSet><Tag><Key>ä</Key></Tag></TagSet></Tagging>".encode()
    assert cloud.ask("PUT", "/bucket?tagging", good).status == 200
    assert "<Key>ä</Key>".encode() in cloud.ask("GET", "/bucket?tagging").body
    bombs = [BOMB.format(name=name).encode(name) for name in ("utf-8", "utf-16", "iso-8859-1")]
    unread = [f'<?xml version="1.0" encoding="{n}"?>'.encode() + good for n in ("utf-7", "no-such")]
    for body in (*bombs, *unread):
        answer = cloud.ask("PUT", "/bucket?tagging", body)
        assert (answer.status, answer.code) == (400, "MalformedXML")
    assert cloud.ask("PUT", "/bucket?policy", b"\xff\xfe{\0").status == 400


# --- messages and lines


@pytest.mark.parametrize("text", ["\0", "a\x08", "\x0b", "\x1f", "\ufffe", "\uffff"])
def test_characters_that_xml_has_not_are_no_message(cloud: Address, text: str) -> None:
    with client_of(cloud, "sqs") as sqs:
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        attribute = {"a": {"DataType": "String", "StringValue": text}}
        for arguments in (
            {"MessageBody": text},
            {"MessageBody": "x", "MessageAttributes": attribute},
        ):
            with pytest.raises(ClientError) as error:
                sqs.send_message(QueueUrl=url, **arguments)
            assert error.value.response["Error"]["Code"] == "InvalidMessageContents"
        entries = [{"Id": "1", "MessageBody": text}, {"Id": "2", "MessageBody": "\t\r\n ü𝄞"}]
        answer = sqs.send_message_batch(QueueUrl=url, Entries=entries)
        assert [e["Code"] for e in answer["Failed"]] == ["InvalidMessageContents"]
        assert [e["Id"] for e in answer["Successful"]] == ["2"]


# --- clients that leave


def test_a_client_that_breaks_off_leaves_no_trace_in_the_log(
    cloud: Address, caplog: pytest.LogCaptureFixture
) -> None:
    big = b"x" * 8 * 2**20
    assert cloud.ask("PUT", "/bucket/big", big).status == 200
    caplog.clear()
    head = b"Host: localhost\r\n"
    requests = [
        b"PUT /bucket/cut HTTP/1.1\r\n%bContent-Length: 1000\r\n\r\nhalf" % head,
        b"PUT /bucket/cut HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n5\r\nab" % head,
        b"PUT /bucket/cut HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\nzz\r\n" % head,
        b"PUT /bucket?tagging HTTP/1.1\r\n%bContent-Length: 1000\r\n\r\n<Tag" % head,
        b"POST / HTTP/1.1\r\n%bX-Amz-Target: AmazonSQS.ListQueues\r\nContent-Length: 9\r\n\r\n{"
        % head,
        b"POST /2015-03-31/functions HTTP/1.1\r\n%bContent-Length: 9\r\n\r\n{" % head,
        b"GET /bucket/big HTTP/1.1\r\n%b\r\n" % head,
        b"GET /bucket/big HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"\x16\x03\x01\x02\x00not http at all\r\n\r\n",
        b"GET /bucket/big HTT",
    ]
    for request in requests:
        for abruptly in (False, True):
            with closing(socket.create_connection(("127.0.0.1", cloud.port))) as connection:
                connection.sendall(request)
                if b"GET /bucket/big HTTP/1.1\r\nHost" in request:
                    connection.recv(1)
                if abruptly:  # a reset instead of an orderly end
                    linger = struct.pack("ii", 1, 0)
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    assert cloud.ask("GET", "/bucket/cut").status == 404
    assert cloud.ask("GET", "/bucket/big").body == big
    records = [r for r in caplog.records if r.levelno >= logging.WARNING or r.exc_info]
    assert [record.getMessage() for record in records] == []


def test_a_source_deleted_during_a_copy(
    cloud: Address, s3: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of the source stay until the copy has read them."""
    reading, deleted = threading.Event(), threading.Event()
    chunks = FileBodies.chunks

    def held(bodies: FileBodies, segments: Iterable[Segment]) -> Iterator[bytes]:
        """The chunks of the body, once its object is deleted."""
        reading.set()
        assert deleted.wait(60)
        yield from chunks(bodies, segments)

    data = bytes(4 * 2**20)
    s3.put_object(Bucket="bucket", Key="going", Body=data)
    monkeypatch.setattr(FileBodies, "chunks", held)
    headers = {"x-amz-copy-source": "bucket/going", "x-amz-checksum-algorithm": "SHA256"}
    with ThreadPoolExecutor(1) as pool:
        copied = pool.submit(cloud.ask, "PUT", "/bucket/kept", b"", headers)
        try:
            assert reading.wait(60)
            assert cloud.ask("DELETE", "/bucket/going").status == 204
        finally:
            deleted.set()
        assert copied.result().status == 200
    assert cloud.ask("GET", "/bucket/kept").body == data


def test_what_this_cloud_has_not_is_refused_by_name(cloud: Address) -> None:
    for method, path, headers, named in (
        ("GET", "/bucket?acl", {}, b"S3 GET ?acl of a bucket"),
        ("PUT", "/bucket/k?acl", {}, b"S3 PUT ?acl of an object"),
        ("PUT", "/bucket?cors", {}, b"?cors"),
        ("GET", "/bucket/k?attributes", {}, b"?attributes"),
        ("GET", "/bucket?object-lock", {}, b"?object-lock"),
        ("GET", "/bucket?uploads", {}, b"?uploads"),
        ("POST", "/bucket", {}, b"PostObject"),
        ("PUT", "/bucket/k", {"x-amz-acl": "public-read"}, b"x-amz-acl"),
        ("PUT", "/bucket/k", {"x-amz-grant-read": "id=1"}, b"x-amz-grant-read"),
        ("PUT", "/bucket/k", {"x-amz-object-lock-mode": "GOVERNANCE"}, b"x-amz-object-lock-mode"),
        ("PUT", "/other", {"x-amz-bucket-object-lock-enabled": "true"}, b"object lock"),
    ):
        answer = cloud.ask(method, path, b"", headers)
        assert (answer.status, answer.code, named in answer.body) == (501, "NotImplemented", True)
    own = {"x-amz-acl": "bucket-owner-full-control"}
    assert cloud.ask("PUT", "/bucket/own", b"x", own).status == 200
    assert cloud.ask("GET", "/other").code == "NoSuchBucket"
    assert cloud.ask("PATCH", "/bucket/own").code == "MethodNotAllowed"
