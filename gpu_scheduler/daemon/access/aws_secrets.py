"""Secrets in AWS Secrets Manager and in SSM Parameter Store.

Region and credentials are boto3's own: variables, profile, or the role of the instance or task. An
ARN names its region. Needed: `secretsmanager:GetSecretValue` or `ssm:GetParameter`, and
`kms:Decrypt` for a key of the account.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
)

from contract.aws.clients import patience
from contract.aws.faults import Fault, code_of, fault_of
from contract.secrets.reference import SecretReference
from contract.secrets.stores import StoreCall, call_of, content_of
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.access.sources import Fetch

#: Start and rotation wait for a store this long at most: two tries.
_CONFIG = Config(**patience(tries=2, connect_s=3, read_s=5))


def fetch_of(reference: SecretReference) -> Fetch:
    """Reads the newest content: of a secret its binary form, or its text."""
    return functools.partial(_fetched, reference)


def _fetched(reference: SecretReference) -> bytes:
    call = call_of(reference)
    with _translated(call, str(reference)):
        answer = getattr(_client(call.service, call.region), call.method)(**call.arguments)
    try:
        return content_of(reference, answer)
    except ValueError as error:
        raise invalid(f"{reference} {error}") from None


@functools.cache
def _client(service: str, region: str | None) -> Any:  # boto3 makes its clients at run time
    return boto3.client(service, region_name=region, config=_CONFIG)


@contextmanager
def _translated(call: StoreCall, where: str) -> Iterator[None]:
    """Run one call; its errors become AppErrors that name the secret, and never its content."""
    try:
        yield
    except ClientError as error:
        raise _refusal(call, where, error) from None
    except NoCredentialsError:
        text = f"{where} cannot be read: no AWS credentials; give ssgmd's machine a role"
        raise AppError(ErrorCode.DENIED, text) from None
    except (NoRegionError, ParamValidationError, ValueError) as error:
        raise invalid(f"{where} cannot be read: {error}") from None
    except BotoCoreError as error:
        kind = ErrorCode.UNAVAILABLE
        raise AppError(kind, f"{where} cannot be read: {type(error).__name__}") from None


def _refusal(call: StoreCall, where: str, error: ClientError) -> AppError:
    code = code_of(error)
    match fault_of(error):
        case Fault.ABSENT:
            text = f"{where} does not exist in this account and region"
            return AppError(ErrorCode.NOT_FOUND, text)
        case Fault.DENIED:
            text = f"{where} may not be read ({code}); allow {call.action} to ssgmd's role"
            return AppError(ErrorCode.DENIED, text)
        case fault:
            text = f"{where} cannot be read: {call.operation} answered {code}"
            kind = ErrorCode.INVALID if fault is Fault.REFUSED else ErrorCode.UNAVAILABLE
            return AppError(kind, text)
