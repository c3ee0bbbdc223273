"""The order to run a function on the host of its device. Pure.

The orchestrator connects with the role RUN, proves the secret of the lease, and sends one frame:

    client  → run       the order (`RunOrder.to_meta`)
    gateway → running   {"new": whether this order started the run}, or a refusal

A lease has one run: repeating an order starts nothing and renews the credentials. The run opens the
session of its lease as it does in Lambda, by the envelope to which `event` points.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import HEADER_BYTES, FrameLimits, Meta, int_field, text_field

#: Variables of a Lambda function have 4 KiB at most; those of a run have these, and its event.
RUN = FrameLimits(meta_bytes_max=(1 << 16) - HEADER_BYTES, payload_bytes_max=0, buffers_max=0)
#: A wall clock has the years to 9999.
_SECONDS_MAX = 2.5e11
#: AWS's variables that are secret, and differ between two orders.
CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A function's package in S3, a zip."""

    bucket: str
    key: str
    sha256: str  #: hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One run of one attempt, wherever."""

    function: str
    job: str
    attempt: int
    event: str  #: JSON text: what Lambda would pass to the handler
    timeout_s: float  #: of the run, after which it is killed
    memory_mib: int  #: of its processes, beside that of the device
    package: Package
    #: The environment of the function's process, without AWS's own.
    variables: Mapping[str, str] = field(default_factory=dict)


def _order(run: Mapping[str, object]) -> dict[str, Any]:
    """The fields of an `Order`. Raises WireError."""
    return {
        "function": text_field(run, "function", 128),
        "job": text_field(run, "job", 128),
        "attempt": int_field(run, "attempt", 1 << 20),
        "event": text_field(run, "event", RUN.meta_bytes_max),
        "timeout_s": _seconds(run, "timeout_s"),
        "memory_mib": int_field(run, "memory_mib", 1 << 24),
        "package": _package(_mapping(run, "package")),
        "variables": _texts(run, "variables"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder(Order):
    """One run on the first host of its lease."""

    #: AWS's own: region, endpoints, temporary credentials of the function's role.
    aws: Mapping[str, str] = field(default_factory=dict)
    role: str = ""  #: whose credentials those are
    credentials_end_s: float = 0.0  #: wall clock at which they expire; 0 = never
    log_group: str = ""  #: receives its output; "" = only the host's log does
    network: bool = False  #: whether the user's code may open connections beyond its device
    image: str = ""  #: OCI image, by digest, in which the user's command runs; "" = the script
    command: tuple[str, ...] = ()  #: in the image; empty = the image's own
    warm: bool = False  #: whether its process may stay for the next order of the same program
    called: bool = False  #: whether it takes calls (`remote_gpu.wire.calls`)

    @property
    def program(self) -> RunOrder:
        """The order without all that differs between two jobs of one deployed function."""
        aws = {name: value for name, value in self.aws.items() if name not in CREDENTIALS}
        return replace(self, aws=aws, job="", attempt=0, event="", credentials_end_s=0.0)

    def renewed(self, other: RunOrder) -> RunOrder:
        """This order with the credentials of a repeated one. That may be of a later deploy: the
        program that runs stays the one that began."""
        secret = {name: value for name, value in other.aws.items() if name in CREDENTIALS}
        aws = self.aws if not secret else {**self.aws, **secret}
        return replace(self, aws=aws, credentials_end_s=other.credentials_end_s)

    def to_meta(self) -> Meta:
        return {"run": asdict(self)}

    @classmethod
    def from_meta(cls, meta: Mapping[str, object]) -> RunOrder:
        """Decode a frame; unknown fields of a newer client are ignored. Raises WireError."""
        run = _mapping(meta, "run")
        command = run.get("command", ())
        if not isinstance(command, list | tuple) or not all(isinstance(w, str) for w in command):
            raise WireError("'command' must be a list of words")
        return cls(
            **_order(run),
            aws=_texts(run, "aws"),
            role=text_field(run, "role", 2048) if "role" in run else "",
            credentials_end_s=_seconds(run, "credentials_end_s"),
            log_group=text_field(run, "log_group", 512),
            network=run.get("network") is True,
            image=text_field(run, "image", 1024),
            command=tuple(command),
            warm=run.get("warm") is True,
            called=run.get("called") is True,
        )


#: The variable of a container that has its order, as JSON.
BATCH_VARIABLE = "ORCHGPU_RUN"
#: The type of the CloudEvent that starts an attempt in a container of an HTTP service.
SERVICE_EVENT = "orchgpu.attempt.staged"
#: Names a file with the token of those requests, for who sends them and who takes them.
SERVICES_TOKEN_VARIABLE = "ORCHGPU_SERVICES_TOKEN_FILE"  # noqa: S105 - a file's name


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrder(Order):
    """One run in a container of AWS Batch or a service, which has credentials of its own."""

    def to_json(self) -> str:
        """Short: AWS limits the characters of all overrides (SubmitJob)."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> BatchOrder:
        """Unknown fields of a newer orchestrator are ignored. Raises WireError."""
        try:
            run = json.loads(text)
        except (ValueError, RecursionError):
            run = None
        if not isinstance(run, dict):
            raise WireError("the order is not a JSON object")
        return cls(**_order(run))


def _package(value: Mapping[str, object]) -> Package:
    return Package(
        bucket=text_field(value, "bucket", 64),
        key=text_field(value, "key", 1024),
        sha256=_digest(value),
    )


def _digest(package: Mapping[str, object]) -> str:
    found = text_field(package, "sha256", 64)
    if len(found) != 64 or set(found) - set("0123456789abcdef"):
        raise WireError("'sha256' must be 64 lower-case hex digits")
    return found


def _mapping(meta: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = meta.get(name)
    if not isinstance(found, dict):
        raise WireError(f"{name!r} must be an object")
    return found


def _texts(meta: Mapping[str, object], name: str) -> dict[str, str]:
    found = _mapping(meta, name)
    if not all(isinstance(value, str) for value in found.values()):
        raise WireError(f"the values of {name!r} must be texts")
    return {key: str(value) for key, value in found.items()}


def _seconds(meta: Mapping[str, object], name: str) -> float:
    found = meta.get(name)
    if (
        not isinstance(found, int | float)
        or isinstance(found, bool)
        or not 0 <= found < _SECONDS_MAX
    ):
        raise WireError(f"{name!r} must be a number of seconds")
    return float(found)
