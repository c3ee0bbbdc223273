"""Calls, refusals, findings, and the subject that checks look at. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

from corekit.values import Value
from fdl.model import Function
from fdl.plan.resources import DeployTarget

T = TypeVar("T")
#: AWS's answer to a call, as AWS documents it; `Any` because its shapes come from data files.
Answer: TypeAlias = Mapping[str, Any]
#: Beginnings of the names of operations that change nothing.
READING = ("BatchGet", "Describe", "Get", "Head", "List", "Simulate")
#: The service of a call that gets a JSON document from the URL in an answer.
DOCUMENT = "https"
#: Operations whose IAM action has another name.
_ACTIONS = {"HeadBucket": "ListBucket", "GetBucketEncryption": "GetEncryptionConfiguration"}
#: Services whose prefix in IAM differs from their name in botocore.
_PREFIXES = {"service-quotas": "servicequotas"}


class Call(Value):
    """One read-only call."""

    service: str  #: as botocore names it
    operation: str
    arguments: Mapping[str, Any] = {}

    @property
    def action(self) -> str:
        """The IAM action that it needs."""
        service = _PREFIXES.get(self.service, self.service)
        return f"{service}:{_ACTIONS.get(self.operation, self.operation)}"


class Reason(enum.Enum):
    """The reason of a refusal."""

    DENIED = "denied"
    ABSENT = "absent"  #: the resource does not exist
    UNSUPPORTED = "unsupported"  #: this cloud does not have the call
    FAILED = "failed"


class Refusal(Exception):
    """A call without an answer."""

    def __init__(self, call: Call, reason: Reason, code: str, message: str) -> None:
        super().__init__(f"{call.action}: {code}: {message}")
        self.call = call
        self.reason = reason
        self.code = code  #: AWS's
        self.message = message


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


#: A part of a check: it yields calls and gets their answers; a refusal is raised in it.
Steps: TypeAlias = Generator[Call, Answer, T]


class Gateway(Value):
    """The address of a GPU host's gateway."""

    host: str
    name: str  #: the host part of its address
    address: str  #: IP; "" = the name could not be resolved here
    port: int


class Inspected(Value):
    """One function to look at."""

    function: Function
    deployed: bool  #: Lambda has it already
    role: str = ""  #: ARN or name of its execution role; "" = deploy makes one
    boto3: str = ""  #: version in its package; "" = it ships none

    @property
    def name(self) -> str:
        return self.function.name

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
    gateways: tuple[Gateway, ...] = ()
    devices: int | None = None  #: sound ones; None = no scheduler answered
    scheduler: str = ""  #: its address; "" = not known
    scheduler_address: str = ""  #: its IP; "" = the name could not be resolved here
    tls: bool = False  #: this program connects to the scheduler by TLS
    orchestrator_role: str = ""  #: name or ARN; "" = not given


class Check(Protocol):
    """A check of `checks`."""

    @property
    def title(self) -> str:
        """Its name for people."""
        ...

    def examine(self, subject: Subject, /) -> Steps[list[Finding]]:
        """Its findings."""
        ...


#: Performs one call. Raises Refusal.
Fetch: TypeAlias = Callable[[Call], Answer]


def performed(steps: Steps[T], fetch: Fetch) -> T:
    """The result of steps, with every call answered. Raises Refusal where they do not catch it."""
    try:
        call = next(steps)
        while True:
            try:
                answer = fetch(call)
            except Refusal as refusal:
                call = steps.throw(refusal)
            else:
                call = steps.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result


def examined(check: Check, subject: Subject, fetch: Fetch) -> list[Finding]:
    """The findings of a check; one that is unknown where a call that it needs was refused."""
    try:
        return performed(check.examine(subject), fetch)
    except Refusal as refusal:
        return [unknown(refusal)]


def attempted(call: Call) -> Steps[Answer | Refusal]:
    """The answer of one call, or its refusal."""
    try:
        return (yield call)
    except Refusal as refusal:
        return refusal


def good(where: str, message: str) -> Finding:
    return Finding(verdict=Verdict.GOOD, where=where, message=message)


def warning(where: str, message: str, remedy: str) -> Finding:
    return Finding(verdict=Verdict.WARNING, where=where, message=message, remedy=remedy)


def wrong(where: str, message: str, remedy: str) -> Finding:
    return Finding(verdict=Verdict.WRONG, where=where, message=message, remedy=remedy)


def unknown(refusal: Refusal, where: str = "") -> Finding:
    """The finding of a check that was refused a call."""
    action = refusal.call.action
    if refusal.reason is Reason.DENIED:
        message, remedy = f"not allowed to call {action}", f"allow {action}, or ignore this check"
    elif refusal.reason is Reason.UNSUPPORTED:
        message, remedy = f"this cloud does not have {action}", "check it on AWS"
    else:
        message, remedy = f"{action} failed: {refusal.code}: {refusal.message}", "repeat it"
    return Finding(verdict=Verdict.UNKNOWN, where=where or action, message=message, remedy=remedy)


def not_known(where: str, message: str, remedy: str) -> Finding:
    """A finding where a fact is missing that no call of AWS has."""
    return Finding(verdict=Verdict.UNKNOWN, where=where, message=message, remedy=remedy)
