"""The description of a simulated run: devices, workloads, sources of requests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from corekit.errors import invalid
from gpu_scheduler.model import Advance, Batch, DeviceKind, Request, Sharing
from orchgpu.fleet.core.model import Offers

#: The key of the time on devices without a time of their own.
ANY_DEVICE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """A duration: constant, or log-normal around a median."""

    median_s: float
    spread: float = 0.0  #: standard deviation of the logarithm; 0 = constant

    def duration_s(self, normal: float) -> float:
        """The duration for one draw of the standard normal distribution."""
        if not self.spread:
            return self.median_s
        return self.median_s * float(2.718281828459045 ** (self.spread * normal))


NO_TIME = Timing(median_s=0.0)
Timings = Mapping[str, Timing]


def timing_on(timings: Timings, model: str, kind: str) -> Timing:
    """The time on a device: by its model, else by its kind, else that of any device."""
    for key in (model, kind, ANY_DEVICE):
        if key in timings:
            return timings[key]
    return NO_TIME


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOf:
    """Jobs of a workload that begin at one moment on one device are computed together."""

    item: Timings  #: added by each further member
    size_max: int = 64  #: members


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The jobs of one kind: what they request, and how long they load and execute."""

    name: str
    execution: Timings = field(default_factory=dict)
    loading: Timings = field(default_factory=dict)  #: added to the first job of a cold worker
    start: Timing = NO_TIME  #: from a grant to the session: staging, event, sandbox
    advance: Advance | None = None  #: terms on which a job takes a lease ahead
    memory_mib: int = 0
    compute_pct: float = 100  #: guarantee of compute: 100 = one job at a time on a device
    #: Of a device, that a job can use: with a smaller guarantee it takes longer. None = its times
    #: are those with its guarantee.
    fills_pct: float | None = None
    exclusive: bool = False
    count: int = 1  #: devices of one job
    kinds: tuple[str, ...] = ()  #: acceptable kinds of device; empty = any
    models: tuple[str, ...] = ()  #: acceptable models; empty = any
    tenant: str = "default"
    priority: int = 0
    lease_s: float | None = None  #: stated length of a job; None = not known
    max_wait_s: float | None = None
    #: Memory of a worker that stays warm; None = the memory of the request.
    warm_mib: int | None = None
    batch: BatchOf | None = None  #: None = its jobs join none

    def __post_init__(self) -> None:
        self.request()  # raises INVALID for what no request may ask

    @property
    def slowdown(self) -> float:
        """The factor of its execution, by its guarantee."""
        if self.fills_pct is None or self.exclusive or not self.compute_pct:
            return 1.0
        return max(1.0, self.fills_pct / self.compute_pct)

    def request(self, tenant: str | None = None) -> Request:
        """The request of one job of this workload."""
        return Request(
            count=self.count,
            memory_mib=self.memory_mib,
            compute_guarantee_pct=0 if self.exclusive else self.compute_pct,
            sharing=Sharing.EXCLUSIVE if self.exclusive else Sharing.SHARED,
            kinds=tuple(DeviceKind(kind) for kind in self.kinds),
            models=self.models,
            tenant=tenant or self.tenant,
            priority=self.priority,
            workload=self.name,
            lease_s=self.lease_s,
            max_wait_s=self.max_wait_s,
            advance=self.advance,
            batch=None if self.batch is None else Batch(joins=True, size_max=self.batch.size_max),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStep:
    """One step of a workflow: a job of a workload, after other steps."""

    name: str
    workload: Workload
    after: tuple[str, ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)  #: dollars, by kind or model

    def cost_on(self, model: str, kind: str) -> float:
        """The cost on a device: by its model, else by its kind, else that of any device."""
        for key in (model, kind, ANY_DEVICE):
            if key in self.cost:
                return self.cost[key]
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workflow:
    """A graph of steps."""

    name: str
    steps: tuple[WorkflowStep, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """The objectives of the runs of a source: constant, or drawn around a median for each run."""

    latency: Timing | None = None
    cost: Timing | None = None  #: in dollars

    def draw(self, arrival: Arrival, stream: random.Random) -> Arrival:
        """The arrival with its objectives."""
        normals = stream.gauss(0.0, 1.0), stream.gauss(0.0, 1.0)
        latency_s, cost_usd = (
            None if one is None else one.duration_s(normal)
            for one, normal in zip((self.latency, self.cost), normals, strict=True)
        )
        return replace(arrival, latency_s=latency_s, cost_usd=cost_usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpec:
    """Equal devices on hosts of one form."""

    name: str
    devices: int = 1  #: of each host
    hosts: int = 1
    kind: str = DeviceKind.CUDA.value
    model: str = "GPU"
    memory_mib: int = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of the load, with everything that chance decides about it."""

    at_s: float
    workload: str
    tenant: str | None = None  #: None = that of the workload
    execution_normal: float = 0.0  #: draws of the standard normal distribution
    loading_normal: float = 0.0
    execution_s: float | None = None  #: known from a trace; None = the time of the workload
    request: Request | None = None  #: of a journal; None = that of the workload
    client: int | None = None  #: of a closed loop: it sends its next request after this one
    source: int = 0  #: index of its source
    workflow: str | None = None  #: it is a run of this workflow, not a job of a workload
    latency_s: float | None = None  #: objectives of the run
    cost_usd: float | None = None


@runtime_checkable
class Source(Protocol):
    """A source of requests that do not depend on answers (an open load)."""

    def arrivals(self, stream: random.Random, until_s: float) -> Iterator[Arrival]:
        """The requests in the order of their times, all before `until_s`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Clients that send their next request when the last one ended."""

    workload: str
    clients: int
    think_s: float = 0.0  #: pause between the end of a job and the next request
    own_tenants: bool = False  #: every client is a tenant of its own
    own_workloads: bool = False  #: every client has its own copy of the workload
    start_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: everything but the seed and the policy is fixed by it."""

    hosts: tuple[HostSpec, ...] = ()
    fleet: Offers | None = None  #: hosts that come and go beside these
    workloads: Mapping[str, Workload] = field(default_factory=dict)
    load: tuple[Source | ClosedLoop, ...] = ()
    name: str = "run"
    policy: str | None = None  #: None = the scheduler's default
    parameters: Mapping[str, str] = field(default_factory=dict)  #: as `ssgm set NAME VALUE`
    workflows: Mapping[str, Workflow] = field(default_factory=dict)
    steps_s: float = 0.0  #: requests arrive at its multiples: times are rounded down; 0 = any time
    duration_s: float = 1000.0  #: requests arrive until then
    drain: bool = True  #: continue until every request was served
    measure_from_s: float = 0.0  #: requests before then warm up the devices
    seed: int = 1
    seeds: int = 10
    occupancy: float | None = None  #: of the devices by warm execution; scales all open rates

    @property
    def devices(self) -> int:
        """The number of devices of all hosts, and of those that may come."""
        offers = () if self.fleet is None else self.fleet.offers
        may_come = sum(offer.devices * offer.max for offer in offers)
        return may_come + sum(spec.devices * spec.hosts for spec in self.hosts)

    @property
    def advances(self) -> bool:
        """True when a workload takes leases ahead."""
        return any(workload.advance is not None for workload in self.workloads.values())


def checked(run: Run) -> Run:
    """The run, if its load can be simulated on its devices. Raises INVALID."""
    if run.devices < 1:
        raise invalid("a run needs at least one device")
    if not run.load:
        raise invalid("a run needs at least one source of requests")
    return run
