"""Clients of AWS for logs, and the meaning of their errors.

Credentials come from boto3's own chain: variables, profile, the role of the machine. None of them
is ever in an address or a message. boto3 itself repeats nothing: the log's writer does, and it must
know about each try.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from botocore import exceptions
from botocore.config import Config

from contract.aws.clients import patience, session_of
from contract.aws.faults import Fault, fault_of
from contract.aws.faults import code_of as code_of
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.log.port import LogAddress
from gpu_scheduler.daemon.log.registry import only_options

#: Options of every address on AWS.
OPTIONS = ("region", "endpoint", "profile")
#: Parallel requests of one log.
CONNECTIONS = 24

#: The log's writer repeats what is UNAVAILABLE; an unexpected answer ends the program.
_CODES = {
    Fault.ABSENT: ErrorCode.NOT_FOUND,
    Fault.CONFLICT: ErrorCode.INTERNAL,
    Fault.RACED: ErrorCode.UNAVAILABLE,
    Fault.DENIED: ErrorCode.DENIED,
    Fault.EXHAUSTED: ErrorCode.UNAVAILABLE,
    Fault.REFUSED: ErrorCode.INTERNAL,
    Fault.TIMEOUT: ErrorCode.TIMEOUT,
    Fault.UNAVAILABLE: ErrorCode.UNAVAILABLE,
}


def client_of(service: str, address: LogAddress, call_s: float, *options: str) -> Any:
    """A boto3 client; boto3 has no types. Raises INVALID for options that are not known."""
    only_options(address, (*OPTIONS, *options))
    if not address.host or address.user:
        raise invalid(f"--log {address.text}: expected {service}://NAME/NAME, without a user")
    config = Config(
        **patience(tries=1, connect_s=call_s, read_s=call_s),
        max_pool_connections=CONNECTIONS,
        tcp_keepalive=True,
        s3={"addressing_style": "path" if "endpoint" in address.options else "auto"},
    )
    with aws_errors(address.text):
        return session_of(address.options.get("profile")).client(
            service,
            region_name=address.options.get("region"),
            endpoint_url=address.options.get("endpoint"),
            config=config,
        )


@contextlib.contextmanager
def aws_errors(where: str) -> Iterator[None]:
    """Translate botocore's errors."""
    try:
        yield
    except exceptions.ClientError as error:
        message = error.response.get("Error", {}).get("Message", "")
        text = f"{where}: {error.operation_name}: {code_of(error)}: {message}"
        raise AppError(_CODES[fault_of(error)], text) from None
    except (exceptions.NoRegionError, exceptions.ProfileNotFound, ValueError) as error:
        raise invalid(f"--log {where}: {error} (options ?region=…, ?profile=…)") from None
    except exceptions.BotoCoreError as error:
        fault, text = fault_of(error), f"{where}: {error}"
        if fault is Fault.DENIED:
            text += "; give AWS_PROFILE, AWS_ACCESS_KEY_ID, or the machine a role"
        kind = ErrorCode.UNAVAILABLE if fault is Fault.REFUSED else _CODES[fault]
        raise AppError(kind, text) from None
