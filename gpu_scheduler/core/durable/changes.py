"""What the journal stores: one `Entry` per event that changed something durable.

An entry is one line of the journal (`encode_entry`, `decode_entry`), so a torn tail never splits a
lease's end from its record's change. Replaying entries rebuilds the state without asking a policy.
Not durable, and rebuilt from life: beats, usage, warm keys, host silence, parked and head_reservation counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from corekit.decode import Buffer, decode_json, decode_json_known, encode_json
from corekit.errors import invalid
from corekit.ids import DeviceId, HostId, JobId, LeaseId, SessionId
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
    build: str = ""  #: version of the ssgmd of this run: who wrote what follows


class InventoryDeclared(Value):
    devices: tuple[Device, ...]


class HostRegistered(Value):
    """A host said hello with something new, or its devices changed."""

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
    """One device counts differently from now on: a recovering one is OK again."""

    device: Device  #: `resident` left out


class HostForgotten(Value):
    host: HostId


class ParameterSet(Value):
    """An operator changed a rule or a limit; DEFAULT takes back what was set before."""

    name: str
    value: Any  #: `parameters.Given`


class TenantUsed(Value):
    """Of a snapshot: what a tenant gave back until then; live, the ends of its leases tell it."""

    tenant: str
    amount_s: tuple[float, ...]  #: devices, MiB, compute %, each × seconds, decayed to `as_of_s`
    as_of_s: float  #: wall clock


class Waiting(Value):
    """A request in the queue."""

    attempt: str
    holder: JobId | None
    request: Request
    session: SessionId | None  #: whom it belongs to; None = parked
    waiting_since_s: float  #: wall clock: its place
    hold: LeaseLifetime = LeaseLifetime.SESSION
    lease_s: float | None = None  #: length of its lease; None = not known
    door: Door = Door.GATEWAY
    sources: tuple[str, ...] = ()


class RequestQueued(Value):
    """Also when it changes its session."""

    waiting: Waiting


class RequestDropped(Value):
    attempt: str


class LeaseGranted(Value):
    """A lease exists; a waiting request of its attempt is answered by it."""

    lease: Lease
    request: Request  #: kept to ask again when nobody takes the grant
    session: SessionId | None  #: of a `reserve`; a job's lease follows its record's owner
    waiting_since_s: float
    lease_s: float | None
    granted_s: float  #: wall clock
    accepted: bool  #: False: granted to a waiter that has yet to take it


class LeaseChanged(Value):
    """Taken, staged, opened, freed or ended. An ENDED lease leaves the state."""

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
    """A host of it listens for its holder."""

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


_PARTS: Mapping[str, type[Part]] = {
    cls.__name__: cls
    for cls in (
        EpochStarted,
        InventoryDeclared,
        HostRegistered,
        HostDrained,
        DeviceDrained,
        DeviceChanged,
        HostForgotten,
        RequestQueued,
        RequestDropped,
        LeaseGranted,
        LeaseChanged,
        RecordWritten,
        RecordForgotten,
        ParameterSet,
        TenantUsed,
        LeaseProlonged,
        LeaseResized,
        LeaseTransferred,
        LeaseDoorOpened,
    )
}


_PAIRS = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])


def encode_entry(entry: Entry) -> bytes:
    """JSON text of an entry, `[[name, fields], …]`; `decode_entry` is its inverse."""
    return encode_json([_named(part) for part in entry.parts])


def encode_parts(parts: Iterable[Part]) -> bytes:
    """The same of many parts, one by one: a long entry holds up no other thread."""
    return b"[" + b",".join(encode_json(_named(part)) for part in parts) + b"]"


def _named(part: Part) -> tuple[str, object]:
    return (part.name, part.fields) if type(part) is Unknown else (type(part).__name__, part)


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
    cls = _PARTS.get(name)
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
