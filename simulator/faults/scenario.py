"""The scenario of a seed: its numbers, delays and loss rates, and its faults with their times.

Swarm testing: every seed draws its own subset and rates, so that rare combinations occur (as in the
simulators of FoundationDB and TigerBeetle).
"""

from __future__ import annotations

import random

from corekit.values import Value, field, replace
from gpu_scheduler.model import Advance
from gpu_scheduler.parameters import EVERYBODY, Parameters, Quota
from gpu_scheduler.policy_registry import installed_policies
from local_cloud.model.weather import AWS, NO_WEATHER, Weather
from simulator.faults.fleet_scenario import FLEET_FAULTS, FleetScenario, draw_fleet
from simulator.faults.function import Behaviour, Fate

FAULTS = (
    "kill orchestrator",
    "kill scheduler",
    "stop host",
    "restart host",
    "suspect device",
    "bad device",
    "host leaves",
)
#: A session that lives, and that the scheduler does not hear: a starved process, a partition.
SILENCE = "silence orchestrator"
#: SIGTERM: it hands back what has not started, and leaves no strike.
STOP = "stop orchestrator"
#: The function without a device gets one, or has none again.
REDEPLOY = "redeploy"


#: Seconds from the notice of a host that leaves to its end.
DRAIN_S = 30.0


class Fault(Value):
    """One fault, with its time and its duration."""

    kind: str
    at_s: float
    target: int
    lasts_s: float

    @property
    def repaired_s(self) -> float:
        """The time at which its effect is over; a host drains before it leaves."""
        drains = self.kind in ("host leaves", "spot notice")
        return self.at_s + self.lasts_s + (DRAIN_S if drains else 0.0)


class Scenario(Value):
    """One world."""

    jobs: int = 20
    replicas: int = 1
    hosts: int = 2
    devices_per_host: int = 1
    device_memory_mib: int = 1024
    request_mib: int = 512
    exclusive: bool = False
    preemptible: bool = False  #: its leases may end for urgent jobs
    urgent_jobs: int = 0  #: of a second function, whose requests preempt
    plain_jobs: int = 0  #: of a third function, whose jobs need no device
    runs: int = 0  #: of a workflow, with more functions
    advance: Advance | None = None  #: terms on which its jobs take leases ahead
    warm_min: int = 0  #: workers that hosts keep for the functions with a device
    promises: int = 0  #: of uploaded jobs, with a second step that never comes
    upload_pause_s_max: float = 5.0
    duplicate_event_rate: float = 0.0
    lost_event_rate: float = 0.0  #: uploads whose event never comes
    wire_delay_s_max: float = 0.01
    wire_loss_rate: float = 0.0
    cloud_delay_s_max: float = 0.05
    cloud_fault_rate: float = 0.0
    fates: tuple[tuple[Fate, float], ...] = ()
    work_s_max: float = 20.0
    lambda_duplicate_rate: float = 0.0
    faults: tuple[Fault, ...] = ()
    parameters: Parameters = field(default_factory=Parameters)  #: of the scheduler
    weather: Weather = NO_WEATHER  #: of the cloud
    declares: bool = False  #: capacity is declared: no request is impossible without hosts
    fleet: FleetScenario | None = None  #: hosts come and go beside `hosts`

    @property
    def faults_end_s(self) -> float:
        """The time at which the last fault is repaired."""
        return max((fault.repaired_s for fault in self.faults), default=0.0)

    def behaviour(self, stream: random.Random) -> Behaviour:
        return Behaviour(
            fates=self.fates,
            work_s_max=self.work_s_max,
            duplicate_rate=self.lambda_duplicate_rate,
            stream=stream,
        )


#: The policies of seeds with promises.
_PROMISING = ("slo", "slo", "clockwork", "edf")


def draw(seed: int) -> Scenario:
    """Draw the scenario of a seed. About a third of them are harsh: every fault, and often; about a
    quarter has a fleet."""
    fleets = random.Random(f"{seed}/fleet")
    drawn = _draw(seed)
    return with_fleet(drawn, fleets) if fleets.random() < 0.25 else drawn


def with_fleet(scenario: Scenario, stream: random.Random) -> Scenario:
    """The world with hosts that a fleet starts, in place of most or all others."""
    fleet = draw_fleet(stream, scenario.devices_per_host, scenario.device_memory_mib)
    faults = [
        Fault(
            kind=stream.choice(FLEET_FAULTS),
            at_s=stream.uniform(1.0, 300.0),
            target=stream.randrange(8),
            lasts_s=stream.choice((0.5, 5.0, 60.0, 150.0)),
        )
        for _ in range(stream.choice((0, 5, 20)))
    ]
    hosts, faults = stream.choice((0, 0, 1)), [*scenario.faults, *faults]
    return replace(scenario, fleet=fleet, hosts=hosts, faults=_sorted(faults))


def _draw(seed: int) -> Scenario:
    stream = random.Random(f"{seed}/scenario")
    sometimes = stream.random
    losses = random.Random(f"{seed}/losses")
    preemption = random.Random(f"{seed}/preemption")
    silences = random.Random(f"{seed}/silences")
    promising = random.Random(f"{seed}/promises")
    promises = promising.choice((0, 0, 0, 5, 20))
    harsh = sometimes() < 0.35
    fates = [
        (fate, stream.uniform(0.0, 0.18))
        for fate in Fate
        if fate is not Fate.SUCCEEDS and sometimes() < (1.0 if harsh else 0.5)
    ]
    return Scenario(
        jobs=stream.randrange(5, 30),
        replicas=stream.randrange(1, 4),
        hosts=stream.randrange(1, 4),
        devices_per_host=stream.randrange(1, 3),
        request_mib=stream.choice((256, 512, 1024)),
        exclusive=sometimes() < 0.3,
        upload_pause_s_max=stream.choice((0.1, 5.0, 20.0)),
        duplicate_event_rate=stream.choice((0.0, 0.3)),
        lost_event_rate=losses.choice((0.0, 0.0, 0.2)),
        wire_delay_s_max=stream.choice((0.001, 0.5)),
        wire_loss_rate=0.1 if harsh else stream.choice((0.0, 0.05)),
        cloud_delay_s_max=stream.choice((0.01, 1.0)),
        cloud_fault_rate=0.1 if harsh else stream.choice((0.0, 0.05)),
        fates=tuple(fates),
        lambda_duplicate_rate=stream.choice((0.0, 0.3)),
        faults=_sorted(
            _draw_faults(stream, stream.randrange(5, 25) if harsh else stream.randrange(8)),
            _draw_silences(silences, silences.choice((0, 0, 3, 20))),
            _draw_redeploys(random.Random(f"{seed}/redeploys")),
        ),
        parameters=_promising(
            replace(_draw_parameters(stream), preempt_grace_s=preemption.choice((0.0, 2.0, 10.0))),
            promising if promises else None,
        ),
        urgent_jobs=preemption.choice((0, 3, 10)),
        plain_jobs=random.Random(f"{seed}/plain").choice((0, 5, 15)),
        runs=random.Random(f"{seed}/runs").choice((0, 0, 1, 4)),
        promises=promises,
        preemptible=preemption.random() < 0.7,
        advance=_draw_advance(random.Random(f"{seed}/advance")),
        warm_min=random.Random(f"{seed}/floors").choice((0, 0, 1, 2, 3)),
        weather=replace(AWS, seed=str(seed)) if losses.random() < 0.25 else NO_WEATHER,
        declares=sometimes() < 0.5,
    )


def _draw_advance(stream: random.Random) -> Advance | None:
    """Terms of most seeds; some are so early that a lease waits for most of the one before."""
    if stream.random() < 0.25:
        return None
    return Advance(
        wait_s=stream.choice((1.0, 10.0, 60.0)), late_pct=stream.choice((1.0, 10.0, 50.0))
    )


def _promising(parameters: Parameters, stream: random.Random | None) -> Parameters:
    """The parameters with a policy that gives promises, if there are some."""
    return parameters if stream is None else replace(parameters, policy=stream.choice(_PROMISING))


def _draw_parameters(stream: random.Random) -> Parameters:
    """Draw a policy; sometimes a tight bypass, a quota, few leases at a time."""
    devices = stream.choice((None, None, 1, 2))
    return Parameters(
        policy=stream.choice(tuple(installed_policies())),
        bypass_max=stream.choice((0, 2, 64)),
        leases_max=stream.choice((2, 100_000, 100_000)),
        quotas={} if devices is None else {EVERYBODY: Quota(devices=devices)},
        waiting_max=stream.choice((3, 100_000, 100_000)),
        records_max=stream.choice((8, 200_000, 200_000)),
        forget_after_s=stream.choice((1.0, 600.0, None)),
    )


def _draw_faults(stream: random.Random, count: int) -> list[Fault]:
    kinds = [kind for kind in FAULTS if stream.random() < 0.6] or list(FAULTS)
    return [
        Fault(
            kind=stream.choice(kinds),
            at_s=stream.uniform(1.0, 300.0),
            target=stream.randrange(8),
            lasts_s=stream.choice((0.5, 5.0, 15.0, 60.0)),
        )
        for _ in range(count)
    ]


def _draw_silences(stream: random.Random, count: int) -> list[Fault]:
    return [
        Fault(
            kind=stream.choice((SILENCE, SILENCE, STOP)),
            at_s=stream.uniform(1.0, 100.0),
            target=stream.randrange(8),
            lasts_s=stream.choice((5.0, 12.0, 25.0, 90.0)),
        )
        for _ in range(count)
    ]


def _draw_redeploys(stream: random.Random) -> list[Fault]:
    count = stream.choice((0, 0, 1, 6))
    times = [stream.uniform(1.0, 150.0) for _ in range(count)]
    return [Fault(kind=REDEPLOY, at_s=at_s, target=0, lasts_s=0.0) for at_s in times]


def _sorted(*drawn: list[Fault]) -> tuple[Fault, ...]:
    faults = [fault for some in drawn for fault in some]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))
