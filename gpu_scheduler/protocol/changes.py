"""Changes that the journal stores: one `Entry` per event that changed durable state.

An entry is written as a whole (`encode_entry`, `decode_entry`), so a torn tail never separates the
end of a lease from the change of its record. Replaying entries rebuilds the state without a policy.
Beats, usage, warm keys, residents, host silence and bypass counts are not durable; live sessions
rebuild them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from corekit.decode import Buffer, decode_json, decode_json_known, encode_json
from corekit.errors import invalid
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId, SessionId
from corekit.values import Value, field
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


class EpochStarted(Value, omit_defaults=True):
    """One run of ssgmd. `position` is the journal position after this part: it never decreases."""

    epoch: int
    position: int
    run: str = ""  #: a copy of the journal continues with the same epoch, but another `run`
    build: str = ""  #: version of the ssgmd of this run, which wrote the following changes
    #: Of a journal in a log, for standbys: the addresses that this ssgmd advertises.
    socket: str = ""
    http: str = ""
    master_key: str = ""  #: fingerprint of its master key


class EpochEnded(Value):
    """The last change of a run that stopped in order: a standby takes over at once."""

    epoch: int
    ignorable: bool = True  #: an older version waits for the leader's silence


class InventoryDeclared(Value):
    devices: tuple[Device, ...]


class HostRegistered(Value):
    """A hello of a host had new information, or its devices changed."""

    host: HostId
    incarnation: str
    gateway: str | None
    devices: tuple[Device, ...]  #: all devices ever seen there, without `resident`
    middlewares: tuple[str, ...] = ()
    ephemeral: bool = False  #: forgotten some time after it is lost
    data: Mapping[str, str] = field(default_factory=dict)  #: name → SHA-256
    programs: Mapping[str, str] = field(default_factory=dict)  #: name → SHA-256
    advance: bool = False  #: sessions of leases granted ahead may wait there
    loads_ahead: bool = False  #: workers of such leases load there before they have their shares
    data_space_mib: int = 0  #: for declared data sets; 0: it fetches none


class HostDrained(Value):
    host: HostId
    drained: bool


class HostDraining(Value):
    """A host began to drain itself, or takes leases again."""

    host: HostId
    incarnation: str  #: a restarted host does not drain
    draining: bool
    reason: str = ""
    since_s: float = 0.0  #: wall clock
    limit_s: float | None = None  #: its leases end by then; None = no limit
    ignorable: bool = True  #: a version without it grants there until the host is gone


class DeviceDrained(Value):
    device: DeviceId
    drained: bool


class DeviceChanged(Value):
    """The health of one device changed: a recovering one is OK again."""

    device: Device  #: without `resident`


class HostForgotten(Value):
    host: HostId


class ParameterSet(Value):
    """An operator changed a rule or a limit; DEFAULT removes an earlier change."""

    name: str
    value: Any  #: `parameters.Given`


class TenantUsed(Value):
    """Past usage of a tenant, only in snapshots; otherwise it follows from the ends of leases."""

    tenant: str
    amount_s: tuple[float, ...]  #: devices, MiB, compute %, each × seconds, decayed to `as_of_s`
    as_of_s: float  #: wall clock


class WorkloadLearned(Value):
    """Learned times, only in snapshots; otherwise they follow from the ends of leases."""

    tenant: str
    workload: str
    model: str  #: of the device
    executions_s: tuple[float, ...]  #: the oldest first
    loadings_s: tuple[float, ...]
    cold_starts: int
    warm_starts: int
    runs: int
    ignorable: bool = True  #: a version without learned times passes it over
    starts_s: tuple[float, ...] = ()
    new_starts_s: tuple[float, ...] = ()  #: of functions that started a sandbox
    new_part: float = 0.0  #: of the functions of known sandboxes
    sandboxes: int = 0  #: known, and counted for that part


class WayLearned(Value):
    """A job ended: its time outside of its lease and its waiting. In snapshots, of several jobs."""

    tenant: str
    workload: str
    ways_s: tuple[float, ...]  #: the oldest first
    ignorable: bool = True  #: a version without ways passes it over


class Waiting(Value):
    """A request in the queue."""

    attempt: AttemptId
    holder: JobId | None
    request: Request
    session: SessionId | None  #: its owner; None = ownerless
    waiting_since_s: float  #: wall clock: decides its place in the queue
    hold: LeaseLifetime = LeaseLifetime.SESSION
    lease_s: float | None = None  #: length of its lease; None = not known
    door: Door = Door.GATEWAY
    sources: tuple[str, ...] = ()


class RequestQueued(Value):
    """A request was queued, or a queued request changed its session."""

    waiting: Waiting


class RequestDropped(Value):
    attempt: AttemptId


class LeaseGranted(Value):
    """A lease was granted; it answers a waiting request of the same attempt."""

    lease: Lease
    request: Request  #: queued again if the grant is not accepted
    session: SessionId | None  #: of a `reserve`; a job's lease follows the owner of its record
    waiting_since_s: float
    lease_s: float | None
    granted_s: float  #: wall clock
    accepted: bool  #: False: granted to a waiting request, not accepted yet


class LeaseChanged(Value):
    """A lease was accepted, staged, opened, freed or ended. An ENDED one leaves the state."""

    lease: LeaseId
    state: LeaseState
    accepted: bool = True
    connect_by_s: float | None = None  #: staged: seconds from then to the first session
    active_s: float | None = None  #: wall clock: start of its length, if it has one
    freed_s: float | None = None  #: wall clock: release of its shares
    reason: EndReason | None = None
    detail: str = ""
    loading_s: float | None = None  #: seconds that its workers spent loading; None = unknown
    succeeded: bool | None = None  #: False: its code failed; None = unknown
    waited_s: float | None = None  #: opened: its session waited this long for the shares
    loaded_ahead_s: float | None = None  #: seconds that its worker loaded before; None = it did not
    new_sandbox: bool | None = None  #: opened: its function started a sandbox; None = unknown


class LeaseBooked(Value):
    """A lease granted ahead got its shares; or it lost them again, before its session opened, to
    one whose session waited."""

    lease: LeaseId
    booked_s: float  #: wall clock
    after: tuple[LeaseId, ...] = ()  #: not empty: it waits again, for these leases
    ignorable: bool = True  #: a version without it booked the shares at the grant


class LeasePreempted(Value):
    """A lease ends after a grace time, for a waiting request of higher priority or a drain."""

    lease: LeaseId
    attempt: AttemptId  #: of that request; "" = of none: its host drains
    ignorable: bool = True  #: a version without preemption lets the lease continue


class LeaseProlonged(Value):
    """A deadline lease has a new length, counted from its start."""

    lease: LeaseId
    lease_s: float


class LeaseResized(Value):
    """All shares of a lease have a new elastic limit."""

    lease: LeaseId
    compute_limit_pct: int | float


class LeaseTransferred(Value):
    """A reservation belongs to another session."""

    lease: LeaseId
    session: SessionId


class LeaseDoorOpened(Value):
    """A host of the lease listens on a port for the holder."""

    lease: LeaseId
    host: HostId
    address: str


#: A value that a policy remembers.
Scalar = str | int | float | bool


class PolicyRemembered(Value):
    """The change of the memory of a deciding policy by one of its decisions."""

    policy: str
    seed: str = ""  #: of its stream
    draws: int = 0  #: numbers taken from the stream
    #: None: the value was removed.
    changed: Mapping[str, Scalar | None] = field(default_factory=dict)
    dropped: bool = False  #: another policy is in force
    ignorable: bool = True  #: a version without deciding policies skips it


class RecordWritten(Value):
    record: Record


class RecordChanged(RecordWritten):
    """A record in place of the one before; the journal has no field twice that stayed as it was.

    `record` is whole where it is made; decoded, it lacks the fields of `same`.
    """

    same: tuple[str, ...]  #: names of fields, each with a default


#: Fields that are compared: those of some length. A payload and a handle have most of a record.
COMPARED = ("block", "handle", "key", "tenant", "times", "leases", "attempts")


def record_part(old: Record | None, new: Record) -> RecordWritten:
    """The change from one record of a job to the next."""
    if old is None:
        return RecordWritten(record=new)
    same = tuple(name for name in COMPARED if getattr(old, name) is getattr(new, name))
    return RecordChanged(record=new, same=same)


#: Fields of a record that need not be written, with the value that a reader takes without them.
_DEFAULTS = {
    one.name: one.default if one.default_factory is msgspec.NODEFAULT else one.default_factory()
    for one in msgspec.structs.fields(Record)
    if not one.required
}


def _as_written(part: RecordChanged) -> Mapping[str, object]:
    record = part.record
    values = {name: getattr(record, name) for name in Record.__struct_fields__}
    changed = {
        name: value
        for name, value in values.items()
        if name not in _DEFAULTS or (name not in part.same and value != _DEFAULTS[name])
    }
    return {"record": changed, "same": part.same}


class RecordForgotten(Value):
    holder: JobId


class Unknown(Value):
    """A change of a newer version that may be skipped; kept so that the newer version can read it.

    A change may be skipped when its fields contain `"ignorable": true`.
    """

    name: str
    fields: Mapping[str, Any]


Part = (
    EpochStarted
    | EpochEnded
    | InventoryDeclared
    | HostRegistered
    | HostDrained
    | HostDraining
    | DeviceDrained
    | DeviceChanged
    | HostForgotten
    | RequestQueued
    | RequestDropped
    | LeaseGranted
    | LeaseChanged
    | RecordWritten
    | RecordChanged
    | RecordForgotten
    | ParameterSet
    | TenantUsed
    | WorkloadLearned
    | WayLearned
    | LeaseBooked
    | LeasePreempted
    | LeaseProlonged
    | LeaseResized
    | LeaseTransferred
    | LeaseDoorOpened
    | PolicyRemembered
    | Unknown
)


class Entry(Value):
    """The durable effect of one event."""

    parts: tuple[Part, ...]


#: Name in the journal → class of every change.
CHANGES: Mapping[str, type[Part]] = {
    "epoch_started": EpochStarted,
    "epoch_ended": EpochEnded,
    "inventory_declared": InventoryDeclared,
    "host_registered": HostRegistered,
    "host_drained": HostDrained,
    "host_draining": HostDraining,
    "device_drained": DeviceDrained,
    "device_changed": DeviceChanged,
    "host_forgotten": HostForgotten,
    "request_queued": RequestQueued,
    "request_dropped": RequestDropped,
    "lease_granted": LeaseGranted,
    "lease_changed": LeaseChanged,
    "record_written": RecordWritten,
    "record_changed": RecordChanged,
    "record_forgotten": RecordForgotten,
    "parameter_set": ParameterSet,
    "tenant_used": TenantUsed,
    "workload_learned": WorkloadLearned,
    "way_learned": WayLearned,
    "lease_booked": LeaseBooked,
    "lease_preempted": LeasePreempted,
    "lease_extended": LeaseProlonged,
    "lease_resized": LeaseResized,
    "lease_transferred": LeaseTransferred,
    "lease_port_opened": LeaseDoorOpened,
    "policy_remembered": PolicyRemembered,
}
#: The inverse, for writing.
CHANGE_NAMES: Mapping[type[Part], str] = {cls: name for name, cls in CHANGES.items()}

_PAIRS = msgspec.json.Decoder(list[tuple[str, msgspec.Raw]])


def encode_entry(entry: Entry) -> bytes:
    """JSON text of an entry, `[[name, fields], …]`; `decode_entry` is its inverse."""
    return encode_json([_named(part) for part in entry.parts])


def encode_parts(parts: Iterable[Part]) -> bytes:
    """As `encode_entry`, part by part, so that a long entry does not block other threads."""
    return b"[" + b",".join(encode_json(_named(part)) for part in parts) + b"]"


def _named(part: Part) -> tuple[str, object]:
    if type(part) is Unknown:
        return part.name, part.fields
    fields = _as_written(part) if type(part) is RecordChanged else part
    return CHANGE_NAMES[type(part)], fields


def decode_entry(data: Buffer, passed: list[str] | None = None) -> Entry:
    """Decode an entry. Raises INVALID for anything that `encode_entry` did not write.

    With `passed`, additions of a newer version are skipped and their names appended to it: unknown
    keys of a change, or whole changes that may be ignored.
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
