"""Access control lists: what is kept and shown, and what they let requests without signature do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore import UNSIGNED
from urllib3.filepost import encode_multipart_formdata

from local_cloud.model.s3.acl import GROUPS, OWNER_ID
from tests.embedded_cloud import PAIR, Address, client_of, cloud_in, refusal

ALL = "http://acs.amazonaws.com/groups/global/AllUsers"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with cloud_in(tmp_path_factory.mktemp("lists"), keys=PAIR) as address:
        yield address


@pytest.fixture(scope="module")
def s3(cloud: Address) -> Iterator[Any]:
    with client_of(cloud, "s3", PAIR) as client:
        yield client


@pytest.fixture(scope="module")
def anybody(cloud: Address) -> Iterator[Any]:
    with client_of(cloud, "s3", PAIR, signature_version=UNSIGNED) as client:
        yield client


def grants(shown: Any) -> list[tuple[str, str]]:
    return [
        (grant["Grantee"].get("URI") or grant["Grantee"]["ID"], grant["Permission"])
        for grant in shown["Grants"]
    ]


PRIVATE = [(OWNER_ID, "FULL_CONTROL")]
READ = [(ALL, "READ"), *PRIVATE]


def test_a_bucket_s_list(s3: Any) -> None:
    s3.create_bucket(Bucket="listed", ACL="public-read-write")
    assert grants(s3.get_bucket_acl(Bucket="listed")) == [(ALL, "READ"), (ALL, "WRITE"), *PRIVATE]
    s3.put_bucket_acl(Bucket="listed", ACL="private")
    assert grants(s3.get_bucket_acl(Bucket="listed")) == PRIVATE
    s3.put_bucket_acl(Bucket="listed", GrantRead=f'uri="{ALL}", id={OWNER_ID}')
    assert grants(s3.get_bucket_acl(Bucket="listed")) == [(ALL, "READ"), (OWNER_ID, "READ")]
    s3.create_bucket(Bucket="listed")  # S3 resets the list of a bucket that is made again
    assert grants(s3.get_bucket_acl(Bucket="listed")) == PRIVATE


def test_an_object_s_list(s3: Any) -> None:
    s3.create_bucket(Bucket="objects")
    s3.put_object(Bucket="objects", Key="k", Body=b"1", ACL="public-read", Tagging="a=b")
    assert grants(s3.get_object_acl(Bucket="objects", Key="k")) == READ
    changed = s3.head_object(Bucket="objects", Key="k")["LastModified"]
    shown = s3.get_object_acl(Bucket="objects", Key="k")
    policy = {"Owner": shown["Owner"], "Grants": []}
    s3.put_object_acl(Bucket="objects", Key="k", AccessControlPolicy=policy)
    assert grants(s3.get_object_acl(Bucket="objects", Key="k")) == []
    policy["Grants"] = shown["Grants"]
    s3.put_object_acl(Bucket="objects", Key="k", AccessControlPolicy=policy)
    assert grants(s3.get_object_acl(Bucket="objects", Key="k")) == READ
    after = s3.head_object(Bucket="objects", Key="k")
    assert (after["LastModified"], after["TagCount"]) == (changed, 1)
    s3.copy_object(Bucket="objects", Key="copy", CopySource="objects/k")
    assert grants(s3.get_object_acl(Bucket="objects", Key="copy")) == PRIVATE
    s3.copy_object(Bucket="objects", Key="copy", CopySource="objects/k", ACL="public-read")
    assert grants(s3.get_object_acl(Bucket="objects", Key="copy")) == READ
    assert refusal(s3.get_object_acl, Bucket="objects", Key="none") == "NoSuchKey"


def test_a_version_has_its_own_list(s3: Any) -> None:
    s3.create_bucket(Bucket="versions")
    s3.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    first, second = (s3.put_object(Bucket="versions", Key="k")["VersionId"] for _ in range(2))
    s3.put_object_acl(Bucket="versions", Key="k", VersionId=first, ACL="public-read")
    assert grants(s3.get_object_acl(Bucket="versions", Key="k", VersionId=first)) == READ
    assert grants(s3.get_object_acl(Bucket="versions", Key="k", VersionId=second)) == PRIVATE


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"ACL": "everything"}, "InvalidArgument"),
        ({"ACL": "private", "GrantRead": f"uri={ALL}"}, "InvalidRequest"),
        ({"GrantRead": "id=_foo"}, "InvalidArgument"),
        ({"GrantRead": "uri=http://example.com"}, "InvalidArgument"),
        ({"GrantRead": "nobody"}, "InvalidArgument"),
        ({"GrantFullControl": "emailAddress=a@b.example"}, "UnresolvableGrantByEmailAddress"),
    ],
)
def test_lists_that_s3_has_not(s3: Any, headers: dict[str, str], wanted: str) -> None:
    s3.create_bucket(Bucket="refusing")
    assert refusal(s3.put_bucket_acl, Bucket="refusing", **headers) == wanted
    assert refusal(s3.put_object, Bucket="refusing", Key="k", **headers) == wanted
    assert refusal(s3.head_object, Bucket="refusing", Key="k") == "404"


def test_a_document_with_an_unknown_permission(s3: Any) -> None:
    s3.create_bucket(Bucket="refusing")
    grant = {"Grantee": {"Type": "Group", "URI": ALL}, "Permission": "FLY"}
    policy = {"Owner": {"ID": OWNER_ID}, "Grants": [grant]}
    call = s3.put_bucket_acl
    assert refusal(call, Bucket="refusing", AccessControlPolicy=policy) == "MalformedACLError"


def test_a_private_bucket_refuses_anonymous_requests(s3: Any, anybody: Any, cloud: Address) -> None:
    s3.create_bucket(Bucket="closed")
    s3.put_object(Bucket="closed", Key="open", Body=b"1", ACL="public-read")
    s3.put_object(Bucket="closed", Key="k", Body=b"1", ACL="authenticated-read")
    with anybody.get_object(Bucket="closed", Key="open")["Body"] as body:
        assert body.read() == b"1"
    for call, arguments in (
        (anybody.get_object, {"Key": "k"}),
        (anybody.get_object, {"Key": "none"}),
        (anybody.put_object, {"Key": "open"}),
        (anybody.delete_object, {"Key": "open"}),
        (anybody.get_object_acl, {"Key": "open"}),
        (anybody.get_object_tagging, {"Key": "open"}),
        (anybody.list_objects_v2, {}),
        (anybody.get_bucket_acl, {}),
        (anybody.delete_bucket, {}),
        (anybody.get_bucket_location, {}),
        (anybody.create_multipart_upload, {"Key": "m"}),
    ):
        assert refusal(call, Bucket="closed", **arguments) == "AccessDenied", call
    assert refusal(anybody.list_buckets) == "AccessDenied"
    assert refusal(anybody.create_bucket, Bucket="another") == "AccessDenied"
    assert refusal(anybody.get_object, Bucket="nowhere", Key="k") == "NoSuchBucket"


def test_public_buckets_admit_anonymous_requests(s3: Any, anybody: Any, cloud: Address) -> None:
    s3.create_bucket(Bucket="readable", ACL="public-read")
    s3.put_object(Bucket="readable", Key="k")
    assert anybody.list_objects_v2(Bucket="readable")["KeyCount"] == 1
    assert anybody.list_object_versions(Bucket="readable")["Versions"][0]["Key"] == "k"
    assert refusal(anybody.get_object, Bucket="readable", Key="none") == "NoSuchKey"
    assert refusal(anybody.get_object, Bucket="readable", Key="k") == "AccessDenied"
    assert refusal(anybody.put_object, Bucket="readable", Key="new") == "AccessDenied"
    s3.create_bucket(Bucket="writable", ACL="public-read-write")
    anybody.put_object(Bucket="writable", Key="new", Body=b"1")
    source = {"Bucket": "readable", "Key": "k"}
    denied = refusal(anybody.copy_object, Bucket="writable", Key="c", CopySource=source)
    assert denied == "AccessDenied"
    assert refusal(anybody.put_bucket_acl, Bucket="writable", ACL="private") == "AccessDenied"
    body, kind = encode_multipart_formdata([("key", "form"), ("file", ("f", b"2"))])
    for bucket, status in (("writable", 204), ("readable", 403)):
        answer = cloud.ask("POST", f"/{bucket}", body, {"Content-Type": kind})
        assert answer.status == status
    wrong = cloud.ask("GET", "/readable", headers={"Authorization": "AWS a:b"})
    assert wrong.code == "AccessDenied"  # signed, without a date: not anonymous any more


def test_public_lists_can_be_blocked_and_ignored(s3: Any, anybody: Any) -> None:
    s3.create_bucket(Bucket="blocked", ACL="public-read")
    s3.put_object(Bucket="blocked", Key="k", ACL="public-read")
    anybody.get_object(Bucket="blocked", Key="k")["Body"].close()
    block = {"BlockPublicAcls": True, "IgnorePublicAcls": True}
    s3.put_public_access_block(Bucket="blocked", PublicAccessBlockConfiguration=block)
    assert refusal(anybody.get_object, Bucket="blocked", Key="k") == "AccessDenied"
    assert refusal(anybody.list_objects_v2, Bucket="blocked") == "AccessDenied"
    for name in ("public-read", "public-read-write", "authenticated-read"):
        assert refusal(s3.put_bucket_acl, Bucket="blocked", ACL=name) == "AccessDenied"
        assert refusal(s3.put_object, Bucket="blocked", Key="n", ACL=name) == "AccessDenied"
        arguments = {"Bucket": "blocked", "Key": "k", "ACL": name}
        assert refusal(s3.put_object_acl, **arguments) == "AccessDenied"
        assert refusal(s3.create_multipart_upload, **arguments) == "AccessDenied"
    s3.put_object(Bucket="blocked", Key="n", ACL="bucket-owner-full-control")
    s3.delete_public_access_block(Bucket="blocked")
    assert anybody.list_objects_v2(Bucket="blocked")["KeyCount"] == 2


def test_lists_survive_a_restart(tmp_path: Path) -> None:
    for first in (True, False):
        with cloud_in(tmp_path) as cloud:
            if first:
                cloud.ask("PUT", "/kept", headers={"x-amz-acl": "public-read"})
                cloud.ask("PUT", "/kept/k", headers={"x-amz-acl": "log-delivery-write"})
            assert ALL.encode() in cloud.ask("GET", "/kept?acl").body
            assert GROUPS["logs"].encode() in cloud.ask("GET", "/kept/k?acl").body
