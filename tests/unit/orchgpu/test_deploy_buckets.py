"""Buckets of a deploy: their region, owner, tags and lifecycle, by answers of AWS."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.stub import ANY

from corekit.errors import AppError, ErrorCode
from fdl.parse import parse
from fdl.plan.resources import Bucket, Expiry
from orchgpu.adapters.aws.deploy.facts import FactsReader
from orchgpu.adapters.aws.deploy.storage import Buckets, Expiries
from tests.unit.orchgpu.test_deploy_settling import AWS, Cloud, NoLock


def buckets(cloud: Cloud) -> Buckets:
    return Buckets(cloud.client, AWS)


def test_the_region_of_a_bucket_is_seen() -> None:
    """Defect 15: botocore follows the redirect, so nothing failed before the notification."""
    cloud = Cloud("s3").answers("head_bucket", {"BucketRegion": "us-west-2"})
    cloud.answers("get_bucket_versioning", {"Status": "Enabled"})
    assert buckets(cloud).observe("b") == Bucket(name="b", region="us-west-2")


@pytest.mark.parametrize(
    ("owner", "text"),
    [
        ("", "belongs to another account than 123456789012.*write `owner: ACCOUNT`"),
        ("1" * 12, "does not belong to account 111111111111, or its policy"),
    ],
)
def test_a_bucket_of_another_account_is_refused(owner: str, text: str) -> None:
    """Defect 5: only the state bucket's owner was checked."""
    cloud = Cloud("s3")
    cloud.stub.add_client_error("head_bucket", "403", "Forbidden", http_status_code=403)
    with pytest.raises(AppError, match=text) as caught:
        buckets(cloud).observe("b", owner=owner)
    assert caught.value.code is ErrorCode.DENIED


def test_tags_of_others_survive_on_a_bucket() -> None:
    """Defect 11: S3 replaces all tags of a bucket at once."""
    cloud = Cloud("s3").answers("create_bucket")
    before = {"theirs": "x", "orchgpu:tags": "team old", "old": "1", "team": "a"}
    listed = [{"Key": key, "Value": value} for key, value in before.items()]
    cloud.answers("get_bucket_tagging", {"TagSet": listed})
    after = {"theirs": "x", "createdby": "orchgpu", "orchgpu:tags": "team", "team": "b"}
    cloud.stub.add_response(
        "put_bucket_tagging",
        {},
        {
            "Bucket": "b",
            "Tagging": {"TagSet": [{"Key": key, "Value": value} for key, value in after.items()]},
        },
    )
    tags = {name: after[name] for name in ("createdby", "orchgpu:tags", "team")}
    buckets(cloud).put(Bucket(name="b", versioned=False, tags=tags), exists=False)
    cloud.stub.assert_no_pending_responses()


FOREIGN = {
    "ID": "theirs",
    "Prefix": "old/",
    "Status": "Enabled",
    "Expiration": {"Days": 3},
    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2},
}


def put(expiry: Expiry, before: dict[str, Any]) -> dict[str, Any]:
    """The arguments of the write that sets a rule on a bucket with this lifecycle."""
    cloud, sent = Cloud("s3"), dict[str, Any]()
    cloud.answers("get_bucket_lifecycle_configuration", before)
    cloud.stub.add_response(
        "put_bucket_lifecycle_configuration",
        {},
        {"Bucket": "b", "LifecycleConfiguration": ANY, **_kept(before)},
    )
    cloud.client.meta.events.register(
        "provide-client-params.s3.PutBucketLifecycleConfiguration",
        lambda params, **_: sent.update(params),
    )
    Expiries(cloud.client, NoLock).put(expiry)
    cloud.stub.assert_no_pending_responses()
    return sent


def _kept(before: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in before.items() if name != "Rules"}


def test_the_rest_of_a_lifecycle_survives() -> None:
    """Low: a put without it sets TransitionDefaultMinimumObjectSize back, and S3 refuses rules of
    the older form beside filters."""
    size = {"TransitionDefaultMinimumObjectSize": "varies_by_storage_class"}
    staged = Expiry(bucket="b", id="e", prefix="staging/", days=1)
    sent = put(staged, {"Rules": [FOREIGN], **size})
    rules = {rule["ID"]: rule for rule in sent["LifecycleConfiguration"]["Rules"]}
    assert rules["theirs"].pop("Filter") == {"Prefix": "old/"}
    assert rules["theirs"] == {key: FOREIGN[key] for key in FOREIGN if key != "Prefix"}
    assert list(rules) == ["theirs", "e", "e-markers"]
    assert sent["TransitionDefaultMinimumObjectSize"] == "varies_by_storage_class"


def test_cut_off_uploads_expire() -> None:
    """Low: the parts of an interrupted upload were kept, and paid for, without end."""
    cut = Expiry(bucket="b", id="e", prefix="out/", uploads_days=7)
    [rule] = put(cut, {"Rules": []})["LifecycleConfiguration"]["Rules"]
    assert rule == {
        "ID": "e",
        "Filter": {"Prefix": "out/"},
        "Status": "Enabled",
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
    }
    cloud = Cloud("s3").answers("get_bucket_lifecycle_configuration", {"Rules": [rule]})
    assert Expiries(cloud.client, NoLock).observe("b", "e") == cut


BLAST = """\
functions:
  aws:
  - lambda: {name: f, init_script: run.sh, input: [{path: in-1}]}
    iam: {create: true}
"""


def reader_of(cloud: Cloud) -> FactsReader:
    """A reader that finds the boundary, and asks `cloud` about the one bucket of the file."""
    iam = Cloud("iam").answers("get_policy", {"Policy": {}})
    clients = {"iam": iam.client, "s3": cloud.client}
    return FactsReader(clients.__getitem__, AWS, buckets(cloud))


def test_a_bucket_of_another_account_is_named_as_such_before_the_plan() -> None:
    cloud = Cloud("s3")
    reader = reader_of(cloud)
    for call, code in (("get_bucket_encryption", "AccessDenied"), ("head_bucket", "403")):
        cloud.stub.add_client_error(call, code, "Forbidden", http_status_code=403)
    with pytest.raises(AppError, match="belongs to another account than 123456789012"):
        reader.facts(parse(BLAST).functions.aws)


@pytest.mark.parametrize(
    ("algorithm", "key", "found"),
    [
        ("aws:kms", "arn:aws:kms:eu-west-1:123456789012:key/0a", True),
        ("aws:kms", None, False),
        ("AES256", None, False),
    ],
)
def test_only_a_customers_key_needs_rights(algorithm: str, key: str | None, found: bool) -> None:
    """Defect 14: AWS's own key of S3 may be used by whoever may use the bucket."""
    cloud = Cloud("s3")
    reader = reader_of(cloud)
    rule = {"SSEAlgorithm": algorithm, **({"KMSMasterKeyID": key} if key else {})}
    configuration = {"Rules": [{"ApplyServerSideEncryptionByDefault": rule}]}
    cloud.answers("get_bucket_encryption", {"ServerSideEncryptionConfiguration": configuration})
    facts = reader.facts(parse(BLAST + "    job: none\n").functions.aws)
    assert facts.bucket_keys == ({"in-1": key} if found else {})
