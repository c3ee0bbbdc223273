"""Whatever bytes come, the embedded cloud answers with a refusal of its own and lives on."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from local_cloud.server.functions.service import LAMBDA
from local_cloud.server.http import JSON_SERVICES
from tests.embedded_cloud import cloud_in


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server in a thread of this process: thousands of requests, no process to start."""
    with cloud_in(tmp_path_factory.mktemp("fuzz")) as found:
        for path in ("/bucket", "/bucket/key"):
            found.ask("PUT", path)
        yield found.netloc


def answer(address: str, method: str, path: str, body: bytes, headers: dict[str, str]) -> int:
    with closing(http.client.HTTPConnection(address, timeout=20)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status


WORDS = st.sampled_from(
    [
        "",
        "bucket",
        "key",
        "acl",
        "uploads",
        "uploadId",
        "partNumber",
        "versionId",
        "versions",
        "list-type",
        "max-keys",
        "continuation-token",
        "prefix",
        "delimiter",
        "tagging",
        "delete",
        "notification",
        "versioning",
        "policy",
        "lifecycle",
        "encoding-type",
        "location",
        "response-content-type",
        "1",
        "-1",
        "999999999999",
        "null",
        "url",
        "%00",
        "%ff",
        "\n",
        "ü/",
    ]
)
TEXT = st.one_of(WORDS, st.text(max_size=8))
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 50_000), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
SLOW = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
XML = st.sampled_from(
    [
        b"",
        b"<",
        b"\xff\xfe",
        b"{}",
        b"<!DOCTYPE x><Delete/>",
        b"<Delete/>",
        b"<Tagging/>",
        b"<Delete><Object><Key/></Object></Delete>",
        b"<VersioningConfiguration/>",
        b"<NotificationConfiguration><QueueConfiguration/></NotificationConfiguration>",
        b"<CompleteMultipartUpload><Part><PartNumber>x</PartNumber></Part></CompleteMultipartUpload>",
    ]
)
HEADERS = st.dictionaries(
    st.sampled_from(
        [
            "Range",
            "If-Match",
            "If-None-Match",
            "x-amz-copy-source",
            "x-amz-content-sha256",
            "x-amz-checksum-crc32",
            "x-amz-decoded-content-length",
            "Content-MD5",
            "x-amz-copy-source-range",
            "If-Modified-Since",
            "x-amz-metadata-directive",
        ]
    ),
    st.sampled_from(
        [
            "",
            "*",
            "x",
            "bytes=-",
            "bytes=5-1",
            "bytes=0-99",
            "/bucket/key",
            "bucket",
            "%ff/%00",
            "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            "a=b&&c",
            "-1",
            "Thu, 99 Foo 2026 00:00:00 GMT",
        ]
    ),
    max_size=3,
)


@SLOW
@given(
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "PATCH"]),
    parts=st.lists(TEXT, max_size=3),
    query=st.dictionaries(TEXT, TEXT, max_size=3),
    body=XML,
    headers=HEADERS,
)
@example("PUT", ["bucket", "key"], {"uploads": ""}, b"", {})
@example("GET", ["bucket", "key"], {"response-content-type": "\n"}, b"", {})
def test_s3_never_fails_by_itself(
    address: str,
    method: str,
    parts: list[str],
    query: dict[str, str],
    body: bytes,
    headers: dict[str, str],
) -> None:
    path = "/" + "/".join(_quoted(part) for part in parts)
    given_query = "&".join(f"{_quoted(name)}={_quoted(value)}" for name, value in query.items())
    status = answer(address, method, f"{path}?{given_query}", body, headers)
    assert status < 500 or status == 501
    assert answer(address, "GET", "/_local_cloud/health", b"", {}) == 200


def _quoted(text: str) -> str:
    return text if text.startswith("%") and text.isascii() else quote(text, errors="replace")


JSON_CALLS = {
    f"{prefix}.{operation}": sorted(service.model(operation).input_shape.members)
    for prefix, service in JSON_SERVICES.items()
    for operation in service.operations
} | {"AmazonSQS.Nonsense": ["QueueUrl"]}
FUNCTION_FIELDS = sorted(
    {
        name
        for operation in LAMBDA.operations
        for name in LAMBDA.model(operation).input_shape.members
    }
)


@SLOW
@given(target=st.sampled_from(sorted(JSON_CALLS)), known=st.booleans(), data=st.data())
def test_no_service_of_the_json_protocol_fails_by_itself(
    address: str, target: str, known: bool, data: st.DataObject
) -> None:
    create = {"X-Amz-Target": "AmazonSQS.CreateQueue"}
    answer(address, "POST", "/", b'{"QueueName": "known"}', create)
    names = st.sampled_from(JSON_CALLS[target])
    fields = data.draw(st.dictionaries(names, VALUE, max_size=5))
    if known:
        fields["QueueUrl"] = "http://x/0/known"
    body = json.dumps(fields).encode("utf-8", "replace")
    status = answer(address, "POST", "/", body, {"X-Amz-Target": target})
    assert status < 500 or status == 501


@SLOW
@given(
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE"]),
    word=st.sampled_from(
        ["", "/policy", "/code", "/configuration", "/invocations", "/event-invoke-config"]
    ),
    fields=st.dictionaries(st.sampled_from(FUNCTION_FIELDS), VALUE, max_size=5),
)
def test_lambda_never_fails_by_itself(
    address: str, method: str, word: str, fields: dict[str, object]
) -> None:
    body = json.dumps(fields).encode("utf-8", "replace")
    name = "/unknown" if word else ""
    status = answer(address, method, f"/2015-03-31/functions{name}{word}", body, {})
    assert status < 500 or status == 501


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"Action=", b"Action=GetRole", b"x" * 100])
def test_other_posts_are_refused(address: str, body: bytes) -> None:
    assert 400 <= answer(address, "POST", "/", body, {}) <= 501
    for target in ("Logs_20140328.GetLogEvents", "AmazonSQS.SendMessage", "DynamoDB.PutItem"):
        assert 400 <= answer(address, "POST", "/", body, {"X-Amz-Target": target}) <= 501


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {"X-Amz-Target": "AmazonSQS.CreateQueue"}),
        ("/", {"X-Amz-Target": "Logs_20140328.DescribeLogGroups"}),
        ("/2015-03-31/functions", {}),
    ],
)
@pytest.mark.parametrize("depth", [300, 100_000])
def test_a_body_that_nests_too_deeply_is_refused(
    address: str, path: str, headers: dict[str, str], depth: int
) -> None:
    nested = b'{"QueueName": ' + b"[" * depth + b"]" * depth + b"}"
    assert answer(address, "POST", path, nested, headers) == 400


def test_documents_that_nest_too_deeply_are_refused(address: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    attributes = {"QueueName": "q", "Attributes": {"RedrivePolicy": deep, "Policy": deep}}
    target = {"X-Amz-Target": "AmazonSQS.CreateQueue"}
    assert answer(address, "POST", "/", json.dumps(attributes).encode(), target) == 400
    create = b"Action=CreateRole&RoleName=r&AssumeRolePolicyDocument=%7B%7D"
    assert answer(address, "POST", "/", create, {}) == 200
    put = f"Action=PutRolePolicy&RoleName=r&PolicyName=p&PolicyDocument={deep}"
    assert answer(address, "POST", "/", put.encode(), {}) == 400
