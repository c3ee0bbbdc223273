"""How long the scheduler's core takes to decide, alone: no wire, no journal, no second process.

    decision_p99_ms        of all decisions at the largest size; target <= 1 ms
    decision_growth_ratio  p99 at the largest size / p99 at the smallest; target <= 5

Sizes are devices × waiting requests. All devices are lent in quarters; 24 needs of 20 tenants wait,
with priorities. `--largest` adds 100,000 × 1,000,000, which takes some minutes and 1.6 GiB; its p99
has the target 2 ms. A policy that decides (`ssgm policies`) looks at groups of requests instead of
an index of what may fit: its sizes end at 10,000 waiting requests, and of its figures only the p99
at 1,000 × 10,000 has a target, 2 ms.
Measured in turns: a release, which hands the share over to one waiter; its
`renew`; a new request, which joins the queue. With an empty queue the release frees the share and
the request is granted. Every decision is timed by itself, in CPU time of its thread (it does
nothing but compute; other programs do not count), garbage collection included. Each size has a
process of its own, so that its memory can be told.

With `--residents N` every device has N warm workers and every request names one of their workloads:
each placement then looks for a resident, and most grants evict one or use one.

    python -m benchmarks.scheduler.decision [--json] [--cycles N] [--policy P] [--residents N]
                                            [--largest] [--plot FILE.svg]
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.measure import resident_mib
from benchmarks.pictures import Bars, Picture, draw
from corekit.budget import Budget
from corekit.ids import AttemptId, DeviceId, HostId, IdSource, LeaseId, SessionId
from corekit.values import Value
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.core.machine import SchedulerMachine
from gpu_scheduler.model import Device, DeviceKind, DeviceResidents, Request, Resident
from gpu_scheduler.parameters import DEFAULT_POLICY, Parameters
from gpu_scheduler.policy_registry import installed_policies
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol import host as host_ops
from gpu_scheduler.protocol.codec import VERSION
from gpu_scheduler.warm import workload_key

DEVICES = (16, 1_000, 10_000)
WAITING = (0, 1_000, 100_000)
WAITING_DECIDING = (0, 1_000, 10_000)
PER_HOST = 8
MODELS = (("T4", 16384), ("A10", 24576), ("A100", 40960), ("H100", 81920))
TENANTS = 20
LARGEST = 100_000, 1_000_000
P99_TARGET_MS, GROWTH_TARGET = 1.0, 5.0
#: Sizes whose own p99 has a target: one of the policies that order, one of those that decide.
P99_TARGETS_MS = {LARGEST: 2.0, (1_000, 10_000): 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One size."""

    devices: int
    waiting: int
    decisions: int
    p50_ms: float
    p99_ms: float
    longest_ms: float
    memory_mib: float  #: of devices, leases and queue: the process less what it began with


def _unlimited(policy: str) -> Parameters:
    """All of the queue belongs to one tenant here."""
    return Parameters(policy=policy, leases_max=10**9, waiting_max=None, tenant_waiting_max=None)


class Core:
    """The machine, its clock, and a stopwatch."""

    def __init__(self, policy: str) -> None:
        self.machine = SchedulerMachine(
            Budget(), IdSource(1), _unlimited(policy), installed_policies()
        )
        self.now_s = 0.0
        self.took_s: list[float] = []
        self.leases: list[LeaseId] = []  #: accepted, so that they may be released
        self.pushed: list[LeaseId] = []  #: granted to waiters

    def handle(self, cls: type[Any], **fields: Any) -> Value | None:
        self.now_s += 1e-4
        event = cls(at_s=self.now_s, wall_s=1e9 + self.now_s, **fields)
        began_s = time.thread_time()
        decision = self.machine.handle(event)
        self.took_s.append(time.thread_time() - began_s)
        answer = None
        for action in decision.actions:
            match action:
                case do.Reply():
                    answer = action.answer
                case do.PushToSession(push=answers.GrantedPush(granted=granted)):
                    self.pushed.append(granted.lease.id)
        return answer

    def ask(self, op: ops.Op[Value]) -> Value | None:
        return self.handle(on.Asked, session=SessionId("s"), reply_to="r", op=op)

    def join(self, devices: int) -> None:
        """Register hosts with that many devices."""
        for host in range((devices + PER_HOST - 1) // PER_HOST):
            those = range(min(PER_HOST, devices - host * PER_HOST))
            hello = host_ops.HostHello(
                host=HostId(f"h{host}"),
                incarnation="1",
                gateway=f"h{host}:1",
                devices=tuple(device(host, index) for index in those),
                epoch_seen=0,
                installed=(),
                version=VERSION,
            )
            self.handle(on.HostAsked, host=hello.host, reply_to="h", op=hello)

    def reserve(self, number: int, request: Request) -> None:
        attempt = AttemptId(f"a{number}")
        answer = self.ask(ops.Reserve(attempt=attempt, request=request, wait=True))
        assert isinstance(answer, answers.AttemptAnswer), answer
        if answer.granted is not None:
            self.leases.append(answer.granted.lease.id)

    def publish(self, device: DeviceId, residents: int, stream: random.Random) -> None:
        """Bring the warm workers of a device to this number; not a decision that is measured."""
        entry = self.machine.state.inventory.devices[device]
        missing = residents - len(self.machine.state.inventory.residents.of(device))
        made = (
            resident(f"t{stream.randrange(TENANTS)}", stream.choice(WORKLOADS))
            for _ in range(missing)
        )
        change = DeviceResidents(device=device, added=tuple(made))
        measured = len(self.took_s)
        op = host_ops.Report(residents=(change,))
        self.handle(on.HostAsked, host=entry.host, reply_to="h", op=op)
        del self.took_s[measured:]

    def cycle(
        self, number: int, request: Request, stream: random.Random, residents: int = 0
    ) -> None:
        """One release, the waiter's answer to its grant, one new request."""
        if self.leases:  # a policy that lets requests wait may have granted none for a while
            chosen = stream.randrange(len(self.leases))
            self.leases[chosen], self.leases[-1] = self.leases[-1], self.leases[chosen]
            released = self.leases.pop()
            device = self.machine.state.leases[released].lease.shares[0].device
            self.ask(ops.Release(lease=released))
            if residents:
                self.publish(device, residents, stream)
        for lease in self.pushed:
            self.ask(ops.Renew(lease=lease))
        self.leases += self.pushed
        self.pushed.clear()
        self.reserve(number, request)


def device(host: int, index: int) -> Device:
    model, memory_mib = MODELS[host % len(MODELS)]
    return Device(
        id=DeviceId(f"GPU-{host}-{index}"),
        index=index,
        kind=DeviceKind.CUDA,
        model=model,
        memory_mib=memory_mib,
        driver="550.54.15",
        runtime="12.4",
    )


def quarter() -> Request:
    """What fills a device four times: every model has a multiple of it."""
    return Request(memory_mib=MODELS[0][1] // 4, compute_guarantee_pct=25)


#: Names of the workloads of `--residents`: each tenant has all of them.
WORKLOADS = tuple(f"w{number}" for number in range(20))


def resident(tenant: str, workload: str) -> Resident:
    """A warm worker of a tenant, with a new id."""
    return Resident(
        id=f"worker-{next(_numbers)}",
        workload=workload_key(tenant, workload),
        memory_mib=1024,
        loading_s=4.0,
    )


_numbers = itertools.count()


def wanted(stream: random.Random, *, with_workload: bool = False) -> Request:
    """One of 24 needs, of any of the tenants; each takes the compute of a quarter."""
    return Request(
        workload=stream.choice(WORKLOADS) if with_workload else None,
        memory_mib=stream.choice((512, 1024, 2048, 3072, 4000, 4096)),
        compute_guarantee_pct=25,
        tenant=f"t{stream.randrange(TENANTS)}",
        priority=stream.randrange(3),
        models=stream.choice(((), ("A100", "H100"), ("T4", "A10"), ("A10",))),
    )


def filled(devices: int, waiting: int, policy: str, stream: random.Random, residents: int) -> Core:
    """All devices lent in quarters, and that many requests in the queue."""
    core = Core(policy)
    core.handle(on.EpochBegan)
    core.ask(ops.Hello(session="s", version=VERSION))
    core.join(devices)
    for number in range(4 * devices):
        core.reserve(-1 - number, quarter())
    assert len(core.leases) == 4 * devices, "a quarter found no place"
    for number in range(waiting):
        core.reserve(number, wanted(stream, with_workload=residents > 0))
    for number in range(devices if residents else 0):
        core.publish(DeviceId(f"GPU-{number // PER_HOST}-{number % PER_HOST}"), residents, stream)
    return core


def measure(devices: int, waiting: int, cycles: int, policy: str, residents: int = 0) -> Measured:
    """One size, in this process."""
    stream = random.Random(f"{devices}/{waiting}")
    empty_mib = resident_mib()
    core = filled(devices, waiting, policy, stream, residents)
    memory_mib = resident_mib() - empty_mib

    def cycle(number: int) -> None:
        request = wanted(stream, with_workload=residents > 0) if waiting else quarter()
        core.cycle(number, request, stream, residents)

    for number in range(cycles // 10):  # what is made once is made now
        cycle(10**8 + number)
    core.took_s.clear()
    for number in range(cycles):
        cycle(10**9 + number)
    took_ms = sorted(1e3 * took_s for took_s in core.took_s)
    return Measured(
        devices=devices,
        waiting=waiting,
        decisions=len(took_ms),
        p50_ms=took_ms[len(took_ms) // 2],
        p99_ms=took_ms[len(took_ms) * 99 // 100],
        longest_ms=took_ms[-1],
        memory_mib=memory_mib,
    )


def _in_own_process(devices: int, waiting: int, options: argparse.Namespace) -> Measured:
    command = [sys.executable, "-m", "benchmarks.scheduler.decision", "--size"]
    command += [str(devices), str(waiting), "--cycles", str(options.cycles)]
    command += ["--policy", options.policy, "--residents", str(options.residents)]
    done = subprocess.run(command, cwd=report.ROOT, capture_output=True, text=True, check=True)
    return Measured(**json.loads(done.stdout))


def waiting_sizes(policy: str) -> tuple[int, ...]:
    """The numbers of waiting requests for a policy."""
    return WAITING if installed_policies()[policy].orders else WAITING_DECIDING


def figures(all_: list[Measured], policy: str) -> list[report.Figure]:
    """The two of all sizes but the `LARGEST` first, then every size."""
    has_target = waiting_sizes(policy) is WAITING
    usual = [size for size in all_ if (size.devices, size.waiting) != LARGEST]
    smallest, largest = usual[0], usual[-1]
    growth = largest.p99_ms / smallest.p99_ms
    told = [
        report.Figure(
            "decision_p99_ms",
            largest.p99_ms,
            "ms",
            target=f"<= {P99_TARGET_MS:g}" if has_target else None,
        ),
        report.Figure(
            "decision_growth_ratio",
            growth,
            "",
            f"p99 ms, {smallest.devices} devices, none waiting",
            smallest.p99_ms,
            ratio=growth,
            target=f"<= {GROWTH_TARGET:g}" if has_target else None,
        ),
    ]
    for size in all_:
        name = f"{size.devices}x{size.waiting}"
        limit_ms = P99_TARGETS_MS.get((size.devices, size.waiting))
        target = None if limit_ms is None else f"<= {limit_ms:g}"
        told += [
            report.Figure(f"decision_p50_ms_{name}", size.p50_ms, "ms"),
            report.Figure(f"decision_p99_ms_{name}", size.p99_ms, "ms", target=target),
            report.Figure(f"decision_longest_ms_{name}", size.longest_ms, "ms"),
            report.Figure(f"decision_memory_mib_{name}", size.memory_mib, "MiB"),
        ]
    return told


def plot(all_: list[Measured], path: Path) -> None:
    """p99 over waiting requests, for each number of devices, as SVG."""
    bars = [
        Bars(
            name=f"{devices:,} devices",
            values={f"{size.waiting:,}": size.p99_ms for size in all_ if size.devices == devices},
        )
        for devices in DEVICES
    ]
    title = "p99 of one decision"
    picture = Picture(name=path.stem, title=title, x="waiting requests", y="ms", bars=bars)
    draw(picture, path.parent)


def main() -> None:
    """Measure every size and tell, or one of them for the process above."""
    parser = report.arguments(__doc__)
    parser.add_argument("--cycles", type=int, default=2000, help="releases per size")
    policies = list(installed_policies())
    parser.add_argument("--policy", choices=policies, default=DEFAULT_POLICY)
    parser.add_argument("--residents", type=int, default=0, help="warm workers of each device")
    parser.add_argument("--largest", action="store_true", help="measure the largest size too")
    parser.add_argument("--plot", type=Path, help="write the growth as SVG")
    parser.add_argument("--size", type=int, nargs=2, help="DEVICES WAITING: only this one")
    options = parser.parse_args()
    if options.size:
        devices, waiting = options.size
        one = measure(devices, waiting, options.cycles, options.policy, options.residents)
        print(json.dumps(asdict(one)))
        return
    sizes = waiting_sizes(options.policy)
    all_ = [_in_own_process(devices, waiting, options) for devices in DEVICES for waiting in sizes]
    if options.largest and sizes is WAITING:
        all_.append(_in_own_process(*LARGEST, options))
    if options.plot:
        plot(all_, options.plot)
    report.show("scheduler.decision", figures(all_, options.policy), as_json=options.json)


if __name__ == "__main__":
    main()
