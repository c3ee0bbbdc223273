"""Tables and sentences of `ssgm` for people."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from corekit.cli.screen import Coloured, echo, echo_table
from corekit.cli.table import Column
from corekit.units import format_duration, format_percent, plain_percent
from gpu_scheduler.client.status import SystemStatus
from gpu_scheduler.data_names import host_text
from gpu_scheduler.floors import floor_lines
from gpu_scheduler.model import Device, HostState, Lease, Share
from gpu_scheduler.policy_parameters import Given
from gpu_scheduler.protocol.answers import (
    AttemptAnswer,
    DemandAnswer,
    DeviceView,
    ExplainAnswer,
    HostView,
    InventoryAnswer,
    LeasesAnswer,
    PolicyDeclaration,
    QueueAnswer,
    WorkloadsAnswer,
)
from gpu_scheduler.request_text import request_text
from gpu_scheduler.verdicts import DeviceVerdict
from gpu_scheduler.warm import workload_label


def _columns(names: str, *dropped: str) -> tuple[Column, ...]:
    """Columns by their names, separated with commas; `dropped` on a narrow terminal, in order."""
    turns = {name: turn for turn, name in enumerate(dropped, 1)}
    return tuple(Column(name=name, drop_order=turns.get(name, 0)) for name in names.split(", "))


LEASES = _columns(
    "LEASE, STATE, ATTEMPT, TENANT, ENDS IN, FENCE, SHARES", "FENCE", "TENANT", "ENDS IN", "ATTEMPT"
)
HOSTS = _columns("HOST, STATE, GATEWAY, DEVICES, LEASES, LAST SEEN", "GATEWAY", "LAST SEEN")
DEVICES = _columns(
    "DEVICE, KIND, MODEL, STATE, FREE MIB, COMPUTE, LEASES, WARM, USED, VERSIONS, DETAIL",
    *("VERSIONS", "DETAIL", "USED", "WARM", "LEASES", "KIND", "COMPUTE"),
)
QUEUE = _columns(
    "POSITION, ATTEMPT, TENANT, PRIORITY, WAITED, REQUEST", *("PRIORITY", "TENANT", "WAITED")
)
VERDICTS = _columns(
    "DEVICE, KIND, MODEL, ANSWER, FREE MIB, COMPUTE, DETAIL", "DETAIL", "COMPUTE", "KIND"
)
WORKLOADS = _columns(
    "TENANT, WORKLOAD, MODEL, RUNS, EXECUTION 50/95 %, LOADING 50/95 %, STARTS, WARM NOW",
    *("WARM NOW", "RUNS", "STARTS", "TENANT"),
)
QUOTED = _columns("STEP, DEVICE, STARTS IN, ENDS IN, WARM", "WARM")
TRADEOFFS = _columns("LATENCY, COST")
DEMAND = _columns("WAITING, OLDEST, RUN, REQUEST")
PARAMETERS = _columns("PARAMETER, VALUE, SOURCE")
SCHEDULERS = _columns("SCHEDULER, ROLE, EPOCH, LAG, DETAIL", "EPOCH")
POLICIES = _columns("POLICY, STATE, FORM, NEXT REQUEST", "FORM")
POLICY_PARAMETERS = _columns("PARAMETER, VALUE, VALID, MEANING", "VALID")


def share_text(share: Share) -> str:
    """`gpu-a/0 cuda Tesla K80 4096 MiB, compute 25 to 50 %`: the guarantee and the limit."""
    compute = (
        f"compute {plain_percent(share.compute_guarantee_pct)} to"
        f" {format_percent(share.compute_limit_pct)}"
    )
    size = "exclusive" if share.exclusive else f"{share.memory_mib} MiB, {compute}"
    return f"{share.host}/{share.index} {share.kind.value} {share.model} {size}"


def echo_outcome(answer: AttemptAnswer) -> None:
    """The answer of `alloc`."""
    if answer.granted is not None:
        lease = answer.granted.lease
        shares = "\n".join(f"  {share_text(share)}" for share in lease.shares)
        echo(f"{lease.id}\n{shares}")
        return
    assert answer.explanation is not None
    echo(Coloured(answer.outcome.value), f": {answer.explanation.sentence}")


def echo_schedulers(found: SystemStatus) -> None:
    """The schedulers: which one leads, and how far its standbys are behind."""
    rows = [
        (
            one.address,
            one.role.value,
            "-" if one.epoch is None else str(one.epoch),
            "-" if one.lag_s is None else format_duration(one.lag_s),
            one.problem or (f"follows {one.leader}" if one.leader else ""),
        )
        for one in found.schedulers
    ]
    echo_table(SCHEDULERS, rows)


def echo_leases(found: LeasesAnswer) -> None:
    """Live leases."""
    rows = [
        (
            lease.id,
            _lease_state(lease),
            lease.attempt,
            lease.tenant,
            _ends(found.ends_in_s.get(lease.id)),
            str(lease.fence),
            "; ".join(share_text(share) for share in lease.shares),
        )
        for lease in found.leases
    ]
    echo_table(LEASES, rows, empty="no live leases")


def _lease_state(lease: Lease) -> str:
    """`RESERVED, ahead of lease-4`: the state, and the leases that still have its shares."""
    ahead = f", ahead of {' and '.join(lease.after)}" if lease.after else ""
    return lease.state.value + ahead


def _ends(left_s: float | None) -> str:
    return "with its session" if left_s is None else format_duration(left_s)


def echo_hosts(found: InventoryAnswer) -> None:
    """Hosts, the number of declared devices, pools of hosts that come and go, and warm floors."""
    rows = [
        (
            host.host,
            _host_state(host),
            host.gateway or "none",
            str(len(host.devices)),
            str(len({lease for view in host.devices for lease in view.leases})),
            f"{format_duration(host.silent_s)} ago",
        )
        for host in found.hosts
    ]
    echo_table(HOSTS, rows, empty="no host has registered yet")
    echo_data(found.hosts)
    if declared := len(found.declared) + found.declared_left_out:
        echo(f"{declared} more devices are declared")
    for pool in () if found.fleet is None else found.fleet.pools:
        echo(pool.text)
    for line in floor_lines(found.floors, found.floors_left_out):
        echo(line)


def _host_state(host: HostView) -> str:
    """`DRAINED (SIGTERM, 1 min 25 s left)`: the state, and what becomes of a host that leaves."""
    if host.draining is not None and host.state is HostState.DRAINED:
        left = host.draining.left_s
        until = "" if left is None else f", {format_duration(left)} left"
        return f"{host.state.value} ({host.draining.reason}{until})"
    if host.forgotten_in_s is not None:
        return f"{host.state.value} (forgotten in {format_duration(host.forgotten_in_s)})"
    return host.state.value


def echo_devices(found: InventoryAnswer) -> None:
    """Devices of all hosts."""
    rows = [
        (
            f"{host.host}/{view.device.index}",
            view.device.kind.value,
            view.device.model,
            _state(host, view),
            *_free(host, view),
            str(len(view.leases)),
            _warm(host, view),
            _used(host, view),
            _versions(view.device),
            view.device.detail,
        )
        for host in found.hosts
        for view in host.devices
    ]
    echo_table(DEVICES, rows, empty="no device has registered yet")
    echo_data(found.hosts)


def echo_data(hosts: Iterable[HostView]) -> None:
    """A line for each host with data sets or programs, which requests may name."""
    for host in hosts:
        if text := host_text(host.host, host.data, host.programs):
            echo(text)


def _state(host: HostView, view: DeviceView) -> str:
    if host.state is not HostState.UP:
        return host.state.value
    return HostState.DRAINED.value if view.drained else view.device.health.value


def _free(host: HostView, view: DeviceView) -> tuple[str, str]:
    if host.state is HostState.LOST:
        return f"- of {view.device.memory_mib}", "-"
    return f"{view.memory_free_mib} of {view.device.memory_mib}", format_percent(
        view.compute_free_pct
    )


def _used(host: HostView, view: DeviceView) -> str:
    usage = None if host.state is HostState.LOST else view.usage
    return "" if usage is None else f"{usage.memory_used_mib} MiB, {usage.utilisation_pct} %"


def _warm(host: HostView, view: DeviceView) -> str:
    """`2, 900 MiB`: the number of residents, and the memory that evicting them would free."""
    if host.state is HostState.LOST:
        return "-"
    return f"{len(view.residents)}, {view.resident_mib} MiB" if view.residents else "0"


def _versions(device: Device) -> str:
    return " / ".join(version for version in (device.driver, device.runtime) if version)


def echo_queue(found: QueueAnswer) -> None:
    """Waiting requests."""
    now_s = time.time()
    rows = [
        (
            "ownerless" if view.position is None else str(view.position),
            view.attempt,
            view.request.tenant,
            str(view.request.priority),
            format_duration(max(0.0, now_s - view.waiting_since_s)),
            request_text(view.request),
        )
        for view in found.queue
    ]
    echo_table(QUEUE, rows, empty="queue is empty")
    if found.left_out:
        echo(f"and {found.left_out} more behind them")


def echo_demand(found: DemandAnswer) -> None:
    """Waiting requests by what they ask for."""
    rows = [
        (
            str(group.count),
            format_duration(group.oldest_s),
            format_duration(group.run_s),
            request_text(group.request),
        )
        for group in found.groups
    ]
    echo_table(DEMAND, rows, empty="nothing waits for devices")
    if found.left_out:
        echo(f"and {found.left_out} requests of smaller groups")
    if found.held_back:
        echo(f"{found.held_back} more wait for another reason than devices, such as a quota")


def echo_workloads(found: WorkloadsAnswer) -> None:
    """Learned times of workloads; the hash of a name only where two would look alike."""
    names = {view.workload: workload_label(view.workload) for view in found.workloads}
    times = Counter(names.values())
    names = {whole: whole if times[label] > 1 else label for whole, label in names.items()}
    rows = [
        (
            view.tenant,
            names[view.workload],
            view.expected.model,
            str(view.expected.runs),
            _quantiles(view.expected.execution_p50_s, view.expected.execution_p95_s),
            _quantiles(view.expected.loading_p50_s, view.expected.loading_p95_s),
            _starts(view.cold_starts, view.warm_starts),
            str(view.residents),
        )
        for view in found.workloads
    ]
    echo_table(WORKLOADS, rows, empty="no times were learned yet")


def _starts(cold: int, warm: int) -> str:
    return f"{cold} cold, {warm} warm" if cold or warm else "-"


def _quantiles(median_s: float | None, high_s: float | None) -> str:
    """`4 s, 6 s`: the median, and what 95 % do not exceed."""
    if median_s is None or high_s is None:
        return "-"
    return f"{format_duration(median_s)}, {format_duration(high_s)}"


def echo_explained(answer: ExplainAnswer) -> None:
    """The explanation of a request, device by device."""
    why = answer.explanation
    echo(Coloured(answer.outcome.value), f": {why.sentence}")
    if why.devices:
        _echo_verdicts(why.devices)
    if why.devices_left_out:
        echo(f"and {why.devices_left_out} more devices")


def _echo_verdicts(devices: Sequence[DeviceVerdict]) -> None:
    rows = [
        (
            f"{one.host}/{one.index}",
            one.kind.value,
            one.model,
            _answer(one),
            str(one.free_mib),
            format_percent(one.free_pct),
            one.detail,
        )
        for one in devices
    ]
    echo_table(VERDICTS, rows)


def _answer(one: DeviceVerdict) -> str:
    if one.reason is not None:
        return one.reason.value
    fits = "fits, warm" if one.resident else "fits"
    return f"{fits}, {one.data}" if one.data else fits


def echo_parameters(values: Mapping[str, Given], overridden: Collection[str]) -> None:
    """Parameters in force, with their source."""
    rows = [
        (name, _value(value), "set" if name in overridden else "configured")
        for name, value in values.items()
    ]
    echo_table(PARAMETERS, rows)


def echo_policies(policies: Iterable[PolicyDeclaration], in_force: str) -> None:
    """The installed policies, one line each."""
    rows = [
        (
            one.name,
            "in force" if one.name == in_force else "installed",
            "decides" if one.decides else "orders",
            one.summary,
        )
        for one in policies
    ]
    echo_table(POLICIES, rows)


def echo_policy(policy: PolicyDeclaration, in_force: str) -> None:
    """One policy: its promises and its parameters."""
    echo(f"{policy.name}: {policy.summary}")
    echo(f"  in force:         {'yes' if policy.name == in_force else 'no'}")
    echo(f"  conserves work:   {'yes' if policy.work_conserving else 'no: a request may wait'}")
    echo(f"  bound on waiting: {policy.wait_bound or 'none'}")
    echo(f"  starves:          {policy.starves or 'no request'}")
    echo(f"  a decision takes: {policy.decision_cost or 'a time that it does not state'}")
    rows = [
        (
            f"policy.{policy.name}.{one.name}",
            _value(policy.values.get(one.name, one.default)),
            one.valid,
            one.meaning,
        )
        for one in policy.parameters
    ]
    if rows:
        echo_table(POLICY_PARAMETERS, rows)


def _value(value: Given) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
