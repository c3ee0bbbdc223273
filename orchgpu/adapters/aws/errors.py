"""botocore's exceptions become `AppError`; the cause is kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from contract.aws.faults import Fault, fault_of
from corekit.errors import AppError, ErrorCode

_CODES = {
    Fault.ABSENT: ErrorCode.NOT_FOUND,
    Fault.CONFLICT: ErrorCode.CONFLICT,
    Fault.RACED: ErrorCode.UNAVAILABLE,
    Fault.DENIED: ErrorCode.DENIED,
    Fault.EXHAUSTED: ErrorCode.EXHAUSTED,
    Fault.REFUSED: ErrorCode.INVALID,
    Fault.TIMEOUT: ErrorCode.TIMEOUT,
    Fault.UNAVAILABLE: ErrorCode.UNAVAILABLE,
}


@contextmanager
def translated(call: str) -> Iterator[None]:
    """Run one AWS call; each of its errors becomes an AppError that names the call."""
    try:
        yield
    except (ClientError, BotoCoreError, OSError) as error:
        raise AppError(_CODES[fault_of(error)], f"{call}: {_message(error)}") from error
    except Exception as error:  # a body that breaks off raises aiohttp's error
        if not _of_aiohttp(error):
            raise
        raise AppError(ErrorCode.UNAVAILABLE, f"{call}: {error}") from error


def _of_aiohttp(error: Exception) -> bool:
    """True for a client error of aiohttp. Only the orchestrator's clients load that library: it
    would be a fifth of the start of every command."""
    aiohttp = sys.modules.get("aiohttp")
    return aiohttp is not None and isinstance(error, aiohttp.ClientError)


def _message(error: Exception) -> str:
    if isinstance(error, NoCredentialsError):
        return "no AWS credentials found"
    if not isinstance(error, ClientError):
        return str(error)
    body = error.response.get("Error", {})
    return f"{body.get('Code', '?')}: {body.get('Message', '') or 'no message'}"
