"""AWS as every program meets it: kinds of errors, and writes on a condition."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from botocore import exceptions

from contract.aws.clients import RACE_TRIES, write_once
from contract.aws.faults import Fault, fault_of


def refusal(code: str, status: int = 400) -> exceptions.ClientError:
    answer: Any = {
        "Error": {"Code": code, "Message": "by the test"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return exceptions.ClientError(answer, "PutObject")


@pytest.mark.parametrize(
    ("code", "status", "fault"),
    [
        ("ResourceNotFoundException", 400, Fault.ABSENT),
        ("ParameterNotFound", 400, Fault.ABSENT),
        ("ParameterVersionNotFound", 400, Fault.ABSENT),
        ("InvalidSubnetID.NotFound", 400, Fault.ABSENT),
        ("", 404, Fault.ABSENT),
        ("PreconditionFailed", 412, Fault.CONFLICT),
        ("ConditionalRequestConflict", 409, Fault.RACED),
        ("AccessDeniedException", 400, Fault.DENIED),
        ("UnauthorizedOperation", 403, Fault.DENIED),
        ("ExpiredTokenException", 400, Fault.DENIED),
        ("UnrecognizedClientException", 400, Fault.DENIED),
        ("InvalidRequestException", 400, Fault.REFUSED),
        ("ValidationException", 400, Fault.REFUSED),
        ("InvalidKeyId", 400, Fault.REFUSED),
        ("DecryptionFailure", 400, Fault.REFUSED),
        ("ThrottlingException", 400, Fault.EXHAUSTED),
        ("TooManyRequestsException", 429, Fault.EXHAUSTED),
        ("InternalServiceError", 500, Fault.UNAVAILABLE),
        ("", 503, Fault.UNAVAILABLE),
    ],
)
def test_the_kind_of_an_answer(code: str, status: int, fault: Fault) -> None:
    assert fault_of(refusal(code, status)) is fault


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (exceptions.ReadTimeoutError(endpoint_url="http://x"), Fault.TIMEOUT),
        (exceptions.ConnectTimeoutError(endpoint_url="http://x"), Fault.TIMEOUT),
        (exceptions.EndpointConnectionError(endpoint_url="http://x"), Fault.UNAVAILABLE),
        (exceptions.IncompleteReadError(actual_bytes=1, expected_bytes=2), Fault.UNAVAILABLE),
        (exceptions.CredentialRetrievalError(provider="role", error_msg=""), Fault.UNAVAILABLE),
        (ConnectionResetError("reset"), Fault.UNAVAILABLE),
        (exceptions.NoCredentialsError(), Fault.DENIED),
        (exceptions.NoRegionError(), Fault.REFUSED),
    ],
)
def test_the_kind_of_a_call_without_an_answer(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault


class Bucket:
    """S3 with one object; each put takes the next of `answers`, or is stored."""

    def __init__(self, *answers: exceptions.ClientError, body: bytes | None = None) -> None:
        self._answers: Iterator[exceptions.ClientError] = iter(answers)
        self.body = body
        self.conditions: list[dict[str, str]] = []

    def put_object(self, **parameters: Any) -> None:
        self.conditions.append({k: v for k, v in parameters.items() if k.startswith("If")})
        for answer in self._answers:
            raise answer
        self.body = parameters["Body"]

    def get_object(self, **_: str) -> dict[str, io.BytesIO]:
        if self.body is None:
            raise refusal("NoSuchKey", 404)
        return {"Body": io.BytesIO(self.body)}


def written(s3: Bucket, replaces: str = "") -> bool:
    return write_once(s3, "b", "k", b"ours", replaces=replaces, pause=lambda _: None)


TAKEN, RACED = refusal("PreconditionFailed", 412), refusal("ConditionalRequestConflict", 409)


def test_a_write_names_its_condition() -> None:
    s3 = Bucket()
    assert written(s3)
    assert written(s3, "etag")
    assert s3.conditions == [{"IfNoneMatch": "*"}, {"IfMatch": '"etag"'}]


def test_a_write_whose_answer_was_lost_is_known_by_its_bytes() -> None:
    assert written(Bucket(TAKEN, body=b"ours"))
    assert not written(Bucket(TAKEN, body=b"theirs"))


def test_a_large_object_that_is_there_is_looked_at_and_not_read() -> None:
    for found in (True, False):
        s3 = Bucket(TAKEN)
        how: dict[str, Any] = {"pause": lambda _: None, "look": lambda found=found: found}
        assert write_once(s3, "b", "k", b"ours", **how) is found
    s3 = Bucket(TAKEN)
    assert write_once(s3, "b", "k", b"ours", pause=lambda _: None, look=lambda: None)
    assert s3.body == b"ours", "the other was removed meanwhile"


def test_a_write_is_repeated_after_a_race_and_after_a_removal() -> None:
    s3 = Bucket(RACED, TAKEN)
    assert written(s3)
    assert (len(s3.conditions), s3.body) == (3, b"ours")


def test_a_race_without_end_and_every_other_answer_is_raised() -> None:
    with pytest.raises(exceptions.ClientError, match="ConditionalRequestConflict"):
        written(Bucket(*[RACED] * RACE_TRIES))
    with pytest.raises(exceptions.ClientError, match="AccessDenied"):
        written(Bucket(refusal("AccessDenied", 403)))
