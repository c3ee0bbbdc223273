"""Uploads by HTML form (POST Object): presigned by boto3, and what a POST policy refuses."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from urllib3.filepost import encode_multipart_formdata

from tests.embedded_cloud import PAIR, Address, Answer, client_of, cloud_in

LATER = "2999-01-01T00:00:00.000Z"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """One that verifies signatures."""
    with cloud_in(tmp_path_factory.mktemp("forms"), keys=PAIR) as address:
        yield address


@pytest.fixture(scope="module")
def s3(cloud: Address) -> Iterator[Any]:
    with client_of(cloud, "s3", PAIR, signature_version="s3v4") as client:
        client.create_bucket(Bucket="bucket")
        yield client


@pytest.fixture(scope="module")
def open_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """One that verifies nothing: a policy holds all the same."""
    with cloud_in(tmp_path_factory.mktemp("open")) as address:
        assert address.ask("PUT", "/bucket").status == 200
        yield address


def post(
    cloud: Address,
    fields: Mapping[str, str],
    file: bytes | None = b"data",
    file_name: str = "up.txt",
    bucket: str = "bucket",
) -> Answer:
    parts: list[Any] = list(fields.items())
    if file is not None:
        parts.append(("file", (file_name, file)))
    body, kind = encode_multipart_formdata(parts)
    return cloud.ask("POST", f"/{bucket}", body, {"Content-Type": kind})


def signed(fields: Mapping[str, str], policy: object, secret: str = PAIR.secret_key) -> Any:
    """The fields with a policy, signed by version 2 as forms of the first days are."""
    text = base64.b64encode(json.dumps(policy).encode()).decode()
    digest = hmac.new(secret.encode(), text.encode(), hashlib.sha1).digest()
    own = {"AWSAccessKeyId": PAIR.access_key, "policy": text}
    return {**fields, **own, "signature": base64.b64encode(digest).decode()}


def policy(*conditions: object, expiration: str = LATER) -> dict[str, object]:
    rules = [{"bucket": "bucket"}, ["starts-with", "$key", "foo"], *conditions]
    return {"expiration": expiration, "conditions": rules}


def test_boto3_presigns_a_form(cloud: Address, s3: Any) -> None:
    made = s3.generate_presigned_post(
        "bucket",
        "in/${filename}",
        Fields={"Content-Type": "text/x", "x-amz-meta-who": "mé", "Cache-Control": "no-cache"},
        Conditions=[
            {"Content-Type": "text/x"},
            {"x-amz-meta-who": "mé"},
            ["starts-with", "$cache-control", "no"],
            ["content-length-range", 1, 10],
        ],
    )
    answer = post(cloud, made["fields"], b"ten bytes!", "dir/name.txt")
    assert (answer.status, answer.body) == (204, b"")
    found = s3.get_object(Bucket="bucket", Key="in/name.txt")
    with found["Body"] as body:
        assert body.read() == b"ten bytes!"
    assert answer.headers["ETag"] == found["ETag"]
    assert answer.headers["Location"] == f"http://{cloud.netloc}/bucket/in/name.txt"
    assert (found["ContentType"], found["CacheControl"]) == ("text/x", "no-cache")
    for size, wanted in ((0, "EntityTooSmall"), (11, "EntityTooLarge")):
        assert post(cloud, made["fields"], b"x" * size).code == wanted


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("x-amz-signature", "0" * 64, "SignatureDoesNotMatch"),
        ("x-amz-credential", "NOBODY/DATE/us-east-1/s3/aws4_request", "InvalidAccessKeyId"),
        ("x-amz-credential", "NOBODY", "AuthorizationQueryParametersError"),
        ("x-amz-date", "yesterday", "InvalidArgument"),
        ("key", "other", "AccessDenied"),
        ("x-amz-meta-extra", "1", "AccessDenied"),
    ],
)
def test_a_changed_form_is_refused(
    cloud: Address, s3: Any, name: str, value: str, wanted: str
) -> None:
    fields = s3.generate_presigned_post("bucket", "key")["fields"]
    value = value.replace("DATE", fields["x-amz-date"][:8])
    assert post(cloud, {**fields, name: value}).code == wanted


def test_a_form_without_a_policy_is_anonymous(cloud: Address, s3: Any) -> None:
    answer = post(cloud, {"key": "foo"})
    assert (answer.status, answer.code) == (403, "AccessDenied")


def test_a_policy_is_for_its_bucket(cloud: Address, s3: Any) -> None:
    s3.create_bucket(Bucket="second")
    fields = s3.generate_presigned_post("bucket", "key")["fields"]
    answer = post(cloud, fields, bucket="second")
    assert (answer.status, answer.code) == (403, "AccessDenied")
    assert b"Policy Condition failed" in answer.body


def test_version_2_forms(cloud: Address, s3: Any) -> None:
    fields = signed({"kEy": "foo v2", "x-ignore-me": "1"}, policy())
    assert post(cloud, fields).status == 204
    assert s3.head_object(Bucket="bucket", Key="foo v2")["ContentType"] == "binary/octet-stream"
    assert post(cloud, signed({"key": "foo"}, policy(), "other")).code == "SignatureDoesNotMatch"
    unsigned = {name: value for name, value in fields.items() if name != "signature"}
    answer = post(cloud, unsigned)
    assert (answer.status, answer.code) == (400, "InvalidArgument")


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        (policy(expiration="2001-01-01T00:00:00Z"), (403, "AccessDenied")),
        (policy(expiration="2999-01-01 00:00:00"), (400, "InvalidPolicyDocument")),
        ({"EXPIRATION": LATER, "conditions": []}, (400, "InvalidPolicyDocument")),
        ({"expiration": LATER}, (400, "InvalidPolicyDocument")),
        ({"expiration": LATER, "conditions": [{}]}, (400, "InvalidPolicyDocument")),
        (
            {"expiration": LATER, "conditions": [["like", "$key", "x"]]},
            (400, "InvalidPolicyDocument"),
        ),
        ([], (400, "InvalidPolicyDocument")),
        (policy(["content-length-range", 0]), (400, "InvalidPolicyDocument")),
        (policy(["content-length-range", -1, 0]), (400, "InvalidPolicyDocument")),
        (policy(["content-length-range", 0, 3]), (400, "EntityTooLarge")),
        (policy(["content-length-range", 5, 9]), (400, "EntityTooSmall")),
        (policy(["eq", "$x-amz-meta-a", "b"]), (403, "AccessDenied")),
        (policy({"acl": "private"}), (403, "AccessDenied")),
        ({"expiration": LATER, "conditions": [["starts-with", "$key", ""]]}, (403, "AccessDenied")),
    ],
)
def test_forms_that_a_policy_refuses(
    open_cloud: Address, document: object, wanted: tuple[int, str]
) -> None:
    answer = post(open_cloud, signed({"key": "foo refused"}, document))
    assert (answer.status, answer.code) == wanted
    assert open_cloud.ask("GET", "/bucket/foo%20refused").status == 404


def test_a_policy_sees_the_file_s_name(open_cloud: Address) -> None:
    """`${filename}` is replaced in every field before conditions are checked."""
    fields = {"key": "${filename}", "x-amz-meta-was": "${filename}"}
    form = signed(fields, policy(["eq", "$x-amz-meta-was", "foo.txt"]))
    assert post(open_cloud, form, file_name="foo.txt").status == 204
    assert open_cloud.ask("GET", "/bucket/foo.txt").headers["x-amz-meta-was"] == "foo.txt"
    assert post(open_cloud, form, file_name="bar.txt").status == 403


def test_lists_of_content_types(open_cloud: Address) -> None:
    """Each of a list must begin so."""
    images = policy(["StArTs-WiTh", "$Content-Type", "image/"])
    for kind, status in (("image/png,image/gif", 204), ("image/png,text/html", 403)):
        fields = signed({"key": "foo", "Content-Type": kind}, images)
        assert post(open_cloud, fields).status == status


def test_a_policy_needs_no_signature_without_keys_but_a_field_of_it(open_cloud: Address) -> None:
    text = base64.b64encode(json.dumps(policy()).encode()).decode()
    assert post(open_cloud, {"key": "foo", "policy": text}).code == "InvalidArgument"
    assert (
        post(
            open_cloud, {"key": "foo", "policy": "%", "signature": "x", "AWSAccessKeyId": "k"}
        ).code
        == "InvalidPolicyDocument"
    )


def test_answers(open_cloud: Address) -> None:
    for status, wanted in (("200", 200), ("201", 201), ("204", 204), ("404", 204), ("", 204)):
        answer = post(open_cloud, {"key": "a b", "success_action_status": status})
        assert answer.status == wanted
        if wanted == 201:
            location = f"http://{open_cloud.netloc}/bucket/a%20b"
            assert b"<PostResponse><Location>" in answer.body
            assert f"<Location>{location}</Location><Bucket>bucket</Bucket>".encode() in answer.body
    target = "http://localhost/done?x=1"
    answer = post(open_cloud, {"key": "a b", "success_action_redirect": target})
    etag = hashlib.md5(b"data", usedforsecurity=False).hexdigest()
    assert answer.status == 303
    redirected = f"{target}&bucket=bucket&key=a%20b&etag=%22{etag}%22"
    assert answer.headers["Location"] == redirected
    for wrong in ("no address", "javascript:alert(1)", "http://a\r\nb"):
        assert post(open_cloud, {"key": "k", "success_action_redirect": wrong}).status == 204


def test_tags_and_checksums(open_cloud: Address) -> None:
    tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    digest = base64.b64encode(hashlib.sha256(b"data").digest()).decode()
    fields = {"key": "tagged", "tagging": tags, "x-amz-checksum-sha256": digest}
    assert post(open_cloud, fields).status == 204
    assert b"<Key>a</Key>" in open_cloud.ask("GET", "/bucket/tagged?tagging").body
    shown = open_cloud.ask("HEAD", "/bucket/tagged", headers={"x-amz-checksum-mode": "ENABLED"})
    assert shown.headers["x-amz-checksum-sha256"] == digest
    bad = {**fields, "x-amz-checksum-sha256": base64.b64encode(bytes(32)).decode()}
    assert post(open_cloud, bad).code == "BadDigest"


def test_a_post_that_is_not_a_form_is_refused(open_cloud: Address) -> None:
    assert post(open_cloud, {"Content-Type": "a/b"}).code == "InvalidArgument"
    assert post(open_cloud, {"key": "foo"}, None).code == "InvalidArgument"
    assert post(open_cloud, {"key": "k", "x-amz-meta-a": "x" * 30_000}).code == (
        "MaxPostPreDataLengthExceeded"
    )
    assert post(open_cloud, {"key": "foo"}, bucket="nowhere").code == "NoSuchBucket"
    plain = open_cloud.ask("POST", "/bucket", b"a=b", {"Content-Type": "text/plain"})
    assert (plain.status, plain.code) == (412, "PreconditionFailed")
    for kind in ("multipart/form-data", 'multipart/form-data; boundary="b"'):
        broken = open_cloud.ask("POST", "/bucket", b"--a\r\nnothing", {"Content-Type": kind})
        assert (broken.status, broken.code) == (400, "MalformedPOSTRequest")
    cut = b'--b\r\nContent-Disposition: form-data; name="key"\r\n\r\nk'
    answer = open_cloud.ask("POST", "/bucket", cut, {"Content-Type": kind})
    assert (answer.status, answer.code) == (400, "MalformedPOSTRequest")


@pytest.mark.parametrize(
    "part",
    [
        b"no header\r\n\r\nk",
        b"A" * 20_000 + b": b\r\n\r\nk",
        b"\x00: b\r\n\r\nk",
        b"A: b\r\n" * 2_000 + b"\r\nk",
        b"Content-Length: x\r\n\r\nk",
        b"Content-Disposition: form-data\r\n\r\nk",
        b"\r\n\r\nk",
        b'Content-Disposition: form-data; name="_charset_"\r\n\r\n' + b"x" * 40,
        b'Content-Disposition: form-data; name="_charset_"\r\n\r\n\xff',
        b"Content-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\r\nk\r\n--c--",
    ],
)
def test_parts_that_cannot_be_read(open_cloud: Address, part: bytes) -> None:
    body = b"--b\r\n" + part + b"\r\n--b--\r\n"
    kind = {"Content-Type": 'multipart/form-data; boundary="b"'}
    answer = open_cloud.ask("POST", "/bucket", body, kind)
    assert (answer.status, answer.code) == (400, "MalformedPOSTRequest")


def test_fields_after_the_file_are_ignored(open_cloud: Address) -> None:
    parts: list[Any] = [("key", "first"), ("file", ("f", b"data")), ("key", "second")]
    body, kind = encode_multipart_formdata(parts)
    assert open_cloud.ask("POST", "/bucket", body, {"Content-Type": kind}).status == 204
    assert open_cloud.ask("GET", "/bucket/first").body == b"data"


def test_a_large_file_comes_through(open_cloud: Address) -> None:
    data = bytes(range(256)) * 12_000
    assert post(open_cloud, {"key": "large"}, data).status == 204
    assert open_cloud.ask("GET", "/bucket/large").body == data
