"""botocore's exceptions become `AppError`; the cause is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError

from corekit.errors import AppError, ErrorCode

_CODES = {
    "NoSuchKey": ErrorCode.NOT_FOUND,
    "NoSuchVersion": ErrorCode.NOT_FOUND,
    "NoSuchBucket": ErrorCode.NOT_FOUND,
    "404": ErrorCode.NOT_FOUND,
    "AWS.SimpleQueueService.NonExistentQueue": ErrorCode.NOT_FOUND,
    "QueueDoesNotExist": ErrorCode.NOT_FOUND,
    "ResourceNotFoundException": ErrorCode.NOT_FOUND,
    "NoSuchEntity": ErrorCode.NOT_FOUND,
    "ParameterNotFound": ErrorCode.NOT_FOUND,
    "ResourceExistsException": ErrorCode.CONFLICT,
    "PreconditionFailed": ErrorCode.CONFLICT,
    "412": ErrorCode.CONFLICT,
    # two conditional writes raced; S3 asks to repeat the call
    "ConditionalRequestConflict": ErrorCode.UNAVAILABLE,
    "AccessDenied": ErrorCode.DENIED,
    "AccessDeniedException": ErrorCode.DENIED,
    "UnauthorizedOperation": ErrorCode.DENIED,  # EC2's
    "403": ErrorCode.DENIED,
    "InvalidClientTokenId": ErrorCode.DENIED,
    "SignatureDoesNotMatch": ErrorCode.DENIED,
    "ExpiredToken": ErrorCode.DENIED,
    "OverLimit": ErrorCode.EXHAUSTED,
    "SlowDown": ErrorCode.EXHAUSTED,
    "RequestThrottled": ErrorCode.EXHAUSTED,
    "Throttling": ErrorCode.EXHAUSTED,
    "ThrottlingException": ErrorCode.EXHAUSTED,
    "TooManyRequestsException": ErrorCode.EXHAUSTED,
}


@contextmanager
def translated(call: str) -> Iterator[None]:
    """Run one AWS call; each of its errors becomes an AppError that names the call."""
    try:
        yield
    except ClientError as error:
        raise AppError(_code_of(error), f"{call}: {_message(error)}") from error
    except (ReadTimeoutError, ConnectTimeoutError) as error:
        raise AppError(ErrorCode.TIMEOUT, f"{call}: {error}") from error
    # A body that breaks off raises aiohttp's error, or one about its length: both are temporary.
    except (BotoConnectionError, HTTPClientError, IncompleteReadError, OSError) as error:
        raise AppError(ErrorCode.UNAVAILABLE, f"{call}: {error}") from error
    except NoCredentialsError as error:
        raise AppError(ErrorCode.DENIED, f"{call}: no AWS credentials found") from error
    except BotoCoreError as error:
        raise AppError(ErrorCode.INVALID, f"{call}: {error}") from error
    except Exception as error:
        if not _of_aiohttp(error):
            raise
        raise AppError(ErrorCode.UNAVAILABLE, f"{call}: {error}") from error


def _of_aiohttp(error: Exception) -> bool:
    """True for a client error of aiohttp. Only the orchestrator's clients load that library: it
    would be a fifth of the start of every command."""
    aiohttp = sys.modules.get("aiohttp")
    return aiohttp is not None and isinstance(error, aiohttp.ClientError)


def _code_of(error: ClientError) -> ErrorCode:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _CODES:
        return _CODES[code]
    if status == 404 or code.endswith(".NotFound"):  # InvalidSubnetID.NotFound, …: EC2's have 400
        return ErrorCode.NOT_FOUND
    return ErrorCode.UNAVAILABLE if status >= 500 or status == 429 else ErrorCode.INVALID


def _message(error: ClientError) -> str:
    body = error.response.get("Error", {})
    return f"{body.get('Code', '?')}: {body.get('Message', '') or 'no message'}"
