"""Requests from templates are those that botocore makes, for any values of the parameters."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
from botocore import xform_name
from botocore.awsrequest import AWSPreparedRequest
from botocore.config import Config
from botocore.httpchecksum import Crc32Checksum
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.aws.clients import session_of
from orchgpu.adapters.aws.endpoints import WITHOUT_PROFILE
from orchgpu.adapters.aws.templates import Keys, Places, Sent, learn

KEYS = (Keys("AKIAEXAMPLE", "s3cr3t/+", None), Keys("ASIAEXAMPLE", "other", "to+ken/=="))
#: How clients are made: AWS itself and its variants, and a cloud on this machine.
PLACES: dict[str, dict[str, Any]] = {
    "aws": {},
    "china": {"region_name": "cn-north-1"},
    "dual stack": {"config": Config(use_dualstack_endpoint=True)},
    "fips": {"config": Config(use_fips_endpoint=True)},
    "accelerated": {"config": Config(s3={"use_accelerate_endpoint": True})},
    "local": {
        "endpoint_url": "http://127.0.0.1:4566",
        "config": Config(s3={"addressing_style": "path"}),
    },
    "below a path": {
        "endpoint_url": "https://cloud.example:443/a/b",
        "config": Config(s3={"addressing_style": "path"}),
    },
    "ipv6": {"endpoint_url": "http://[::1]:80", "config": Config(s3={"addressing_style": "path"})},
}

text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
keys = st.one_of(text, st.sampled_from(["/", "a/../b", "./a", "a//b", "a b+%25?#&=~*'()", "ü/€"]))
word = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=20)
quoted = word.map('"{}"'.format)
account = st.from_regex(r"\A[0-9]{12}\Z")
names = st.sampled_from(["bucket", "with.dots", "a-b-c"])
queues = st.sampled_from(["q", "r"]).map(
    "https://sqs.eu-west-1.amazonaws.com/123456789012/{}".format
)
functions = st.sampled_from(["f", "arn:aws:lambda:eu-west-1:123456789012:function:f:PROD"])
entries = st.lists(st.fixed_dictionaries({"Id": word, "ReceiptHandle": text}), min_size=1)


def with_checksum(parameters: dict[str, Any]) -> dict[str, Any]:
    return {**parameters, "ChecksumCRC32": Crc32Checksum().handle(parameters["Body"])}


Drawn = st.SearchStrategy[dict[str, Any]]


def an_object(**more: st.SearchStrategy[Any]) -> tuple[Drawn, Drawn]:
    """Of a bucket whose owner is not known, and of another one."""
    named = {"Bucket": names, "Key": keys}
    return (
        st.fixed_dictionaries({**named, **more}),
        st.fixed_dictionaries({**named, "ExpectedBucketOwner": account, **more}),
    )


attribute = st.fixed_dictionaries({"DataType": st.just("String"), "StringValue": text})
sent = st.fixed_dictionaries(
    {"Id": word, "MessageBody": text},
    optional={"MessageAttributes": st.dictionaries(word, attribute)},
)
#: (service, operation) → kinds of its calls, by the parameters that the orchestrator gives.
OPERATIONS: dict[tuple[str, str], Sequence[Drawn]] = {
    ("s3", "GetObject"): (
        *an_object(),
        *an_object(VersionId=text),
        *an_object(VersionId=word, IfMatch=quoted),
    ),
    ("s3", "HeadObject"): an_object(),
    ("s3", "DeleteObject"): an_object(),
    ("s3", "PutObject"): [
        one.map(with_checksum)
        for one in (
            *an_object(Body=st.binary()),
            *an_object(Body=st.binary(), IfNoneMatch=st.just("*")),
            *an_object(Body=st.binary(), IfMatch=quoted),
        )
    ],
    ("sqs", "ReceiveMessage"): [
        st.fixed_dictionaries(
            {
                "QueueUrl": queues,
                "MaxNumberOfMessages": st.integers(1, 10),
                "WaitTimeSeconds": st.integers(0, 20),
                "MessageAttributeNames": st.lists(word),
            }
        )
    ],
    ("sqs", "DeleteMessage"): [st.fixed_dictionaries({"QueueUrl": queues, "ReceiptHandle": text})],
    ("sqs", "DeleteMessageBatch"): [
        st.fixed_dictionaries({"QueueUrl": queues, "Entries": entries})
    ],
    ("sqs", "SendMessageBatch"): [
        st.fixed_dictionaries({"QueueUrl": queues, "Entries": st.lists(sent, min_size=1)})
    ],
    ("lambda", "Invoke"): [
        st.fixed_dictionaries(
            {
                "FunctionName": functions,
                "InvocationType": st.just("Event"),
                "Payload": text.map(str.encode),
            }
        )
    ],
}


@functools.cache
def client(service: str, place: str, who: Keys) -> Any:
    arguments = {
        "region_name": "eu-west-1",
        "aws_access_key_id": who.access_key,
        "aws_secret_access_key": who.secret_key,
        "aws_session_token": who.token,
    }
    return session_of(None, WITHOUT_PROFILE).client(service, **{**arguments, **PLACES[place]})


#: Headers that have no part in the signature, and no meaning for the answer.
UNCHECKED = {"expect", "user-agent", "amz-sdk-invocation-id"}


class Kept(Exception):
    """Ends a call before its request is sent."""


def sent_by_botocore(inner: Any, operation: str, parameters: dict[str, Any]) -> tuple[Sent, bytes]:
    """The request that botocore would send now, and its body."""
    found: list[AWSPreparedRequest] = []

    def keep(request: AWSPreparedRequest, **_: object) -> None:
        found.append(request)
        raise Kept

    inner.meta.events.register("before-send", keep)
    try:
        with pytest.raises(Kept):
            getattr(inner, xform_name(operation))(**parameters)
    finally:
        inner.meta.events.unregister("before-send", keep)
    (request,) = found
    headers = {
        key.lower(): value.decode() if isinstance(value, bytes) else str(value)
        for key, value in request.headers.items()
    }
    body = request.body
    return Sent(request.method, request.url, headers), body.read() if hasattr(
        body, "read"
    ) else body


def of_a_kind(
    data: st.DataObject, service: str, operation: str, place: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The parameters of two calls that can have one template."""
    kind = data.draw(st.sampled_from(OPERATIONS[service, operation]))
    one, other = data.draw(kind), data.draw(kind)
    (subject,) = {"Bucket", "QueueUrl", "FunctionName"} & one.keys()
    if place == "accelerated":
        one[subject] = one[subject].replace("with.dots", "bucket")  # S3 has none there
    other[subject] = one[subject]
    return one, other


@pytest.mark.parametrize(("service", "operation"), OPERATIONS)
@settings(max_examples=50)
@given(data=st.data(), place=st.sampled_from([*PLACES]), who=st.sampled_from(KEYS))
def test_a_request_from_a_template_is_the_one_of_botocore(
    service: str, operation: str, data: st.DataObject, place: str, who: Keys
) -> None:
    one, other = of_a_kind(data, service, operation, place)
    inner = client(service, place, who)
    places = Places.of(inner.meta.service_model.operation_model(operation))
    first, _ = sent_by_botocore(inner, operation, one)
    template = learn(places, one, first, who)
    assert template is not None, first
    expected, body = sent_by_botocore(inner, operation, other)
    expected.headers.pop("expect", None)  # small bodies are sent with their heads
    date, invocation = expected.headers["x-amz-date"], expected.headers["amz-sdk-invocation-id"]
    made = places.body(other)
    assert template.fill(other, made, who, date, invocation) == expected
    assert made == body


@given(data=st.data(), operation=st.sampled_from([*OPERATIONS]))
def test_a_request_that_would_not_come_out_the_same_makes_no_template(
    data: st.DataObject, operation: tuple[str, str]
) -> None:
    inner = client(operation[0], "aws", KEYS[1])
    places = Places.of(inner.meta.service_model.operation_model(operation[1]))
    one, _ = of_a_kind(data, *operation, "aws")
    first, _ = sent_by_botocore(inner, operation[1], one)
    assert learn(places, one, first, KEYS[1]) is not None
    name = data.draw(st.sampled_from(sorted(first.headers.keys() - UNCHECKED)))
    for changed in (
        first._replace(headers={**first.headers, name: "another"}),
        first._replace(url=first.url + "x"),
        first._replace(method="PATCH"),
    ):
        assert learn(places, one, changed, KEYS[1]) is None, changed
    for who in (KEYS[0], KEYS[1]._replace(secret_key="changed")):
        assert learn(places, one, first, who) is None


def test_a_template_outlives_keys_and_days() -> None:
    """Keys that are renewed, and the signing key of another day."""
    old, new = KEYS[1], KEYS[1]._replace(secret_key="renewed", token="another")
    parameters = {"Bucket": "bucket", "Key": "k"}
    inner, renewed = client("s3", "aws", old), client("s3", "aws", new)
    places = Places.of(inner.meta.service_model.operation_model("GetObject"))
    template = learn(places, parameters, sent_by_botocore(inner, "GetObject", parameters)[0], old)
    assert template is not None
    template.fill(parameters, None, old, "20260101T000000Z", "i")
    expected, _ = sent_by_botocore(renewed, "GetObject", parameters)
    date, invocation = expected.headers["x-amz-date"], expected.headers["amz-sdk-invocation-id"]
    assert template.fits(new)
    assert template.fill(parameters, None, new, date, invocation) == expected
    assert not template.fits(KEYS[0]), "its requests have a token"
