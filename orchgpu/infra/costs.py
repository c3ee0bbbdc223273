"""The monthly costs of a stack without jobs, by a dated file of list prices. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from corekit.values import Value

HOURS = 730  #: of a month, as AWS counts
SCHEDULER_DISK_GIB = 8  #: of a machine without GPU, as the template has it


class Gpus(Value):
    """The devices of an instance type."""

    model: str  #: as gpud reports it
    devices: int = 1
    memory: str  #: of each device, at most what gpud lends


class Prices(Value):
    """List prices in USD; AWS's free tiers of the first year are left out."""

    as_of: str
    region: str
    instance_hour: Mapping[str, float]  #: on demand, Linux
    gpus: Mapping[str, Gpus]  #: by instance type, each of which has a price
    address_hour: float  #: a public IPv4 address in use
    disk_gib_month: float  #: gp3
    secret_month: float
    alarm_month: float
    writes_million: float  #: of DynamoDB, on demand, up to 1 KB each
    reads_million: float  #: of DynamoDB, consistent, up to 4 KB each
    gets_million: float  #: of S3


class Rates(Value):
    """Requests of the programs while nothing runs, each second."""

    beats: float  #: items that the leader writes, each of which is deleted later
    polls: float  #: reads of each standby
    registry_reads: float  #: of each orchestrator


class Cost(Value):
    """One line of the sum."""

    what: str
    usd_month: float


def idle(
    resources: Mapping[str, Mapping[str, object]],
    values: Mapping[str, str],
    prices: Prices,
    rates: Rates,
) -> Iterator[Cost]:
    """The monthly costs of a template's resources without any job.

    `resources`: those that exist with these `values` of its parameters.
    """
    kinds = [str(one["Type"]) for one in resources.values()]
    schedulers = sum(name.startswith("Schedulers") for name in _groups(resources))
    hosts = int(values["GpuMin"])  # the fleet starts others when they are needed
    disk = int(values["GpuDiskGiB"])
    own = disk if values["Machines"] == "one" else SCHEDULER_DISK_GIB
    yield _machines("schedulers", schedulers, values["SchedulerType"], own, prices)
    if hosts:
        yield _machines("GPU hosts (spot costs less)", hosts, values["GpuType"], disk, prices)
    seconds = HOURS * 3600
    written = 2 * rates.beats * seconds / 1e6
    polled = rates.polls * max(0, schedulers - 1) * seconds / 1e6
    journal = written * prices.writes_million + polled * prices.reads_million
    yield Cost(what="journal: beats of the leader, polls of its standby", usd_month=journal)
    registry = rates.registry_reads * schedulers * seconds / 1e6 * prices.gets_million
    yield Cost(what="registry: reads of orchestrators", usd_month=registry)
    for kind, price, what in (
        ("AWS::SecretsManager::Secret", prices.secret_month, "secrets"),
        ("AWS::CloudWatch::Alarm", prices.alarm_month, "alarms"),
    ):
        count = kinds.count(kind)
        if count:
            yield Cost(what=f"{what}: {count}", usd_month=count * price)


def _groups(resources: Mapping[str, Mapping[str, object]]) -> list[str]:
    kind = "AWS::AutoScaling::AutoScalingGroup"
    return [name for name, one in resources.items() if one["Type"] == kind]


def _machines(what: str, count: int, kind: str, disk_gib: int, prices: Prices) -> Cost:
    """A type without a list price is counted by its address and disk alone, and named."""
    text = f"{what}: {count} × {kind}, with address and {disk_gib} GiB"
    if kind not in prices.instance_hour:
        text = f"{text}; without {kind} itself, whose price is not known here"
    hourly = prices.instance_hour.get(kind, 0.0) + prices.address_hour
    each = hourly * HOURS + disk_gib * prices.disk_gib_month
    return Cost(what=text, usd_month=count * each)
