"""S3 as our code uses it, on the embedded cloud and on moto."""

from __future__ import annotations

import contextlib
import http.client
import io
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest

# the fixtures' class lives in conftest.py, which is not importable by name
Cloud = Any
Refused = Callable[[Callable[[], Any]], str]
NASTY_KEYS = ["a b", "a+b", "50%", "ünï/cödé", "no-dot", "many.dots.in.it", "a//b", "../up", "q?&#"]


@pytest.mark.parametrize("key", NASTY_KEYS)
def test_any_key_is_stored_listed_and_read(cloud: Cloud, key: str) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    s3.put_object(Bucket=bucket, Key=key, Body=b"data", Metadata={"who": "me"})
    got = s3.get_object(Bucket=bucket, Key=key)
    with got["Body"] as body:
        assert body.read() == b"data"
    assert got["Metadata"] == {"who": "me"}
    listed = s3.list_objects_v2(Bucket=bucket)["Contents"]
    assert [(entry["Key"], entry["Size"]) for entry in listed] == [(key, 4)]


def test_a_missing_key_and_a_missing_bucket_differ(cloud: Cloud, refused: Refused) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    assert refused(lambda: s3.get_object(Bucket=bucket, Key="no")) == "NoSuchKey"
    assert refused(lambda: s3.head_object(Bucket=bucket, Key="no")) == "404"
    assert refused(lambda: s3.get_object(Bucket="nowhere", Key="no")) == "NoSuchBucket"
    assert refused(lambda: s3.put_object(Bucket="nowhere", Key="k", Body=b"")) == "NoSuchBucket"


def test_ranges(cloud: Cloud, refused: Refused) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    s3.put_object(Bucket=bucket, Key="k", Body=b"0123456789")

    def read(span: str) -> tuple[bytes, str, int]:
        got = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={span}")
        with got["Body"] as body:
            status = got["ResponseMetadata"]["HTTPStatusCode"]
            return body.read(), got["ContentRange"], status

    assert read("2-4") == (b"234", "bytes 2-4/10", 206)
    assert read("7-") == (b"789", "bytes 7-9/10", 206)
    assert read("-3") == (b"789", "bytes 7-9/10", 206)
    assert refused(lambda: s3.get_object(Bucket=bucket, Key="k", Range="bytes=10-")) == (
        "InvalidRange"
    )


def test_versions_can_be_pinned_and_deleted(cloud: Cloud, refused: Refused) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket(versioned=True)
    ids = [s3.put_object(Bucket=bucket, Key="k", Body=data)["VersionId"] for data in (b"1", b"2")]
    marker = s3.delete_object(Bucket=bucket, Key="k")
    assert marker["DeleteMarker"] is True
    assert refused(lambda: s3.get_object(Bucket=bucket, Key="k")) == "NoSuchKey"
    for data, version in zip((b"1", b"2"), ids, strict=True):
        with s3.get_object(Bucket=bucket, Key="k", VersionId=version)["Body"] as body:
            assert body.read() == data
    versions = s3.list_object_versions(Bucket=bucket)
    assert [v["VersionId"] for v in versions["Versions"]] == ids[::-1]
    assert [m["IsLatest"] for m in versions["DeleteMarkers"]] == [True]
    s3.delete_object(Bucket=bucket, Key="k", VersionId=marker["VersionId"])
    assert s3.head_object(Bucket=bucket, Key="k")["VersionId"] == ids[1]


def test_if_none_match_on_a_write(cloud: Cloud, refused: Refused) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket(versioned=True)
    s3.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")
    again = refused(lambda: s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfNoneMatch="*"))
    assert again == "PreconditionFailed"
    with s3.get_object(Bucket=bucket, Key="k")["Body"] as body:
        assert body.read() == b"first"


def test_if_match_on_a_write(cloud: Cloud, refused: Refused) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"2", IfMatch=etag)
    stale = refused(lambda: s3.put_object(Bucket=bucket, Key="k", Body=b"3", IfMatch=etag))
    absent = refused(lambda: s3.put_object(Bucket=bucket, Key="no", Body=b"3", IfMatch=etag))
    assert (stale, absent) == ("PreconditionFailed", "NoSuchKey")


def test_if_match_on_a_read(cloud: Cloud, refused: Refused) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"1")["ETag"]
    with s3.get_object(Bucket=bucket, Key="k", IfMatch=etag)["Body"] as body:
        assert body.read() == b"1"
    s3.put_object(Bucket=bucket, Key="k", Body=b"2")
    stale = refused(lambda: s3.get_object(Bucket=bucket, Key="k", IfMatch=etag))
    assert stale == "PreconditionFailed"


def test_listing_by_prefix_delimiter_and_page(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    for key in ("a/1", "a/2", "b/1", "c", "d"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    paginator = s3.get_paginator("list_objects_v2")
    paging = {"PageSize": 2}
    pages = list(paginator.paginate(Bucket=bucket, Delimiter="/", PaginationConfig=paging))
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    prefixes = [p["Prefix"] for page in pages for p in page.get("CommonPrefixes", ())]
    assert (keys, prefixes) == (["c", "d"], ["a/", "b/"])
    found = s3.list_objects_v2(Bucket=bucket, Prefix="a/", StartAfter="a/1")
    assert [e["Key"] for e in found["Contents"]] == ["a/2"]


def test_more_than_a_thousand_objects_take_two_pages(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    address = urllib.parse.urlsplit(cloud.endpoint)
    with contextlib.closing(http.client.HTTPConnection(address.netloc)) as plain:
        for number in range(1001):  # without boto3: a third of the time
            plain.request("PUT", f"/{bucket}/{number:04}", b"")
            assert plain.getresponse().read() == b""
    first = s3.list_objects_v2(Bucket=bucket)
    assert (first["KeyCount"], first["IsTruncated"]) == (1000, True)
    rest = s3.list_objects_v2(Bucket=bucket, ContinuationToken=first["NextContinuationToken"])
    assert ([e["Key"] for e in rest["Contents"]], rest["IsTruncated"]) == (["1000"], False)


def test_large_objects_go_in_parts(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    data = bytes(range(256)) * (17 * 4096)  # 17 MiB: three parts of boto3's eight
    s3.upload_fileobj(io.BytesIO(data), bucket, "big")
    head = s3.head_object(Bucket=bucket, Key="big")
    assert (head["ContentLength"], head["ETag"].endswith('-3"')) == (len(data), True)
    back = io.BytesIO()
    s3.download_fileobj(bucket, "big", back)
    assert back.getvalue() == data


def test_an_aborted_upload_leaves_nothing(cloud: Cloud, refused: Refused) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    s3.upload_part(**part, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(**part)
    assert refused(lambda: s3.upload_part(**part, PartNumber=2, Body=b"x")) == "NoSuchUpload"
    assert refused(lambda: s3.head_object(Bucket=bucket, Key="k")) == "404"


def test_copies_keep_or_replace_the_attributes(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    s3.put_object(Bucket=bucket, Key="a b", Body=b"data", Metadata={"x": "1"}, ContentType="t/x")
    source = {"Bucket": bucket, "Key": "a b"}
    s3.copy_object(Bucket=bucket, Key="kept", CopySource=source)
    s3.copy_object(
        Bucket=bucket,
        Key="new",
        CopySource=source,
        MetadataDirective="REPLACE",
        Metadata={"x": "2"},
        ContentType="t/y",
    )
    heads = [s3.head_object(Bucket=bucket, Key=key) for key in ("kept", "new")]
    assert [(h["Metadata"], h["ContentType"]) for h in heads] == [
        ({"x": "1"}, "t/x"),
        ({"x": "2"}, "t/y"),
    ]


def test_many_are_deleted_at_once(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    for key in ("a", "b", "ü c"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"")
    wanted = [{"Key": key} for key in ("a", "ü c", "never was")]
    done = s3.delete_objects(Bucket=bucket, Delete={"Objects": wanted})
    assert {d["Key"] for d in done["Deleted"]} == {"a", "ü c", "never was"}
    assert [e["Key"] for e in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["b"]


def test_a_bucket_that_is_not_empty_stays(cloud: Cloud, refused: Refused) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket(versioned=True)
    marker = s3.delete_object(Bucket=bucket, Key="k")["VersionId"]
    assert refused(lambda: s3.delete_bucket(Bucket=bucket)) == "BucketNotEmpty"
    s3.delete_object(Bucket=bucket, Key="k", VersionId=marker)
    s3.delete_bucket(Bucket=bucket)
    assert refused(lambda: s3.head_bucket(Bucket=bucket)) == "404"


def test_presigned_addresses_work_for_both_directions(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    target = {"Bucket": bucket, "Key": "k +"}
    put = urllib.request.Request(
        s3.generate_presigned_url("put_object", Params=target),
        data=b"signed",
        method="PUT",
        headers={"Content-Type": "text/plain"},
    )
    with urllib.request.urlopen(put) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(s3.generate_presigned_url("get_object", Params=target)) as got:
        assert got.read() == b"signed"


@pytest.mark.parametrize(
    ("kind", "arguments", "missing"),
    [
        ("bucket_policy", {"Policy": '{"Version": "2012-10-17"}'}, "NoSuchBucketPolicy"),
        (
            "bucket_tagging",
            {"Tagging": {"TagSet": [{"Key": "a", "Value": "b"}]}},
            "NoSuchTagSet",
        ),
        (
            "public_access_block",
            {"PublicAccessBlockConfiguration": {"BlockPublicAcls": True}},
            "NoSuchPublicAccessBlockConfiguration",
        ),
    ],
)
def test_configuration_is_kept(
    cloud: Cloud, refused: Refused, kind: str, arguments: dict[str, Any], missing: str
) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    get = getattr(s3, f"get_{kind}")
    assert refused(lambda: get(Bucket=bucket)) == missing
    getattr(s3, f"put_{kind}")(Bucket=bucket, **arguments)
    get(Bucket=bucket)
    getattr(s3, f"delete_{kind}")(Bucket=bucket)
    assert refused(lambda: get(Bucket=bucket)) == missing


# --- events


def _rule(arn: str, **more: Any) -> dict[str, Any]:
    return {"QueueArn": arn, "Events": ["s3:ObjectCreated:*"], **more}


def _filter(**rules: str) -> dict[str, Any]:
    named = [{"Name": name, "Value": value} for name, value in rules.items()]
    return {"Filter": {"Key": {"FilterRules": named}}}


def _configure(cloud: Cloud, bucket: str, *rules: dict[str, Any]) -> None:
    cloud.client("s3").put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"QueueConfigurations": list(rules)}
    )


def _records(cloud: Cloud, url: str, count: int) -> list[Any]:
    """Records of `count` messages behind the test event."""
    found = cloud.bodies(url, count + 1)
    assert found[0]["Event"] == "s3:TestEvent"
    return [record for body in found[1:] for record in body["Records"]]


def test_events_reach_the_queue_filtered(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    url, arn = cloud.event_queue()
    _configure(cloud, bucket, _rule(arn, Id="in", **_filter(prefix="in/", suffix=".fa")))
    for key in ("in/x.txt", "other.fa", "in/50% a+b.fa"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"12345")
    (record,) = _records(cloud, url, 1)
    entity = record["s3"]["object"]
    assert urllib.parse.unquote_plus(entity["key"]) == "in/50% a+b.fa"
    assert (entity["size"], entity["eTag"]) == (5, "827ccb0eea8a706c4c34a16891f84e7b")
    assert (record["eventName"], record["eventSource"]) == ("ObjectCreated:Put", "aws:s3")
    assert (record["s3"]["bucket"]["name"], record["s3"]["configurationId"]) == (bucket, "in")


def test_a_record_carries_version_and_sequencer(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket(versioned=True)
    url, arn = cloud.event_queue()
    _configure(cloud, bucket, _rule(arn))
    ids = [s3.put_object(Bucket=bucket, Key="k", Body=b"x")["VersionId"] for _ in range(2)]
    entities = [r["s3"]["object"] for r in _records(cloud, url, 2)]
    assert [e["versionId"] for e in entities] == ids
    assert entities[0]["sequencer"] < entities[1]["sequencer"]


def test_multipart_sends_one_event(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    url, arn = cloud.event_queue()
    _configure(cloud, bucket, _rule(arn))
    s3.upload_fileobj(io.BytesIO(bytes(9 * 2**20)), bucket, "big")
    s3.put_object(Bucket=bucket, Key="last", Body=b"x")
    names = [r["eventName"] for r in _records(cloud, url, 2)]
    assert names == ["ObjectCreated:CompleteMultipartUpload", "ObjectCreated:Put"]


def test_copies_and_deletes_are_events_too(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    url, arn = cloud.event_queue()
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    events = ["s3:ObjectCreated:Copy", "s3:ObjectRemoved:*"]
    _configure(cloud, bucket, {**_rule(arn), "Events": events})
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    s3.delete_object(Bucket=bucket, Key="k")
    names = [r["eventName"] for r in _records(cloud, url, 2)]
    assert names == ["ObjectCreated:Copy", "ObjectRemoved:Delete"]


def test_configuring_replaces_and_sends_a_test_event(cloud: Cloud) -> None:
    s3, bucket = cloud.client("s3"), cloud.bucket()
    url, arn = cloud.event_queue()
    _configure(cloud, bucket, _rule(arn, Id="one"))
    _configure(cloud, bucket, _rule(arn, Id="two", **_filter(prefix="in/")))
    found = s3.get_bucket_notification_configuration(Bucket=bucket)["QueueConfigurations"]
    assert [rule["Id"] for rule in found] == ["two"]
    assert [body["Event"] for body in cloud.bodies(url, 2)] == ["s3:TestEvent"] * 2
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={})
    s3.put_object(Bucket=bucket, Key="in/k", Body=b"x")
    assert cloud.bodies(url, 1, wait_s=0) == []
