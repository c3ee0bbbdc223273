"""Events of the stream `GET /v1/watch`: changes as they happen, one object per change.

Every object has `event` (the name in `EVENTS`), `seq` (rises by one within a stream) and `at_s`
(wall clock). A stream begins with `started`, the current state of every host and device, and
`current`; queries that are sent after it are answered by a state at least as new. `beat` means that
nothing happened; after `lost` the stream ends.

Changes, `current`, `resumed` and `beat` also have a `position`, which outlives the connection: a
stream that is opened `after` it begins with `resumed` and the changes since then. When the position
is too old or of another run of the scheduler, the stream begins with `reset` in place of `started`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from corekit.ids import AttemptId, DeviceId, HostId
from corekit.values import Value
from gpu_scheduler.model import Health, HostState, Symptom
from gpu_scheduler.protocol.answers import LeasePush, PromisePush, RecordPush


class Position(Value):
    """A place between two changes of one run of the scheduler. Opaque to clients."""

    epoch: int
    run: str
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}.{self.run}.{self.seq}"


_POSITION = re.compile(r"([0-9]{1,18})\.([0-9a-z]{0,32})\.([0-9]{1,18})")


def position_of(text: str) -> Position | None:
    """The inverse of `str`; None for a text of another form."""
    found = _POSITION.fullmatch(text)
    if found is None:
        return None
    return Position(epoch=int(found[1]), run=found[2], seq=int(found[3]))


class Started(Value):
    """The first event of a stream; the state follows."""

    epoch: int


class Reset(Value):
    """The first event of a stream that cannot continue; the state follows: read all again."""

    epoch: int
    why: str


class Current(Value):
    """The state is complete; changes follow."""


class Resumed(Value):
    """The first event of a stream that continues: the changes since its position follow."""

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


class PoolChanged(Value):
    """The hosts that a pool of a fleet has now; `hosts` None: no fleet reports it any more."""

    pool: str
    hosts: int | None  #: in whatever state: each is paid for
    usd_per_h: float  #: of a host; 0 for a reader that is not an operator


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
    | Reset
    | Current
    | Resumed
    | LeasePush
    | RecordPush
    | PromisePush
    | QueueChanged
    | HostChanged
    | DeviceChanged
    | PoolChanged
    | ParameterChanged
    | Beat
    | Lost
)

#: Class → wire name.
EVENTS: Mapping[type[WatchEvent], str] = {
    Started: "started",
    Reset: "reset",
    Current: "current",
    Resumed: "resumed",
    LeasePush: "lease",
    RecordPush: "record",
    PromisePush: "promise",
    QueueChanged: "queue",
    HostChanged: "host",
    DeviceChanged: "device",
    PoolChanged: "pool",
    ParameterChanged: "parameter",
    Beat: "beat",
    Lost: "lost",
}
