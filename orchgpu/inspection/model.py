"""Calls, findings, and the subject that checks look at. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from fdl.model import Function
from fdl.plan.resources import DeployTarget

#: AWS's answer to a call, as AWS documents it; `Any` because its shapes come from data files.
Answer: TypeAlias = Mapping[str, Any]


class ReadCall(Value):
    """One read-only call."""

    service: str  #: as botocore names it
    operation: str
    arguments: Mapping[str, Any] = {}

    @property
    def action(self) -> str:
        operation = "ListBucket" if self.operation == "HeadBucket" else self.operation
        return f"{self.service}:{operation}"


#: Performs one call. Raises AppError, whose message begins with the call's action.
Read: TypeAlias = Callable[[ReadCall], Answer]


class Verdict(enum.Enum):
    """The outcome of a check."""

    GOOD = "good"
    WARNING = "warning"  #: works, but not as well as it could
    UNKNOWN = "unknown"  #: could not be checked
    WRONG = "wrong"


class Finding(Value):
    """One outcome at one place."""

    verdict: Verdict
    where: str  #: the resource, function or account
    message: str
    remedy: str = ""  #: the command or change that helps; "" for good ones


class HostGateway(Value):
    """The address of a GPU host's gateway."""

    host: str
    address: str  #: IP; "" = its name could not be resolved here
    port: int


class Inspected(Value):
    """One function to look at."""

    function: Function
    deployed: bool  #: Lambda has it already
    role: str = ""  #: ARN of its execution role; "" = deploy makes one
    boto3: str = ""  #: version in its package; "" = it ships none

    @property
    def where(self) -> str:
        return f"function {self.function.name}"

    @property
    def subnets(self) -> tuple[str, ...]:
        return self.function.function.vpc.subnet_ids

    @property
    def groups(self) -> tuple[str, ...]:
        return self.function.function.vpc.security_group_ids


class Subject(Value):
    """Everything that is known before the first call."""

    place: DeployTarget
    caller: str  #: ARN
    functions: tuple[Inspected, ...] = ()
    gateways: tuple[HostGateway, ...] = ()
    devices: int | None = None  #: sound ones; None = no scheduler answered
    orchestrator_role: str = ""  #: name or ARN; "" = not given

    def role_arn(self, role: str) -> str:
        return role if role.startswith("arn:") else self.place.role_arn(role)


class Check(Value):
    """`CHECK` of each module of `checks`."""

    title: str  #: its name for people
    #: Yields findings. An AppError of a call, raised from it, makes the check unknown.
    examine: Callable[[Subject, Read], Iterable[Finding]]


def examined(check: Check, subject: Subject, read: Read) -> Iterator[Finding]:
    """The findings of a check; the last is unknown where a call that it needs was refused."""
    try:
        yield from check.examine(subject, read)
    except AppError as error:
        yield refused(error)


def good(where: str, message: str) -> Finding:
    return Finding(verdict=Verdict.GOOD, where=where, message=message)


def warning(where: str, message: str, remedy: str) -> Finding:
    return Finding(verdict=Verdict.WARNING, where=where, message=message, remedy=remedy)


def wrong(where: str, message: str, remedy: str) -> Finding:
    return Finding(verdict=Verdict.WRONG, where=where, message=message, remedy=remedy)


def unknown(where: str, message: str, remedy: str) -> Finding:
    return Finding(verdict=Verdict.UNKNOWN, where=where, message=message, remedy=remedy)


def refused(error: AppError, where: str = "") -> Finding:
    """The finding of a check whose call had no answer."""
    action = ":".join(error.message.split(":")[:2])
    remedy = f"allow {action}, or ignore this check"
    if error.code is not ErrorCode.DENIED:
        remedy = "repeat it"
    return unknown(where or action, error.message, remedy)
