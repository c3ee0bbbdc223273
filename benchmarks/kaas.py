"""Kernel-as-a-service's closed loop: clients with a model each, on N devices of one machine.

    requests_N_exclusive  per second, of N clients, one client a device (policy exclusive): a device
                          has room for one model, and whoever gets it next loads another one
    requests_N_shared     the same with devices that keep several models as warm workers
    fall_exclusive        requests of N clients / of N + 1; paper, with N = 4: 30 to 110
    change_shared_pct     from N clients to N + 1; paper: 3 % at most
    cold_N_…              requests of the measured time whose worker was new

Every request is a lease of its own: reserved, granted, one inference of one item, given back. A
model has random weights, 210 MB in 50 dense layers; a host that lacks it gets it from its client.
The devices are hosts with a CPU device each, four by default. They, the scheduler and the clients
share the cores of the machine: its processors limit the rate of warm requests, and the fall is
smaller than the paper's, where all devices compute at the same time.

    python -m benchmarks.kaas [--json] [--seconds S] [--devices N] [--layers N]
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import report
from benchmarks.processes import workspace
from benchmarks.remote_gpu.host import Host, computed
from benchmarks.remote_gpu.resnet import write_dense
from benchmarks.remote_gpu.waiting import WaitingLeases
from corekit.cli.progress import Bar
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import GrantedLease, Request
from gpu_scheduler.protocol import ops
from remote_gpu.client import Session
from remote_gpu.middleware import render

FALL_MIN, CHANGE_PCT_MAX = 30.0, 3.0
#: Below the figures on the page.
NOTE = (
    "With one client more than devices every request of an exclusive device is cold, with as many "
    "clients none is: the paper's cliff. Its height is not the paper's: the client hashes the "
    "model's 210 MB for each request, and devices, scheduler and clients share the cores, so a "
    "warm request takes most of a second and a cold one several. The paper's devices compute a "
    "warm one in 0.05 s. With its times, the [simulator](../explanation/simulator.md) shows a fall "
    "of 60 under the same policy."
)
_SIDE = 1024
_LEASE_MIB = 900  #: a model as it is loaded takes up to three times its size
_CAP_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How devices are used."""

    name: str
    policy: str
    device_mib: int
    guarantee_pct: int  #: of a request
    warm_workers_max: int


EXCLUSIVE = Form(
    name="exclusive",
    policy="exclusive",
    device_mib=_LEASE_MIB,
    guarantee_pct=100,
    warm_workers_max=1,
)
SHARED = Form(
    name="shared", policy="warm_first", device_mib=4000, guarantee_pct=50, warm_workers_max=8
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The requests of one run."""

    per_s: float
    requests: int
    cold: int


class Clients:
    """A closed loop: every client has one request at a time."""

    def __init__(self, form: Form, count: int, models: Path) -> None:
        """`models`: folder of the clients' models."""
        self._form = form
        self._models = models
        self._count = count
        self._stopped = False
        self._done = [0] * count

    async def run(self, address: str, seconds: float) -> Measured:
        """Requests per second, once every client has had two answers."""
        async with WaitingLeases(address) as leases, asyncio.TaskGroup() as group:
            for number in range(self._count):
                group.create_task(self._client(leases, number))
            while min(self._done) < 2:
                await asyncio.sleep(0.05)
            cold, done, began_s = await _cold(leases.scheduler), sum(self._done), time.monotonic()
            await asyncio.sleep(seconds)
            requests, took_s = sum(self._done) - done, time.monotonic() - began_s
            cold = await _cold(leases.scheduler) - cold
            self._stopped = True
        return Measured(per_s=requests / took_s, requests=requests, cold=cold)

    async def _client(self, leases: WaitingLeases, number: int) -> None:
        request = Request(
            memory_mib=_LEASE_MIB,
            compute_guarantee_pct=self._form.guarantee_pct,
            workload=_model(number),
        )
        for attempt in itertools.count(1):
            if self._stopped:
                return
            name = f"client-{number}-of-{self._count}:{attempt}"
            await leases.submit(name, request)
            granted = await leases.lease(name)
            await asyncio.to_thread(_infer, granted, _file(self._models, number))
            self._done[number] += 1


def _model(number: int) -> str:
    return f"model-{number}"


def _file(models: Path, number: int) -> Path:
    return models / f"{_model(number)}.onnx"


def _infer(granted: GrantedLease, model: Path) -> None:
    connection = render("builtin", granted)["connection"]
    with Session.open(connection, _CAP_S) as session:
        with computed(session, model, _SIDE):
            pass
        session.give_back()


async def _cold(scheduler: SchedulerClient) -> int:
    """Cold starts so far, of leases that have ended."""
    return sum(view.cold_starts for view in (await scheduler.workloads()).workloads)


def measure(
    form: Form, devices: int, counts: Sequence[int], models: Path, seconds: float
) -> Iterator[Measured]:
    """A run for each count of clients, one after the other on the same daemons."""
    cores = sorted(os.sched_getaffinity(0))
    options = ["--operation", "onnx", "--memory-mib", str(form.device_mib)]
    with workspace("kaas") as (stack, folder):
        host = Host(stack, folder / "system", cores[0], *options)
        for number in range(1, devices):
            host.add(f"bench-{number + 1}", cores[number % len(cores)], *options)
        asyncio.run(_settings(host.scheduler, form))
        for count in counts:
            yield asyncio.run(Clients(form, count, models).run(host.scheduler, seconds))


async def _settings(address: str, form: Form) -> None:
    values: dict[str, str | int] = {
        "policy": form.policy,
        "warm_workers_max": form.warm_workers_max,
        "warm_memory_pct_max": 100,
    }
    async with SchedulerClient(address) as scheduler:
        for name, value in values.items():
            await scheduler.ask(ops.SetParameter(name=name, value=value))


def figures(
    form: Form, few: Measured, many: Measured, counts: Sequence[int]
) -> list[report.Figure]:
    """Both rates, the cold starts, and the change between them."""
    found = []
    for count, one in zip(counts, (few, many), strict=True):
        name = f"{count}_{form.name}"
        found.append(report.Figure(f"requests_{name}", one.per_s, "1/s"))
        found.append(report.Figure(f"cold_{name}", one.cold, f"of {one.requests}"))
    if form is EXCLUSIVE:
        fall = few.per_s / many.per_s
        return [
            *found,
            report.Figure("fall_exclusive", fall, "x", target=f">= {FALL_MIN:g}"),
        ]
    change_pct = 100 * (many.per_s / few.per_s - 1)
    return [
        *found,
        report.Figure("change_shared_pct", change_pct, "%", target=f">= -{CHANGE_PCT_MAX:g}"),
    ]


def main() -> None:
    parser = report.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run")
    parser.add_argument("--devices", type=int, default=4, help="N; there are N and N + 1 clients")
    parser.add_argument("--layers", type=int, default=50, help="of a model, 4 MiB each")
    options = parser.parse_args()
    counts = (options.devices, options.devices + 1)
    found: list[report.Figure] = []
    bar, done = Bar(4, quiet=options.json), itertools.count(1)
    with tempfile.TemporaryDirectory(prefix="kaas-models-") as folder:
        models = Path(folder)
        for number in range(counts[1]):
            write_dense(_file(models, number), options.layers, _SIDE, number)
        for form in (EXCLUSIVE, SHARED):
            measured: list[Measured] = []
            for one in measure(form, options.devices, counts, models, options.seconds):
                bar.draw(next(done), f"{form.name}, {counts[len(measured)]} clients")
                measured.append(one)
            found += figures(form, measured[0], measured[1], counts)
    bar.clear()
    report.show("kaas", found, as_json=options.json, notes=[NOTE])


if __name__ == "__main__":
    main()
