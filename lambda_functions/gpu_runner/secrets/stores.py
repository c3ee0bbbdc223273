"""Reads of secrets from Secrets Manager, SSM Parameter Store and files."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from contract.aws.clients import patience
from contract.aws.faults import Fault, code_of, fault_of, status_of
from contract.secrets.reference import SecretReference
from contract.secrets.stores import StoreCall, call_of, content_of

#: One call takes at most two tries of these; a device is reserved meanwhile.
_CONFIG = Config(user_agent="orchgpu-runner", **patience(tries=2, connect_s=2, read_s=3))
#: Secrets Manager's limit of a value.
BYTES_MAX = 65536
_POLICY = "`orchgpu iam function FILE` prints the policy"


class Unreadable(Exception):
    """A secret that cannot be read; the message has neither its name nor its content."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class Stores:
    """The clients of the stores that a function's secrets are in."""

    def __init__(self, references: Iterable[SecretReference]) -> None:
        """Make the clients, before the credentials of the process are hidden."""
        calls = [call_of(reference) for reference in references if reference.stored]
        places = dict.fromkeys((call.service, call.region) for call in calls)
        self._clients: dict[tuple[str, str | None], Any] = {  # boto3 carries no types
            place: boto3.client(place[0], region_name=place[1], config=_CONFIG) for place in places
        }

    def read(self, reference: SecretReference) -> str:
        """The newest value. Raises Unreadable."""
        content = self._stored(reference) if reference.stored else _file(Path(reference.name))
        if len(content) > BYTES_MAX:
            raise Unreadable(Fault.REFUSED, f"has more than {BYTES_MAX} bytes")
        try:
            text = content.decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            message = "is not UTF-8 text, which a variable must be: store it as base64"
            raise Unreadable(Fault.REFUSED, message)
        return text

    def _stored(self, reference: SecretReference) -> bytes:
        call = call_of(reference)
        try:
            answer = getattr(self._clients[call.service, call.region], call.method)(
                **call.arguments
            )
            return content_of(reference, answer)
        except ClientError as error:
            raise _refusal(call, error) from None
        except BotoCoreError as error:
            way = "a function in a VPC needs an endpoint of the service there, or a way out"
            message = f"cannot be read now: {call.operation}: {type(error).__name__} ({way})"
            raise Unreadable(Fault.UNAVAILABLE, message) from None
        except ValueError as error:
            raise Unreadable(Fault.REFUSED, str(error)) from None


def _refusal(call: StoreCall, error: ClientError) -> Unreadable:
    code, fault = code_of(error), fault_of(error)
    match fault:
        case Fault.ABSENT:
            text = "does not exist in this account and region: create it, or correct `secrets:`"
        case Fault.DENIED:
            text = (
                f"may not be read ({code}): allow {call.action} on it to the function's role, and"
                f" kms:Decrypt on its key where that is your own; {_POLICY}"
            )
        case Fault.REFUSED:
            text = f"cannot be read: {call.operation} answered {code}"
        case _:
            fault = Fault.UNAVAILABLE
            text = f"cannot be read now: {call.operation} answered {code or status_of(error)}"
    return Unreadable(fault, text)


def _file(path: Path) -> bytes:
    """The content without the line end of its last line, which editors and `echo` write."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Unreadable(Fault.REFUSED, "is not a regular file")
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 3)
    except FileNotFoundError:
        message = "does not exist where the function runs: restore it, or correct `secrets:`"
        raise Unreadable(Fault.ABSENT, message) from None
    except PermissionError:
        message = "may not be read by the user that runs the function: change its mode"
        raise Unreadable(Fault.DENIED, message) from None
    except OSError as error:
        raise Unreadable(Fault.REFUSED, f"cannot be read: {error.strerror}") from None
    return content.removesuffix(b"\n").removesuffix(b"\r")
