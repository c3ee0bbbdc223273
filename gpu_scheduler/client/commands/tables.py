"""What `ssgm` prints for people."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence

from corekit.units import format_duration
from gpu_scheduler.client.commands.terminal import coloured, table
from gpu_scheduler.model import Device, DeviceVerdict, HostState, Share
from gpu_scheduler.parameters import Given
from gpu_scheduler.protocol.answers import (
    AttemptAnswer,
    DeviceView,
    ExplainAnswer,
    HostView,
    InventoryAnswer,
    LeasesAnswer,
    QueueAnswer,
)
from gpu_scheduler.request_text import request_text


def share(part: Share) -> str:
    """`gpu-a/0 cuda Tesla K80 4096 MiB, compute 25 to 50 %`: promised, and never more than."""
    compute = f"compute {part.compute_guarantee_pct} to {part.compute_limit_pct} %"
    size = "exclusive" if part.exclusive else f"{part.memory_mib} MiB, {compute}"
    return f"{part.host}/{part.index} {part.kind.value} {part.model} {size}"


def outcome(answer: AttemptAnswer) -> str:
    """The answer of `alloc`."""
    if answer.granted is not None:
        lease = answer.granted.lease
        where = "\n".join(f"  {share(part)}" for part in lease.shares)
        return f"{lease.id}\n{where}"
    assert answer.explanation is not None
    return f"{coloured(answer.outcome.value)}: {answer.explanation.sentence}"


def leases(found: LeasesAnswer) -> str:
    rows = [
        (
            lease.id,
            lease.state.value,
            lease.attempt,
            lease.tenant,
            _ends(found.ends_in_s.get(lease.id)),
            str(lease.fence),
            "; ".join(share(part) for part in lease.shares),
        )
        for lease in found.leases
    ]
    head = ("LEASE", "STATE", "ATTEMPT", "TENANT", "ENDS IN", "FENCE", "SHARES")
    return table(head, rows, "nothing is lent", ("FENCE", "TENANT", "ENDS IN", "ATTEMPT"))


def _ends(left_s: float | None) -> str:
    return "with its session" if left_s is None else format_duration(left_s)


def hosts(found: InventoryAnswer) -> str:
    rows = [
        (
            host.host,
            host.state.value,
            host.gateway or "none",
            str(len(host.devices)),
            str(len({lease for view in host.devices for lease in view.leases})),
            format_duration(host.silent_s),
        )
        for host in found.hosts
    ]
    head = ("HOST", "STATE", "GATEWAY", "DEVICES", "LEASES", "HEARD BEFORE")
    shown = table(head, rows, "no host has registered yet", ("GATEWAY", "HEARD BEFORE"))
    declared = len(found.declared) + found.declared_left_out
    return f"{shown}\n{declared} more devices are declared" if declared else shown


def devices(found: InventoryAnswer) -> str:
    rows = [
        (
            f"{host.host}/{view.device.index}",
            view.device.kind.value,
            view.device.model,
            _standing(host, view),
            *_free(host, view),
            str(len(view.leases)),
            _used(host, view),
            _versions(view.device),
            view.device.detail,
        )
        for host in found.hosts
        for view in host.devices
    ]
    head = (
        "DEVICE",
        "KIND",
        "MODEL",
        "STATE",
        "FREE MIB",
        "COMPUTE",
        "LEASES",
        "USED",
        "VERSIONS",
        "DETAIL",
    )
    least_needed = ("VERSIONS", "DETAIL", "USED", "LEASES", "KIND", "COMPUTE")
    return table(head, rows, "no device has registered yet", least_needed)


def _standing(host: HostView, view: DeviceView) -> str:
    """What decides whether a device gets leases: its host first, then itself."""
    if host.state is not HostState.UP:
        return host.state.value
    return HostState.DRAINED.value if view.drained else view.device.health.value


def _free(host: HostView, view: DeviceView) -> tuple[str, str]:
    """Of a lost host nobody knows what is free, and nobody gets it."""
    if host.state is HostState.LOST:
        return f"- of {view.device.memory_mib}", "-"
    return f"{view.memory_free_mib} of {view.device.memory_mib}", f"{view.compute_free_pct} %"


def _used(host: HostView, view: DeviceView) -> str:
    usage = None if host.state is HostState.LOST else view.usage
    return "" if usage is None else f"{usage.memory_used_mib} MiB, {usage.utilisation_pct} %"


def _versions(device: Device) -> str:
    return " / ".join(version for version in (device.driver, device.runtime) if version)


def queue(found: QueueAnswer) -> str:
    now_s = time.time()
    rows = [
        (
            "parked" if view.position is None else str(view.position),
            view.attempt,
            view.request.tenant,
            str(view.request.priority),
            format_duration(max(0.0, now_s - view.waiting_since_s)),
            request_text(view.request),
        )
        for view in found.queue
    ]
    head = ("PLACE", "ATTEMPT", "TENANT", "PRIORITY", "WAITED", "REQUEST")
    shown = table(head, rows, "nobody waits", ("PRIORITY", "TENANT"))
    return f"{shown}\nand {found.left_out} more behind them" if found.left_out else shown


def explained(answer: ExplainAnswer) -> str:
    why = answer.explanation
    lines = [f"{coloured(answer.outcome.value)}: {why.sentence}"]
    if why.devices:
        lines.append(_verdicts(why.devices))
    if why.devices_left_out:
        lines.append(f"and {why.devices_left_out} more devices")
    return "\n".join(lines)


def _verdicts(devices: Sequence[DeviceVerdict]) -> str:
    rows = [
        (
            f"{one.host}/{one.index}",
            one.kind.value,
            one.model,
            "fits" if one.reason is None else one.reason.value,
            str(one.free_mib),
            f"{one.free_pct} %",
            one.detail,
        )
        for one in devices
    ]
    head = ("DEVICE", "KIND", "MODEL", "ANSWER", "FREE MIB", "COMPUTE", "DETAIL")
    return table(head, rows, drop=("DETAIL", "COMPUTE", "KIND"))


def parameters(values: Mapping[str, Given], overridden: Collection[str]) -> str:
    rows = [
        (name, _value(value), "set" if name in overridden else "configured")
        for name, value in values.items()
    ]
    return table(("PARAMETER", "VALUE", "BY"), rows)


def _value(value: Given) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(value)
