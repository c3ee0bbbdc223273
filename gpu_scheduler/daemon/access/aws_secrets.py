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

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.access.sources import Fetch

#: Start and rotation wait for a store this long at most: two tries.
_CONFIG = Config(
    connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2, "mode": "standard"}
)
_MISSING = ("ResourceNotFoundException", "ParameterNotFound", "ParameterVersionNotFound")
_DENIED = ("AccessDenied", "ExpiredToken", "InvalidClientTokenId", "UnrecognizedClient")


def secrets_manager(name: str) -> Fetch:
    """The newest value of a secret: its binary form, or its text."""
    return functools.partial(_secret, name)


def parameter_store(name: str) -> Fetch:
    """The newest value of a parameter, decrypted."""
    return functools.partial(_parameter, name)


def _secret(name: str) -> bytes:
    with _translated("secretsmanager", "GetSecretValue", name):
        found = _client("secretsmanager", _region(name)).get_secret_value(SecretId=name)
    binary: bytes | None = found.get("SecretBinary")
    return binary if binary is not None else str(found.get("SecretString", "")).encode()


def _parameter(name: str) -> bytes:
    with _translated("ssm", "GetParameter", name):
        client = _client("ssm", _region(name))
        found = client.get_parameter(Name=name, WithDecryption=True)
    return str(found["Parameter"]["Value"]).encode()


def _region(name: str) -> str | None:
    """The region of an ARN; None for a name."""
    parts = name.split(":")
    return parts[3] if parts[0] == "arn" and len(parts) > 4 else None


@functools.cache
def _client(service: str, region: str | None) -> Any:  # boto3 makes its clients at run time
    return boto3.client(service, region_name=region, config=_CONFIG)


@contextmanager
def _translated(service: str, call: str, name: str) -> Iterator[None]:
    """Run one call; its errors become AppErrors that name the secret, and never its content."""
    where = f"{service}:{name}"
    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in _MISSING:
            text = f"{where} does not exist in this account and region"
            raise AppError(ErrorCode.NOT_FOUND, text) from None
        if code.startswith(_DENIED):
            text = f"{where} may not be read ({code}); allow {service}:{call} to ssgmd's role"
            raise AppError(ErrorCode.DENIED, text) from None
        kind = ErrorCode.INVALID if code.startswith(("Validation", "Invalid")) else None
        text = f"{where} cannot be read: {call} answered {code}"
        raise AppError(kind or ErrorCode.UNAVAILABLE, text) from None
    except NoCredentialsError:
        text = f"{where} cannot be read: no AWS credentials; give ssgmd's machine a role"
        raise AppError(ErrorCode.DENIED, text) from None
    except (NoRegionError, ParamValidationError, ValueError) as error:
        raise invalid(f"{where} cannot be read: {error}") from None
    except BotoCoreError as error:
        kind = ErrorCode.UNAVAILABLE
        raise AppError(kind, f"{where} cannot be read: {type(error).__name__}") from None
