"""Changes that the journal stores: one `Entry` per event that changed something durable.

An entry is written as a whole (`encode_entry`, `decode_entry`), so a torn tail never splits a
lease's end from its record's change. Replaying entries rebuilds the state without asking a policy.
Not durable, and rebuilt from live sessions: beats, usage, warm keys, host silence, bypass counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from corekit.decode import Buffer, decode_json, decode_json_known, encode_json
from corekit.errors import invalid
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId, SessionId
from corekit.values import Value
from gpu_scheduler.model import (
    Device,
    Door,
    EndReason,
    Lease,
    LeaseLifetime,
    LeaseState,
    Record,
    Request,
)


class EpochStarted(Value):
    """One run of ssgmd. `position` is the journal position after this part: it never goes back."""

    epoch: int
    position: int
    run: str = ""  #: a copy of the journal goes on with the same epoch, and another one of these
    build: str = ""  #: version of the ssgmd of this run, which wrote the following changes


class InventoryDeclared(Value):
    devices: tuple[Device, ...]


class HostRegistered(Value):
    """A hello of a host brought something new, or its devices changed."""

    host: HostId
    incarnation: str
    gateway: str | None
    devices: tuple[Device, ...]  #: all ever seen there; `resident` left out
    middlewares: tuple[str, ...] = ()


class HostDrained(Value):
    host: HostId
    drained: bool


class DeviceDrained(Value):
    device: DeviceId
    drained: bool


class DeviceChanged(Value):
    """The health of one device changed: a recovering one is OK again."""

    device: Device  #: `resident` left out


class HostForgotten(Value):
    host: HostId


class ParameterSet(Value):
    """An operator changed a rule or a limit; DEFAULT takes back what was set before."""

    name: str
    value: Any  #: `parameters.Given`


class TenantUsed(Value):
    """Of a snapshot: a tenant's past usage; live, it follows from the ends of its leases."""

    tenant: str
    amount_s: tuple[float, ...]  #: devices, MiB, compute %, each × seconds, decayed to `as_of_s`
    as_of_s: float  #: wall clock


class Waiting(Value):
    """A request in the queue."""

    attempt: AttemptId
    holder: JobId | None
    request: Request
    session: SessionId | None  #: its owner; None = ownerless
    waiting_since_s: float  #: wall clock: its place
    hold: LeaseLifetime = LeaseLifetime.SESSION
    lease_s: float | None = None  #: length of its lease; None = not known
    door: Door = Door.GATEWAY
    sources: tuple[str, ...] = ()


class RequestQueued(Value):
    """Also when it changes its session."""

    waiting: Waiting


class RequestDropped(Value):
    attempt: AttemptId


class LeaseGranted(Value):
    """A lease exists; a waiting request of its attempt is answered by it."""

    lease: Lease
    request: Request  #: queued again when the grant is not accepted
    session: SessionId | None  #: of a `reserve`; a job's lease follows its record's owner
    waiting_since_s: float
    lease_s: float | None
    granted_s: float  #: wall clock
    accepted: bool  #: False: granted to a waiter that has yet to accept it


class LeaseChanged(Value):
    """A lease was accepted, staged, opened, freed or ended. An ENDED one leaves the state."""

    lease: LeaseId
    state: LeaseState
    accepted: bool = True
    connect_by_s: float | None = None  #: staged: length from then to the first session
    active_s: float | None = None  #: wall clock of the begin of its length, if it has one
    freed_s: float | None = None  #: wall clock when its shares were given back
    reason: EndReason | None = None
    detail: str = ""


class LeaseProlonged(Value):
    """A deadline lease has another length, counted from its begin."""

    lease: LeaseId
    lease_s: float


class LeaseResized(Value):
    """All its shares have another elastic limit."""

    lease: LeaseId
    compute_limit_pct: int


class LeaseTransferred(Value):
    """A reservation belongs to another session."""

    lease: LeaseId
    session: SessionId


class LeaseDoorOpened(Value):
    """One of its hosts listens for its holder."""

    lease: LeaseId
    host: HostId
    address: str


class RecordWritten(Value):
    record: Record


class RecordForgotten(Value):
    holder: JobId


class Unknown(Value):
    """A change of a newer version that may be passed over; kept, for that version to find again.

    A kind of change may be passed over when its fields say `"ignorable": true`.
    """

    name: str
    fields: Mapping[str, Any]


Part = (
    EpochStarted
    | InventoryDeclared
    | HostRegistered
    | HostDrained
    | DeviceDrained
    | DeviceChanged
    | HostForgotten
    | RequestQueued
    | RequestDropped
    | LeaseGranted
    | LeaseChanged
    | RecordWritten
    | RecordForgotten
    | ParameterSet
    | TenantUsed
    | LeaseProlonged
    | LeaseResized
    | LeaseTransferred
    | LeaseDoorOpened
    | Unknown
)


class Entry(Value):
    """The durable effect of one event."""

    parts: tuple[Part, ...]


#: Name in the journal → class of every change.
CHANGES: Mapping[str, type[Part]] = {
    "epoch_started": EpochStarted,
    "inventory_declared": InventoryDeclared,
    "host_registered": HostRegistered,
    "host_drained": HostDrained,
    "device_drained": DeviceDrained,
    "device_changed": DeviceChanged,
    "host_forgotten": HostForgotten,
    "request_queued": RequestQueued,
    "request_dropped": RequestDropped,
    "lease_granted": LeaseGranted,
    "lease_changed": LeaseChanged,
    "record_written": RecordWritten,
    "record_forgotten": RecordForgotten,
    "parameter_set": ParameterSet,
    "tenant_used": TenantUsed,
    "lease_extended": LeaseProlonged,
    "lease_resized": LeaseResized,
    "lease_transferred": LeaseTransferred,
    "lease_port_opened": LeaseDoorOpened,
}
#: The inverse, for writing.
CHANGE_NAMES: Mapping[type[Part], str] = {cls: name for name, cls in CHANGES.items()}

_GROUP = msgspec.json.Decoder(list[list[tuple[str, msgspec.Raw]]])
#: Changes whose format-2 names differ from the present ones in more than letters.
_RENAMED = {"lease_prolonged": "lease_extended", "lease_door_opened": "lease_port_opened"}
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


def from_format_2(group: bytes) -> bytes:
    """A line of the journal's format 2, in which changes had the names of classes, as of today.

    Everything else in it stays as it is, also what is refused when it is decoded.
    """
    try:
        entries = _GROUP.decode(group)
    except msgspec.MsgspecError:
        return group
    return encode_json([[(_name_today(name), raw) for name, raw in entry] for entry in entries])


def _name_today(name: str) -> str:
    """What only a newer version knows keeps its name."""
    today = _CAPITAL.sub("_", name).lower()
    today = _RENAMED.get(today, today)
    return today if today in CHANGES else name


_PAIRS = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])


def encode_entry(entry: Entry) -> bytes:
    """JSON text of an entry, `[[name, fields], …]`; `decode_entry` is its inverse."""
    return encode_json([_named(part) for part in entry.parts])


def encode_parts(parts: Iterable[Part]) -> bytes:
    """The same of many parts, one by one: a long entry holds up no other thread."""
    return b"[" + b",".join(encode_json(_named(part)) for part in parts) + b"]"


def _named(part: Part) -> tuple[str, object]:
    return (part.name, part.fields) if type(part) is Unknown else (CHANGE_NAMES[type(part)], part)


def decode_entry(data: Buffer, passed: list[str] | None = None) -> Entry:
    """Raises INVALID for anything `encode_entry` did not write.

    With `passed`, what a newer version wrote in addition is passed over and named there: a key that
    a change does not have, or a whole change that may be ignored.
    """
    try:
        parts = _PAIRS.decode(data)
    except msgspec.MsgspecError as error:
        raise invalid(f"journal entry: expected a list of [name, fields]: {error}") from None
    return Entry(parts=tuple(_decode_part(name, fields, passed) for name, fields in parts))


def _decode_part(name: str, fields: msgspec.Raw, passed: list[str] | None) -> Part:
    cls = CHANGES.get(name)
    if cls is not None and passed is None:
        return decode_json(cls, fields, name)
    if cls is not None and passed is not None:
        part, unknown = decode_json_known(cls, fields, name)
        passed.extend(unknown)
        return part
    kept = msgspec.json.decode(fields)
    if passed is None or not isinstance(kept, dict) or kept.get("ignorable") is not True:
        raise invalid(f"journal entry: unknown kind of change {name!r}")
    passed.append(name)
    return Unknown(name=name, fields=kept)
