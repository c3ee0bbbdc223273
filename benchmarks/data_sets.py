"""Bytes that hosts fetch of declared data sets, against an oracle: 10 hosts, 50 sets, Zipf.

    fetched_gb         placement by data (`data_placement`), eviction by the hosts' `Library`
    fetched_blind_gb   the same jobs and hosts, where placement does not see the data
    oracle_gb          its baseline: the same placement, where hosts evict what is needed latest
    first_fetches_gb   each set fetched once, by one host: what nobody can avoid
    ready_pct          percent of jobs whose host had the set already

Jobs arrive as a Poisson process with half of the devices busy, use one set each, and hold a device
for a time around 30 s. Sets have 0.2 to 40 GB (log-normal); a host has space for 60 GB.

    python -m benchmarks.data_sets [--json] [--seed N] [--jobs N]
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks import report
from corekit.ids import DeviceId, HostId, LeaseId
from gpu_scheduler.core.inventory.devices import share_of
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.data_sets import DataSet, HeldData, HeldSet
from gpu_scheduler.model import Device, DeviceKind, HostState, Request, Share, Sharing
from gpu_scheduler.protocol.changes import HostRegistered
from remote_gpu.host.data.library import KeptSet, Library

HOSTS, DEVICES, SETS = 10, 4, 50
SPACE_BYTES = 60 * 10**9
RUN_S, BUSY = 30.0, 0.5
GB = 10**9
#: Arrival, length and set of a job.
Job = tuple[float, float, DataSet]


@dataclass(slots=True)
class Host:
    """One host's library, and the sets of its jobs in their order."""

    library: Library = field(default_factory=lambda: Library(SPACE_BYTES))
    used: list[DataSet] = field(default_factory=list)
    in_use: list[str] = field(default_factory=list)
    fetched_bytes: int = 0

    def use(self, one: DataSet, now_s: float) -> tuple[str, ...]:
        """Fetch a set unless it is here; returns the evicted ones."""
        evict: tuple[str, ...] = ()
        self.used.append(one)
        if one.key not in self.library.sets:
            evict, missing_bytes = self.library.room(one.key, one.bytes, self.in_use)
            assert not missing_bytes, "the sets of all jobs of a host fit"
            for key in evict:
                self.library.gone(key, evicted=True)
            self.library.begin(KeptSet(key=one.key, origin="s3://models", bytes=one.bytes))
            self.library.arrived(one.key, one.bytes, whole=True)
            self.fetched_bytes += one.bytes
        self.library.use(one.key, now_s)
        return evict


class Fleet:
    """The hosts behind the scheduler's inventory."""

    def __init__(self) -> None:
        self.inventory = Inventory()
        self.hosts = {HostId(f"gpu-{n}"): Host() for n in range(HOSTS)}
        for name in self.hosts:
            devices = tuple(
                Device(
                    id=DeviceId(f"{name}/{index}"),
                    index=index,
                    kind=DeviceKind.CUDA,
                    model="L4",
                    memory_mib=24_000,
                )
                for index in range(DEVICES)
            )
            registered = HostRegistered(
                host=name, incarnation="1", gateway="g:1", devices=devices, data_space_mib=2**20
            )
            self.inventory.register(registered)
            self.inventory.set_state(self.inventory.hosts[name], HostState.UP)

    def run(self, jobs: Sequence[Job], *, blind: bool) -> float:
        """Serve jobs in their order; returns the part that found its set on its host."""
        running: list[tuple[float, int, Share, str]] = []
        ready = 0
        for number, (at_s, length_s, one) in enumerate(jobs):
            asked = Request(sharing=Sharing.EXCLUSIVE, data_sets=() if blind else (one,))
            while running and running[0][0] <= at_s:
                self._end(*heapq.heappop(running)[1:])
            while (found := place(asked, self.inventory)) is None:
                self._end(*heapq.heappop(running)[1:])
            device = self.inventory.devices[found[0]]
            share, host = share_of(asked, device.device, device.host), self.hosts[device.host]
            self.inventory.allocate(LeaseId(str(number)), share)
            ready += one.key in host.library.sets
            host.in_use.append(one.key)
            evicted = host.use(one, at_s)
            added = (HeldSet(key=one.key, bytes=one.bytes),)
            self.inventory.held.change(device.host, HeldData(added=added, removed=evicted))
            heapq.heappush(running, (at_s + length_s, number, share, one.key))
        return ready / len(jobs)

    def _end(self, number: int, share: Share, key: str) -> None:
        self.inventory.deallocate(LeaseId(str(number)), share)
        self.hosts[share.host].in_use.remove(key)

    @property
    def fetched_bytes(self) -> int:
        return sum(host.fetched_bytes for host in self.hosts.values())


def jobs_of(count: int, seed: int) -> list[Job]:
    """Jobs by arrival."""
    stream = random.Random(seed)
    sizes = [min(40.0, max(0.2, stream.lognormvariate(1.0, 1.2))) for _ in range(SETS)]
    sets = [
        DataSet(name=f"s{n}", source=f"s3://models/s{n}", digest="0" * 64, bytes=round(size * GB))
        for n, size in enumerate(sizes)
    ]
    weights = [1 / rank for rank in range(1, SETS + 1)]
    chosen = stream.choices(sets, weights, k=count)
    rate = BUSY * HOSTS * DEVICES / RUN_S
    at_s, jobs = 0.0, list[Job]()
    for one in chosen:
        at_s += stream.expovariate(rate)
        jobs.append((at_s, stream.expovariate(1 / RUN_S), one))
    return jobs


def oracle_bytes(used: Sequence[DataSet]) -> int:
    """The bytes that a host fetches for these uses if it evicts what it needs latest."""
    following: list[int] = [0] * len(used)
    last: dict[str, int] = {}
    for at in range(len(used) - 1, -1, -1):
        following[at] = last.get(used[at].key, len(used))
        last[used[at].key] = at
    here: dict[str, tuple[int, int]] = {}  # next use and bytes
    fetched = 0
    for at, one in enumerate(used):
        if one.key not in here:
            fetched += one.bytes
            while sum(size for _, size in here.values()) + one.bytes > SPACE_BYTES:
                del here[max(here, key=lambda key: here[key][0])]
        here[one.key] = following[at], one.bytes
    return fetched


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=5000)
    options = parser.parse_args()
    jobs = jobs_of(options.jobs, options.seed)
    seeing, blind = Fleet(), Fleet()
    ready = seeing.run(jobs, blind=False)
    blind.run(jobs, blind=True)
    oracle = sum(oracle_bytes(host.used) for host in seeing.hosts.values())
    first = sum({one.key: one.bytes for _, _, one in jobs}.values())
    fetched_gb = seeing.fetched_bytes / GB
    figures = [
        report.compared("fetched_gb", fetched_gb, "GB", "oracle_gb", oracle / GB),
        report.compared("fetched_blind_gb", blind.fetched_bytes / GB, "GB", "ours", fetched_gb),
        report.compared("first_fetches_gb", first / GB, "GB", "ours", fetched_gb),
        report.Figure("ready_pct", 100 * ready, "%"),
    ]
    report.show("data_sets", figures, as_json=options.json)


if __name__ == "__main__":
    main()
