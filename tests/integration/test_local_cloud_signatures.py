"""A cloud that verifies signatures: who gets in, who does not, and when a presigned URL ends."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore import auth, awsrequest, credentials
from botocore.exceptions import ClientError

from local_cloud.server.signatures import KeyPair
from tests.contract.zips import zipped
from tests.embedded_cloud import PAIR, Address, client_of, cloud_in, refusal


def client(
    cloud: Address,
    service: str,
    secret: str = PAIR.secret_key,
    access_key: str = PAIR.access_key,
    **config: object,
) -> AbstractContextManager[Any]:
    pair = KeyPair(access_key=access_key, secret_key=secret)
    return client_of(cloud, service, pair, "eu-west-1", **config)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    with cloud_in(tmp_path_factory.mktemp("signed"), keys=PAIR) as address:
        with client(address, "s3") as s3:
            s3.create_bucket(Bucket="bucket")
            s3.put_object(Bucket="bucket", Key="a key/ü+", Body=b"data", Metadata={"a": "b  c"})
        yield address


@pytest.fixture(scope="module")
def open_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Address]:
    """One that verifies nothing."""
    with cloud_in(tmp_path_factory.mktemp("open")) as address:
        address.ask("PUT", "/bucket")
        address.ask("PUT", "/bucket/key", b"data")
        yield address


def test_every_service_serves_the_holder_of_the_key(cloud: Address) -> None:
    with client(cloud, "s3") as s3:
        with s3.get_object(Bucket="bucket", Key="a key/ü+")["Body"] as body:
            assert body.read() == b"data"
        assert s3.list_objects_v2(Bucket="bucket", Prefix="a k", Delimiter="/")["CommonPrefixes"]
        s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "none"}]})
    with client(cloud, "sqs") as sqs:
        url = sqs.create_queue(QueueName="q")["QueueUrl"]
        sqs.send_message(QueueUrl=url, MessageBody="ü")
        assert sqs.receive_message(QueueUrl=url)["Messages"][0]["Body"] == "ü"
    with client(cloud, "iam") as iam:
        iam.create_role(RoleName="r", AssumeRolePolicyDocument="{}")
    with client(cloud, "sts") as sts:
        assert sts.get_caller_identity()["Account"] == "000000000000"
    with client(cloud, "logs") as logs:
        assert logs.describe_log_groups()["logGroups"] == []
    with client(cloud, "ssm") as ssm:
        assert ssm.describe_parameters()["Parameters"] == []
    with client(cloud, "secretsmanager") as manager:
        assert manager.create_secret(Name="s")["Name"] == "s"
    with client(cloud, "s3", signature_version="s3") as old:
        assert refusal(old.list_objects_v2, Bucket="bucket") == "InvalidRequest"  # version 2


SOURCE = """
import boto3, os
def handle(event, context):
    s3 = boto3.client("s3")
    return s3.get_object(Bucket="bucket", Key="a key/ü+")["Body"].read().decode()
"""


def test_a_function_has_the_key_and_is_invoked_by_it(cloud: Address) -> None:
    with client(cloud, "lambda") as functions:
        functions.create_function(
            FunctionName="f",
            Runtime="python3.11",
            Role="arn:aws:iam::000000000000:role/r",
            Handler="app.handle",
            Code={"ZipFile": zipped(SOURCE)},
            Timeout=60,
        )
        arn = functions.get_function(FunctionName="f")["Configuration"]["FunctionArn"]
        answer = functions.invoke(FunctionName=arn)  # its name is in the path, encoded
        with answer["Payload"] as payload:
            assert json.loads(payload.read()) == "data"


CALLS = [
    ("s3", "list_buckets", {}),
    ("sqs", "list_queues", {}),
    ("lambda", "list_functions", {}),
    ("logs", "describe_log_groups", {}),
    ("ssm", "describe_parameters", {}),
    ("secretsmanager", "describe_secret", {"SecretId": "s"}),
    ("iam", "get_role", {"RoleName": "r"}),
]


@pytest.mark.parametrize(("service", "call", "arguments"), CALLS)
def test_requests_with_other_keys_are_refused(
    cloud: Address, service: str, call: str, arguments: Any
) -> None:
    unknown = "InvalidAccessKeyId" if service == "s3" else "UnrecognizedClientException"
    with client(cloud, service, "another secret") as other:
        assert refusal(getattr(other, call), **arguments) == "SignatureDoesNotMatch"
    with client(cloud, service, access_key="test") as other:
        assert refusal(getattr(other, call), **arguments) == unknown


def test_anonymous_requests_are_refused_but_for_the_health(cloud: Address) -> None:
    for path in ("/", "/bucket", "/bucket/key"):
        answer = cloud.ask("GET", path)
        assert (answer.status, answer.code) == (403, "AccessDenied")
    assert cloud.ask("PUT", "/bucket/anonymous", b"x").status == 403
    for target in (
        "AmazonSQS.ListQueues",
        "Logs_20140328.DescribeLogGroups",
        "AmazonSSM.GetParameter",
        "secretsmanager.GetSecretValue",
    ):
        answer = cloud.ask("POST", "/", b"{}", {"X-Amz-Target": target})
        assert (answer.status, b"MissingAuthenticationToken" in answer.body) == (403, True)
    assert cloud.ask("GET", "/2015-03-31/functions").status == 403
    assert cloud.ask("POST", "/", b"Action=GetCallerIdentity").status == 403
    assert cloud.ask("GET", "/_local_cloud/health").status == 200


def test_the_refusal_shows_the_string_to_sign(cloud: Address) -> None:
    with client(cloud, "s3", "another secret") as other, pytest.raises(ClientError) as error:
        other.get_object(Bucket="bucket", Key="a key")
    found = error.value.response["Error"]
    assert found["CanonicalRequest"].startswith("GET\n/bucket/a%20key\n\nhost:127.0.0.1")
    assert found["StringToSign"].startswith("AWS4-HMAC-SHA256\n")
    assert found["AWSAccessKeyId"] == PAIR.access_key


def by_hand(cloud: Address, method: str, path: str, body: bytes = b"", **headers: str) -> Any:
    """A request signed by botocore, to be changed on its way."""
    url = f"http://{cloud.netloc}{path}"
    request = awsrequest.AWSRequest(method=method, url=url, data=body, headers=headers)
    keys = credentials.Credentials(PAIR.access_key, PAIR.secret_key)
    auth.S3SigV4Auth(keys, "s3", "us-east-1").add_auth(request)
    return {name: str(value) for name, value in request.prepare().headers.items()}


def test_a_request_that_changed_on_its_way_is_refused(cloud: Address) -> None:
    headers = by_hand(cloud, "PUT", "/bucket/hand", b"data", **{"x-amz-meta-a": "b"})
    assert cloud.ask("PUT", "/bucket/hand", b"data", headers).status == 200
    changed = cloud.ask("PUT", "/bucket/hand", b"atad", headers)
    assert (changed.status, changed.code) == (400, "XAmzContentSHA256Mismatch")
    for method, path, more in (
        ("PUT", "/bucket/other", {}),
        ("DELETE", "/bucket/hand", {}),
        ("PUT", "/bucket/hand?acl", {}),
        ("PUT", "/bucket/hand", {"x-amz-meta-a": "c"}),
    ):
        answer = cloud.ask(method, path, b"data", headers | more)
        assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")
    added = cloud.ask("PUT", "/bucket/hand", b"data", headers | {"x-amz-acl": "private"})
    assert (added.status, added.code) == (403, "AccessDenied")
    assert b"<HeadersNotSigned>x-amz-acl<" in added.body
    assert cloud.ask("GET", "/bucket/hand", headers=by_hand(cloud, "GET", "/bucket/hand")).body == (
        b"data"
    )


def test_a_clock_that_differs_too_much_is_refused(
    cloud: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    past = datetime.now(UTC).replace(tzinfo=None) - timedelta(minutes=20)
    monkeypatch.setattr(auth, "get_current_datetime", lambda: past)
    answer = cloud.ask("GET", "/bucket/hand", headers=by_hand(cloud, "GET", "/bucket/hand"))
    assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed")


def path_of(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}"


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_a_presigned_url_serves_until_it_expires(
    cloud: Address, open_cloud: Address, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a cloud that verifies nothing too. One that verifies knows version 4 alone."""
    past = datetime.now(UTC).replace(tzinfo=None) - timedelta(minutes=2)
    then, where = time.time() - 120, {"Bucket": "bucket", "Key": "k"}
    for server in (cloud, open_cloud):
        server.ask("PUT", "/bucket/k", b"data", by_hand(server, "PUT", "/bucket/k", b"data"))
        with client(server, "s3", signature_version=version) as s3:
            good = path_of(s3.generate_presigned_url("get_object", Params=where))
            write = path_of(s3.generate_presigned_url("put_object", Params=where))
            with monkeypatch.context() as patch:
                patch.setattr(auth, "get_current_datetime", lambda: past)
                patch.setattr(auth.time, "time", lambda: then)
                url = s3.generate_presigned_url("get_object", Params=where, ExpiresIn=60)
        expired = server.ask("GET", path_of(url))
        assert (expired.status, expired.code) == (403, "AccessDenied")
        assert b"Request has expired" in expired.body
        if (server, version) == (cloud, "s3"):
            refused = server.ask("GET", good)
            assert (refused.code, b"s3v4" in refused.body) == ("InvalidRequest", True)
            continue
        assert server.ask("GET", good).body == b"data"
        assert server.ask("PUT", write, b"other").status == 200
        assert server.ask("GET", good).body == b"other"


def test_a_presigned_url_is_of_one_object(cloud: Address) -> None:
    with client(cloud, "s3", signature_version="s3v4") as s3:
        url = s3.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    forged = cloud.ask("GET", path_of(url).replace("/bucket/k?", "/bucket/other?"))
    assert (forged.status, forged.code) == (403, "SignatureDoesNotMatch")


@pytest.mark.parametrize("expires", ["-1", "soon", "604801", "", "9" * 30])
def test_an_expiry_that_s3_has_not_is_refused(open_cloud: Address, expires: str) -> None:
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    path = (
        "/bucket/key?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=0&X-Amz-SignedHeaders=host"
        f"&X-Amz-Credential=k/{now[:8]}/us-east-1/s3/aws4_request&X-Amz-Date={now}"
    )
    answer = open_cloud.ask("GET", f"{path}&X-Amz-Expires={expires}")
    assert (answer.status, answer.code) == (400, "AuthorizationQueryParametersError")
    assert open_cloud.ask("GET", f"{path}&X-Amz-Expires=60").status == 200
    assert open_cloud.ask("GET", path).status == 400


def test_without_verification_any_signature_is_good(open_cloud: Address) -> None:
    for authorization in ("AWS4-HMAC-SHA256 nonsense", "AWS x:y", "Bearer token", ""):
        answer = open_cloud.ask("GET", "/bucket/key", headers={"Authorization": authorization})
        assert answer.status == 200
