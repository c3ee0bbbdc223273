"""The public values of the scheduler: Device, Request, Lease, Record, and closed sets.

All values are frozen; `corekit.decode` converts them to and from JSON.
Sizes: memory in MiB, compute in percent of one device with one decimal, times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any

from corekit.errors import invalid
from corekit.ids import AttemptId, DeviceId, HostId, JobId, LeaseId
from corekit.units import WHOLE_PERMILLE, permille_of
from corekit.values import Checked, Meta, Value, checked, field
from gpu_scheduler.constraints import CONSTRAINTS_MAX, constraint_problem, is_version
from gpu_scheduler.data_names import HOST_NAMES_MAX, NAMES_MAX, reference_problem
from gpu_scheduler.data_sets import DATA_SETS_MAX, DataSet
from gpu_scheduler.names import NAME, is_away, name_problem

#: The largest orchestrator block in a record, so that records of 100,000 jobs stay small.
BLOCK_BYTES_MAX = 4096
#: The block as keys get it that may not read the job; no orchestrator writes this.
HIDDEN_BLOCK: Mapping[str, Any] = {"hidden": True}
PREFERENCES_MAX = 64  #: most kinds and models of one request
DETAIL_CHARS_MAX = 500  #: most characters of the detail of a device
RESIDENT_MAX = 1024  #: most warm keys of one device
MEMORY_MIB_MAX = 2**31 - 1
FIGURE_MAX = 2**31 - 1  #: largest figure in a report; a larger one is a probe error
LIBRARIES_MAX = 256  #: most libraries of one device
BATCH_WAIT_MS_MAX = 60_000.0  #: longest wait of a call for others of its batch
BATCH_SIZE_MAX = 1024  #: most items of a batch
COUNT_MAX = 64  #: most devices of one request; the largest single hosts have 16
LENGTH_S_MAX = 366 * 86400.0  #: longest lease, wait or deadline


class DeviceKind(StrEnum):
    """The programming interface of a device; an operation is implemented for each kind."""

    CUDA = "cuda"
    OPENCL = "opencl"
    CPU = "cpu"
    VPU = "vpu"


class Sharing(StrEnum):
    SHARED = "shared"  #: other leases may use the rest of the device
    EXCLUSIVE = "exclusive"  #: the whole device, even if less memory is requested


class Placement(StrEnum):
    """Placement of the devices of a request; PACK and SPREAD also apply to a single device."""

    PACK = "pack"  #: the fullest device that fits
    SPREAD = "spread"  #: the emptiest device
    SAME_HOST = "same_host"  #: all devices of the request on one host


class Health(StrEnum):
    """Health of a device. Only OK devices get new leases."""

    OK = "OK"
    SUSPECT = "SUSPECT"  #: no new leases until a clean check; its live leases continue
    BAD = "BAD"  #: no new leases, and its live leases end as DEVICE_BAD


class Symptom(StrEnum):
    """Reason of a device's health. A closed set; `Device.detail` has the details."""

    XID = "XID"  #: the driver reported a critical Xid event
    ECC = "ECC"  #: uncorrectable memory errors, or remapping ran out of rows
    MEMORY_HELD = "MEMORY_HELD"  #: memory is in use without a live lease
    HUNG = "HUNG"  #: a process on it cannot be killed, or its driver does not answer
    PROBE = "PROBE"  #: its monitor could not probe it
    MISSING = "MISSING"  #: its host no longer reports it
    RECOVERING = "RECOVERING"  #: was BAD; clean since then, but not yet for `device_clean_s`
    OTHER = "OTHER"  #: also a symptom of a newer host; see the detail


class LeaseLifetime(StrEnum):
    """The event that ends a lease: the end of its session or of its length."""

    SESSION = "session"  #: the end of its session through the gateway (functions)
    DEADLINE = "deadline"  #: the end of a fixed length (classic `ssgm -alloc`)


class Door(StrEnum):
    """The endpoint at which the holder of a lease reaches its device."""

    GATEWAY = "gateway"  #: the shared port of the host, with proof of the lease's secret
    PORT = "port"  #: a port of the lease, limited to source addresses (classic)


def _word_problem(text: str) -> str | None:
    return name_problem(text, at_least=0)


def _version_problem(text: str) -> str | None:
    return None if is_version(text) else "must be numbers separated by dots, such as 550.54"


def _tenths_problem(percent: float) -> str | None:
    whole_tenths = permille_of(percent) == 10 * percent
    return None if whole_tenths else f"{percent:g} must have at most one decimal, such as 12.5"


_TENTHS = Meta(extra={"problem": _tenths_problem}, description="with at most one decimal")
Name = Annotated[str, NAME]
#: A name, or nothing.
Word = Annotated[str, Meta(extra={"problem": _word_problem})]
Version = Annotated[str, Meta(extra={"problem": _version_problem})]
VersionConstraint = Annotated[str, Meta(extra={"problem": constraint_problem})]
#: A data set or program of a host: `proteins`, or with its content, `proteins@sha256:…`.
DataReference = Annotated[str, Meta(extra={"problem": reference_problem})]
DataReferences = Annotated[tuple[DataReference, ...], Meta(max_length=NAMES_MAX)]
#: Data sets or programs of a host: name → SHA-256 of the content, "" = not known.
DataDigests = Annotated[Mapping[Name, Word], Meta(max_length=HOST_NAMES_MAX)]
MemoryMib = Annotated[int, Meta(ge=0, le=MEMORY_MIB_MAX)]
Figure = Annotated[int, Meta(ge=0, le=FIGURE_MAX)]
#: Percent of a device, with at most one decimal; a whole one is an integer.
Percent = Annotated[int, Meta(ge=0, le=100)] | Annotated[float, Meta(ge=0, le=100), _TENTHS]
LimitPercent = Annotated[int, Meta(ge=1, le=100)] | Annotated[float, Meta(ge=1, le=100), _TENTHS]
#: The longest wait of a request, in seconds.
WaitS = Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)]


class Batch(Checked):
    """The rules by which calls of a lease join the batches of other leases.

    Only those of one tenant, one workload and one device join.
    """

    joins: bool = False  #: True: calls of other leases may be computed in the same run
    #: The longest wait of a call for others, beyond the runs that are under way.
    wait_ms: Annotated[float, Meta(ge=0, le=BATCH_WAIT_MS_MAX)] = 2.0
    size_max: Annotated[int, Meta(ge=1, le=BATCH_SIZE_MAX)] = 64  #: items of one run


class Advance(Checked):
    """The terms on which a request takes a lease ahead: before its shares are free.

    Its function starts at once, and waits at the gateway without running the user's code.
    """

    wait_s: WaitS = (
        30.0  #: the longest wait; then the lease is withdrawn, and the attempt not counted
    )
    #: How often its function may come after its shares are free: the part of a second of a function
    #: in the price of a second of function and device, in percent.
    late_pct: Annotated[float, Meta(ge=0, le=50)] = 10.0


class Request(Checked):
    """A request for devices. Validated on construction (raises INVALID)."""

    #: Devices; 0 = the attempt of a job that needs none: it gets no lease and never waits.
    count: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 1
    kinds: tuple[DeviceKind, ...] = ()  #: in order of preference; empty = any
    #: In order of preference; empty = any.
    models: Annotated[tuple[Name, ...], Meta(max_length=PREFERENCES_MAX)] = ()
    #: Per device; 0 = the whole memory of an exclusive device, no guarantee on a shared one.
    memory_mib: MemoryMib = 0
    #: Instead of `memory_mib`: in percent of each device, which is rounded down to whole MiB.
    memory_pct: Percent = 0
    memory_max_mib: MemoryMib | None = None  #: largest memory of a whole device; None = any
    compute_guarantee_pct: Percent = 0  #: of one device; the sum of guarantees is at most 100
    #: Elastic upper bound above the guarantee.
    compute_limit_pct: LimitPercent = 100
    sharing: Sharing = Sharing.SHARED
    placement: Placement = Placement.PACK
    priority: Annotated[int, Meta(ge=-100, le=100)] = 0  #: a higher one is served first
    tenant: Name = "default"
    warm_key: Name | None = None  #: model or module hash that should already be resident
    #: Everything that a device must have loaded before the job can run, by one name; leases of one
    #: tenant with the same workload may use each other's warm workers. None = not named.
    workload: Name | None = None
    #: True: while it fits nowhere, leases with a lower priority that agreed to it end for it.
    preempts: bool = False
    preemptible: bool = False  #: True: its lease may end for a request that preempts
    batch: Batch | None = None  #: None: calls join only others of the same lease
    #: None: it takes leases of free shares only.
    advance: Advance | None = None
    advisory: bool = False  #: True: accept devices watched by ssgm-monitor alone (no gateway)
    middleware: Name | None = None  #: offered by its hosts, such as "rcuda"; None = any
    min_driver: Version | None = None  #: lowest accepted driver version: "550.54"
    min_runtime: Version | None = None  #: lowest accepted CUDA or OpenCL version: "12.4"
    #: Accepted versions of libraries, driver and runtime: `onnxruntime>=1.10,<1.13`.
    requires: Annotated[tuple[VersionConstraint, ...], Meta(max_length=CONSTRAINTS_MAX)] = ()
    data: DataReferences = ()  #: data sets that its hosts must have (`gpud --data`)
    programs: DataReferences = ()  #: programs that its hosts must have (`gpud --program`)
    #: Declared data sets, which its hosts have or fetch (`gpud --data-space`).
    data_sets: Annotated[tuple[DataSet, ...], Meta(max_length=DATA_SETS_MAX)] = ()
    max_wait_s: WaitS | None = None  #: longest wait; after it, the answer is busy
    #: Give up this long after the job began to wait: unlike `max_wait_s`, it counts across
    #: hand-backs and further attempts. Relative, because no clock is shared.
    deadline_s: WaitS | None = None
    #: Longest time that the lease is needed (a deadline lease ends then); None = not known.
    #: Forecasts and backfill depend on it.
    lease_s: Annotated[float, Meta(gt=0, le=LENGTH_S_MAX)] | None = None

    def __post_init__(self) -> None:
        checked(self)
        if self.compute_guarantee_pct > self.compute_limit_pct:
            raise invalid("compute_guarantee_pct must not exceed compute_limit_pct")
        if self.memory_pct and (self.memory_mib or self.sharing is Sharing.EXCLUSIVE):
            what = "memory_mib" if self.memory_mib else "sharing exclusive, which is all memory"
            raise invalid(f"memory_pct cannot be combined with {what}")
        if self.memory_max_mib is not None and self.memory_mib > self.memory_max_mib:
            raise invalid("memory_mib must not exceed memory_max_mib")
        if len(self.kinds) + len(self.models) > PREFERENCES_MAX:
            raise invalid(f"kinds and models together must have at most {PREFERENCES_MAX} names")

    @property
    def compute_guarantee_permille(self) -> int:
        """The guarantee in tenths of a percent, which sums and comparisons need."""
        return permille_of(self.compute_guarantee_pct)

    @property
    def is_best_effort(self) -> bool:
        """True for a share without memory and guarantee."""
        asks = self.memory_mib or self.memory_pct or self.compute_guarantee_permille
        return self.sharing is Sharing.SHARED and not asks

    @property
    def is_sized_by_device(self) -> bool:
        """True when the memory of its shares depends on the devices that it gets."""
        return self.sharing is Sharing.EXCLUSIVE or bool(self.memory_pct)

    def memory_on_mib(self, whole_mib: int) -> int:
        """The memory of a share of a device with this much memory.

        Percentages are rounded down, so that eight eighths fit every device.
        """
        if not self.memory_pct:
            return self.memory_mib
        return whole_mib * permille_of(self.memory_pct) // WHOLE_PERMILLE


class Device(Checked):
    """One accelerator, as described by its monitor. Validated on construction (raises INVALID)."""

    id: Annotated[DeviceId, NAME]  #: uuid, unique in the whole system (cpu: "<host>/cpu0")
    #: Index on its host, in the numbering of CUDA_VISIBLE_DEVICES and RCUDA_DEVICE_n.
    index: Annotated[int, Meta(ge=0, le=2**16 - 1)]
    kind: DeviceKind
    model: Word
    memory_mib: MemoryMib  #: allocatable: the total minus the reserve of the host
    driver: Word = ""  #: version of its driver ("550.54.15"); "" = unknown, below every minimum
    runtime: Word = ""  #: highest CUDA version that the driver supports, or the OpenCL version
    health: Health = Health.OK
    symptoms: tuple[Symptom, ...] = ()  #: reasons why it is not OK
    #: A note such as "one CPU shared with host b", or the reason why it is not OK.
    detail: Annotated[str, Meta(max_length=DETAIL_CHARS_MAX)] = ""
    #: Names of trusted operations implemented for its kind.
    operations: Annotated[tuple[Word, ...], Meta(max_length=RESIDENT_MAX)] = ()
    resident: Annotated[tuple[Word, ...], Meta(max_length=RESIDENT_MAX)] = ()  #: warm keys
    #: Versions of the libraries with which its operations compute, by name.
    libraries: Annotated[Mapping[Name, Word], Meta(max_length=LIBRARIES_MAX)] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        checked(self)
        if self.health is Health.OK and self.symptoms:
            raise invalid(f"device {self.id}: symptoms belong to SUSPECT or BAD devices")


class Resident(Checked):
    """A workload that a device keeps loaded without a lease: a warm worker of one tenant."""

    id: Name  #: of the worker, unique on its host
    workload: Name  #: key of tenant and workload (`warm.workload_key`)
    memory_mib: MemoryMib  #: device memory that its eviction frees
    loading_s: Annotated[float, Meta(ge=0, le=LENGTH_S_MAX)]  #: the cost of loading it again


class DeviceResidents(Checked):
    """The change of the residents of one device since the last message of its host."""

    device: DeviceId
    added: Annotated[tuple[Resident, ...], Meta(max_length=RESIDENT_MAX)] = ()
    removed: Annotated[tuple[Name, ...], Meta(max_length=RESIDENT_MAX)] = ()  #: ids


class Usage(Checked):
    """Live figures of a device in one report; for display and balance, not for admission."""

    device: DeviceId
    memory_used_mib: Figure
    utilisation_pct: Figure
    processes: Figure = 0
    #: None: the device does not report it.
    temperature_c: Annotated[int, Meta(ge=-FIGURE_MAX, le=FIGURE_MAX)] | None = None
    power_w: Figure | None = None


class HostState(StrEnum):
    UP = "UP"
    STALE = "STALE"  #: silent for host_stale_s: no new leases there
    LOST = "LOST"  #: silent for host_lost_s: its leases ended as HOST_LOST
    DRAINED = "DRAINED"  #: closed to new leases by an operator


class LeaseState(StrEnum):
    RESERVED = "RESERVED"  #: allocated; no session yet
    ACTIVE = "ACTIVE"  #: its session is open, or its length counts
    ENDING = "ENDING"  #: its devices are released, but its session is still open (outputs, result)
    ENDED = "ENDED"


class EndReason(StrEnum):
    """Reason of the end of a lease. A closed set."""

    DONE = "DONE"  #: its session closed normally
    RELEASED = "RELEASED"  #: its holder released it or ended
    NOT_STARTED = "NOT_STARTED"  #: no session by connect_by
    EXPIRED = "EXPIRED"  #: RESERVED and not renewed, or a deadline lease whose length is over
    NOT_ACCEPTED = "NOT_ACCEPTED"  #: the grant of a waiting request was not accepted in time
    SESSION_LOST = "SESSION_LOST"  #: its session broke or was silent
    CAP = "CAP"  #: the requested length is over
    REVOKED = "REVOKED"  #: ended by an operator, or by its host: it used more than it has
    HOST_LOST = "HOST_LOST"  #: its host was silent for host_lost_s
    HOST_RESTARTED = "HOST_RESTARTED"  #: the host came back with a new incarnation
    DEVICE_BAD = "DEVICE_BAD"
    DATA_ERROR = "DATA_ERROR"  #: a data set that it needs is gone, or is not the declared one
    PREEMPTED = "PREEMPTED"  #: it was preemptible, and a request of higher priority needed it
    WITHDRAWN = "WITHDRAWN"  #: it was granted ahead, and its shares did not become free for it


class Share(Value):
    """A part of one device, allocated to one lease."""

    host: HostId
    device: DeviceId
    index: int
    kind: DeviceKind
    model: str
    memory_mib: int
    compute_guarantee_pct: int | float
    compute_limit_pct: int | float
    exclusive: bool
    driver: str = ""  #: version of its driver at the grant; "" = not known

    @property
    def compute_guarantee_permille(self) -> int:
        """The guarantee in tenths of a percent, which sums and comparisons need."""
        return permille_of(self.compute_guarantee_pct)


def shares_text(shares: Sequence[Share], count: int | None = None) -> str:
    """The first of `count` shares for people, "host/index kind model and 1 more"; "" for none."""
    if not shares:
        return ""
    share, others = shares[0], (len(shares) if count is None else count) - 1
    more = f" and {others} more" if others > 0 else ""
    return f"{share.host}/{share.index} {share.kind} {share.model}{more}"


class Lease(Value):
    """Shares of devices, allocated to one attempt."""

    id: LeaseId
    attempt: AttemptId  #: idempotency key of its request
    holder: JobId | None  #: its job record, if any
    fence: int  #: fencing token: journal position of the grant, higher with every grant
    state: LeaseState
    shares: tuple[Share, ...]
    tenant: str = "default"
    hold: LeaseLifetime = LeaseLifetime.SESSION
    door: Door = Door.GATEWAY
    sources: tuple[str, ...] = ()  #: Door.PORT: networks whose machines may connect
    doors: Mapping[str, str] = field(default_factory=dict)  #: host → "address:port" of its own port
    end_reason: EndReason | None = None
    end_detail: str = ""
    #: Not empty: granted ahead. Its shares still belong to these leases, and are booked for it when
    #: they are free.
    after: tuple[LeaseId, ...] = ()


class GrantedLease(Value):
    """A lease with the addresses and secrets for its holder; secrets appear nowhere else."""

    lease: Lease
    epoch: int
    gateways: Mapping[str, str]  #: host id → "address:port" of its gateway
    secrets: Mapping[str, str]  #: host id → hex of the 32-byte secret


class Step(StrEnum):
    """The step of a job in its record (the job states of `contract`)."""

    RECEIVED = "RECEIVED"
    WAITING = "WAITING"
    RESERVED = "RESERVED"
    STAGED = "STAGED"
    RUNNING = "RUNNING"
    COMMITTED = "COMMITTED"
    ENDED = "ENDED"


#: Key of `Record.times` besides the steps: earliest wall clock of the next attempt.
RETRY_AT = "RETRY_AT"
#: Key of `Record.times` besides the steps: wall clock of the end of the newest attempt's lease.
LEASE_ENDED = "LEASE_ENDED"

#: Shares of a lease that a job record keeps; their number is kept as well.
JOB_LEASE_SHARES_MAX = 4


class JobLease(Value):
    """A lease of a job, live or over, as its record keeps it. Times are of the wall clock."""

    lease: LeaseId
    attempt: int
    shares: tuple[Share, ...]  #: the first `JOB_LEASE_SHARES_MAX`
    share_count: int
    granted_s: float
    active_s: float | None = None  #: its session opened, or its length began
    freed_s: float | None = None  #: its shares were released; None: not yet, or not known
    ended_s: float | None = None  #: None: it is live
    reason: EndReason | None = None
    detail: str = ""
    loading_s: float | None = None  #: spent loading by its workers: 0 = warm; None = not known
    #: Loaded by its worker before it had its shares, while another lease had them; None = nothing.
    loaded_ahead_s: float | None = None
    ahead: bool = False  #: it was granted before its shares were free
    booked_s: float | None = None  #: of a lease granted ahead: its shares became free for it

    @property
    def device_text(self) -> str:
        """Its device for people: that of `LeasePush`."""
        return shares_text(self.shares, self.share_count)


class EndedAttempt(Value):
    """An earlier attempt of a job, or the last one of an earlier run."""

    n: int
    ended_s: float  #: wall clock
    outcome: str | None  #: of the job, when it ended with this attempt and was reopened
    reason: str | None
    lease: LeaseId | None
    times: Mapping[str, float]  #: as `Record.times` were


class Record(Value):
    """The durable record of one job, shared by all orchestrators; writes are compare-and-set."""

    holder: JobId
    revision: int  #: starts at 1 and rises by one
    owner: str | None  #: orchestrator session that acts for the job; None = may be adopted
    attempt: int  #: n of the newest attempt; 0 = none opened yet
    step: Step
    waiting_since_s: float | None  #: scheduler's wall clock; kept through hand-backs
    handle: str = ""  #: newest SQS receipt handle
    block: Mapping[str, Any] = field(default_factory=dict)  #: the orchestrator's, ≤ BLOCK_BYTES_MAX
    #: Sessions that ended while they packed the job, and were not seen since; none once its
    #: envelope is stored. Oldest first, at most ENDED_OWNERS_MAX.
    ended_owners: tuple[str, ...] = ()
    outcome: str | None = None  #: terminal job state, set by finish
    reason: str | None = None
    lease: LeaseId | None = None  #: of the newest attempt
    key: str = ""  #: name of the key of the session that created it; "" = no keys existed
    tenant: str | None = None  #: of the newest request
    with_device: bool = True  #: False: the newest attempt was opened without a device
    updated_s: float = 0.0  #: scheduler's wall clock
    times: Mapping[str, float] = field(default_factory=dict)  #: step name → wall clock of its entry
    #: Oldest first, the live one last; bounded by parameters `record_leases_max`, `record_past_s`.
    leases: tuple[JobLease, ...] = ()
    #: Oldest first; bounded by parameters `record_attempts_max`, `record_past_s`.
    attempts: tuple[EndedAttempt, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether a session may take the record: it has no owner, or one that is away."""
        return self.owner is None or is_away(self.owner)

    @property
    def strikes(self) -> int:
        """The number of orchestrators that the job may have ended."""
        return len(self.ended_owners)

    @property
    def device_text(self) -> str:
        """The device of the newest lease, for people; "" before the first."""
        return self.leases[-1].device_text if self.leases else ""

    @property
    def packing(self) -> bool:
        """True while the owner packs the newest attempt: its envelope is not stored yet."""
        if self.with_device:
            return self.step is Step.RESERVED
        return self.step is Step.RECEIVED and self.reason is None

    @property
    def hidden(self) -> bool:
        """Whether the key that read the record may not read its job."""
        return self.block == HIDDEN_BLOCK
