"""The public values of refusals, and the explanation of a request that is not granted."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from corekit.ids import DeviceId, HostId, LeaseId
from corekit.values import Value
from gpu_scheduler.floors import FloorView
from gpu_scheduler.model import DeviceKind, Request


class RefusalKind(StrEnum):
    BUSY = "busy"  #: feasible, but not now
    IMPOSSIBLE = "impossible"  #: permanently infeasible: no known device can ever serve it


class NoFit(StrEnum):
    """The reason why a request does not fit a device. A closed set; `explain` counts them."""

    KIND = "KIND"
    MODEL = "MODEL"
    MEMORY = "MEMORY"
    TOO_LARGE = "TOO_LARGE"  #: larger than the request or the quota of its tenant allows
    COMPUTE = "COMPUTE"
    DRIVER = "DRIVER"  #: older than the requested minimum, or unknown
    RUNTIME = "RUNTIME"  #: older than the requested minimum, or unknown
    VERSION = "VERSION"  #: of a library, the driver or the runtime: not an accepted one
    DATA = "DATA"  #: its host does not have a requested data set
    PROGRAM = "PROGRAM"  #: its host does not have a requested program
    DATA_SPACE = "DATA_SPACE"  #: its host has no space for the declared data sets
    EXCLUSIVE_TAKEN = "EXCLUSIVE_TAKEN"  #: allocated exclusively
    SHARED_TAKEN = "SHARED_TAKEN"  #: requested exclusively, but shares are allocated
    HOST_STALE = "HOST_STALE"
    HOST_LOST = "HOST_LOST"
    DRAINED = "DRAINED"
    SUSPECT = "SUSPECT"
    BAD = "BAD"
    MIDDLEWARE = "MIDDLEWARE"  #: its host does not offer the requested one
    ADVISORY = "ADVISORY"  #: its host has no gateway, and the request does not accept that
    SAME_HOST = "SAME_HOST"  #: fits, but its host has too few fitting devices
    COUNT = "COUNT"  #: too few devices are known in total
    RESERVED_FOR_HEAD = "RESERVED_FOR_HEAD"  #: reserved for the head of the queue


class Limit(StrEnum):
    """The limit that refuses a request for now (EXHAUSTED, `details.limit`). A closed set.

    Each has a parameter of its own name in lower case (`gpu_scheduler/parameters.py`).
    """

    WAITING_MAX = "WAITING_MAX"  #: requests in the queue of the whole scheduler
    KEY_WAITING_MAX = "KEY_WAITING_MAX"  #: of one key
    TENANT_WAITING_MAX = "TENANT_WAITING_MAX"  #: of one tenant
    RECORDS_MAX = "RECORDS_MAX"  #: job records of the whole scheduler
    KEY_RECORDS_MAX = "KEY_RECORDS_MAX"
    TENANT_RECORDS_MAX = "TENANT_RECORDS_MAX"
    RATE_PER_S = "RATE_PER_S"  #: requests a second of all keys together
    KEY_RATE_PER_S = "KEY_RATE_PER_S"
    TENANT_RATE_PER_S = "TENANT_RATE_PER_S"


class HeldBack(StrEnum):
    """The reason why a request waits, other than allocated devices. A closed set."""

    QUOTA = "QUOTA"  #: the quota of its tenant is used up
    OUT_OF_SERVICE = "OUT_OF_SERVICE"  #: too few suitable devices are up, healthy and not drained
    LEASES_MAX = "LEASES_MAX"  #: the limit of live leases is reached
    JOURNAL_FULL = "JOURNAL_FULL"  #: the disk of the scheduler is full
    POLICY = "POLICY"  #: the queue policy lets it wait, although devices are free


class DeviceVerdict(Value):
    """The result for one device: the request fits now, or the reason why not."""

    host: HostId
    device: DeviceId
    index: int
    kind: DeviceKind
    model: str
    reason: NoFit | None  #: None = it fits now
    free_mib: int
    free_pct: int | float
    detail: str = ""  #: of its health
    resident: bool = False  #: it has a resident of the workload of the request
    data: str = ""  #: what its host has of the declared data: `has 3.1 of 3.4 GB of weights`


class ExpectedRun(Value):
    """Learned times of the workload of a request on one device model. Never enforced."""

    model: str
    runs: int  #: executions that were learned from
    execution_p50_s: float | None
    execution_p95_s: float | None
    loading_p50_s: float | None  #: of cold starts; None = none was seen
    loading_p95_s: float | None


class Shortage(Value):
    """The requirement of an impossible request that all known devices together do not meet."""

    #: KIND, MODEL, MIDDLEWARE, ADVISORY, DRIVER, RUNTIME, VERSION, DATA, PROGRAM, TOO_LARGE,
    #: MEMORY, SAME_HOST or COUNT
    what: NoFit
    wanted: str
    most: str  #: the best value of the known devices, or their kinds or models


class Explanation(Value):
    """The reason why a request waits or was refused: data, and one sentence."""

    devices_known: int
    devices_fitting: int  #: number that fit now, of the `count` needed
    counts: Mapping[str, int]  #: NoFit → devices
    position: int | None  #: in the queue, 1 = next; None when not queued
    largest_fit: str  #: `largest` as text: "1 × cpu with 8192 MiB, 100 %"
    sentence: str
    late: bool = False  #: its deadline passed
    held_back: HeldBack | None = None  #: None: devices are allocated, or other requests are first
    # --- of an impossible request, and of `explain`
    short: Shortage | None = None  #: None: the request is possible
    #: The largest similar request that all known devices could serve; None = no device is known.
    largest: Request | None = None
    # --- only of `explain`
    devices: tuple[DeviceVerdict, ...] = ()  #: feasible devices first
    devices_left_out: int = 0
    expected_s: float | None = None  #: from now until enough devices are free; None = unknown
    expected_why: str = ""  #: the basis of `expected_s`, or the reason why it is unknown
    pool: str = ""  #: of a fleet, whose next host is expected to serve it first; "" = none comes
    after: tuple[LeaseId, ...] = ()  #: it is granted ahead: the leases that have its shares
    #: True: the lease uses, or would use, a warm worker; None = it has no workload or no devices.
    warm_start: bool | None = None
    runs: tuple[ExpectedRun, ...] = ()  #: on the feasible device models with learned times
    floor: FloorView | None = None  #: the warm floor of its workload; None = it has none


class Refusal(Value):
    """A request that is not granted: busy now, or impossible."""

    kind: RefusalKind
    explanation: Explanation
