"""Events of the stream `GET /v1/watch`: changes as they happen, one object per change.

Every object has `event` (the name in `EVENTS`), `seq` (rises by one within a stream) and `at_s`
(wall clock). A stream begins with `started` and with the current state of every host and device;
`beat` means that nothing happened; after `lost` the stream ends: read the state, then watch again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corekit.ids import AttemptId, DeviceId, HostId
from corekit.values import Value
from gpu_scheduler.model import Health, HostState, Symptom
from gpu_scheduler.protocol.answers import LeasePush


class Started(Value):
    """The first event of a stream."""

    epoch: int


class QueueChanged(Value):
    """A request started to wait, or stopped waiting (granted, withdrawn, refused)."""

    attempt: AttemptId
    queued: bool
    waiting: int  #: requests in the queue now


class HostChanged(Value):
    """The current state of a host; `state` None: the host was forgotten."""

    host: HostId
    state: HostState | None


class DeviceChanged(Value):
    """The current state of a device; `health` None: the device left the inventory."""

    host: HostId
    device: DeviceId
    health: Health | None
    symptoms: tuple[Symptom, ...] = ()
    drained: bool = False


class ParameterChanged(Value):
    """An operator changed a parameter with `set`."""

    name: str
    value: Any


class Beat(Value):
    """Nothing happened; the stream is alive."""


class Lost(Value):
    """The reader was too slow, or the daemon is stopping: later events are missing."""

    why: str


WatchEvent = (
    Started
    | LeasePush
    | QueueChanged
    | HostChanged
    | DeviceChanged
    | ParameterChanged
    | Beat
    | Lost
)

#: Class → wire name.
EVENTS: Mapping[type[WatchEvent], str] = {
    Started: "started",
    LeasePush: "lease",
    QueueChanged: "queue",
    HostChanged: "host",
    DeviceChanged: "device",
    ParameterChanged: "parameter",
    Beat: "beat",
    Lost: "lost",
}
