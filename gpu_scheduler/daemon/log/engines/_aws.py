"""Clients of AWS for logs, and the meaning of their errors.

Credentials come from boto3's own chain: variables, profile, the role of the machine. None of them
is ever in an address or a message. boto3 itself repeats nothing: the log's writer does, and it must
know about each try.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import boto3
import botocore.session
from botocore import exceptions
from botocore.config import Config
from botocore.loaders import create_loader

from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.log.port import LogAddress
from gpu_scheduler.daemon.log.registry import only_options

#: Options of every address on AWS.
OPTIONS = ("region", "endpoint", "profile")
#: Parallel requests of one log.
CONNECTIONS = 24

_TIMEOUTS = (exceptions.ReadTimeoutError, exceptions.ConnectTimeoutError)
_PASSING = frozenset(
    {
        *("ConditionalRequestConflict", "OperationAborted", "SlowDown", "ServiceUnavailable"),
        *("InternalError", "InternalServerError", "InternalFailure", "RequestTimeout"),
        *("ThrottlingException", "Throttling", "RequestLimitExceeded", "TooManyRequestsException"),
        *("ProvisionedThroughputExceededException", "TransactionConflictException"),
        *("LimitExceededException", "ResourceInUseException", "503", "500"),
    }
)
_DENIED = frozenset(
    {
        *("AccessDenied", "AccessDeniedException", "403", "InvalidAccessKeyId"),
        *("SignatureDoesNotMatch", "UnrecognizedClientException", "ExpiredToken"),
        *("ExpiredTokenException", "InvalidClientTokenId", "KMSAccessDeniedException"),
    }
)
_MISSING = frozenset({"NoSuchBucket", "ResourceNotFoundException", "404"})


def client_of(service: str, address: LogAddress, call_s: float, *options: str) -> Any:
    """A boto3 client; boto3 has no types. Raises INVALID for options that are not known."""
    only_options(address, (*OPTIONS, *options))
    if not address.host or address.user:
        raise invalid(f"--log {address.text}: expected {service}://NAME/NAME, without a user")
    config = Config(
        connect_timeout=call_s,
        read_timeout=call_s,
        retries={"total_max_attempts": 1},
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        s3={"addressing_style": "path" if "endpoint" in address.options else "auto"},
    )
    with aws_errors(address.text):
        inner = botocore.session.Session(profile=address.options.get("profile"))
        inner.register_component("data_loader", _service_descriptions())
        return boto3.Session(botocore_session=inner).client(
            service,
            region_name=address.options.get("region"),
            endpoint_url=address.options.get("endpoint"),
            config=config,
        )


@functools.cache
def _service_descriptions() -> object:
    """botocore's data files, parsed once per process: parsing is most of a client's cost."""
    return create_loader()


def code_of(error: exceptions.ClientError) -> str:
    """AWS's code of an error."""
    return str(error.response.get("Error", {}).get("Code", ""))


@contextlib.contextmanager
def aws_errors(where: str) -> Iterator[None]:
    """Translate botocore's errors."""
    try:
        yield
    except exceptions.ClientError as error:
        name = code_of(error)
        message = error.response.get("Error", {}).get("Message", "")
        raise AppError(_code(name), f"{where}: {error.operation_name}: {name}: {message}") from None
    except _TIMEOUTS as error:
        raise AppError(ErrorCode.TIMEOUT, f"{where}: {error}") from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
        text = f"{where}: {error}; give AWS_PROFILE, AWS_ACCESS_KEY_ID, or the machine a role"
        raise AppError(ErrorCode.DENIED, text) from None
    except (exceptions.NoRegionError, exceptions.ProfileNotFound, ValueError) as error:
        raise invalid(f"--log {where}: {error} (options ?region=…, ?profile=…)") from None
    except (exceptions.HTTPClientError, exceptions.BotoCoreError) as error:
        raise AppError(ErrorCode.UNAVAILABLE, f"{where}: {error}") from None


def _code(name: str) -> ErrorCode:
    if name in _PASSING:
        return ErrorCode.UNAVAILABLE
    if name in _DENIED:
        return ErrorCode.DENIED
    return ErrorCode.NOT_FOUND if name in _MISSING else ErrorCode.INTERNAL
