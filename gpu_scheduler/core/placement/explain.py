"""Explanations of why a request waits or is refused: counts of reasons, and one sentence."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from corekit.ids import DeviceId
from corekit.units import percent_of
from corekit.values import replace
from gpu_scheduler.core.inventory.devices import fits, is_feasible, unavailable_reason
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.capacity import available_mib, is_infeasible, largest, shortage
from gpu_scheduler.core.placement.eviction import taken
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.model import Health, HostState, Request
from gpu_scheduler.request_text import request_text
from gpu_scheduler.verdicts import DeviceVerdict, Explanation, HeldBack, NoFit, Shortage

#: The most devices with a verdict of their own in one explanation.
VERDICTS_MAX = 64
#: The most hosts and devices listed in a sentence.
NAMED_MAX = 8
_REASONS = {reason: reason.value for reason in NoFit}  #: in the order of display


def explain(
    request: Request,
    inventory: Inventory,
    *,
    attempt: str | None = None,
    position: int | None = None,
    own: Request | None = None,
) -> Explanation:
    """Evaluate the request on all known devices.

    `own`: the request before it was clamped to the quota of its tenant.
    """
    counted = _reason_counts(request, inventory, attempt)
    fitting = counted.pop(None, 0)
    if fitting >= request.count > 1 and place(request, inventory, attempt) is None:
        counted[NoFit.SAME_HOST] = fitting
    most, short = None, None
    if is_infeasible(request, inventory):
        most, short = largest(request, inventory), shortage(request, inventory)
    explanation = Explanation(
        devices_known=len(inventory.devices),
        devices_fitting=fitting,
        counts={name: counted[reason] for reason, name in _REASONS.items() if reason in counted},
        position=position,
        largest_fit="" if short is None else _largest_fit(most, inventory),
        largest=most,
        short=short,
        sentence="",
    )
    return replace(explanation, sentence=_sentence(own or request, inventory, explanation))


def out_of_service(request: Request, inventory: Inventory, explanation: Explanation) -> Explanation:
    """Add the feasible devices that are out of service when too few are available."""
    if explanation.short is not None or available_mib(request, inventory) >= request.memory_mib:
        return explanation
    named = list(islice(_out_of_service_names(request, inventory), NAMED_MAX + 1))
    which = ", ".join(named[:NAMED_MAX]) + (" and others" if len(named) > NAMED_MAX else "")
    sentence = f"{explanation.sentence}; out of service: {which}" if named else explanation.sentence
    return replace(explanation, held_back=HeldBack.OUT_OF_SERVICE, sentence=sentence)


def _out_of_service_names(request: Request, inventory: Inventory) -> Iterator[str]:
    hosts: dict[str, None] = {}
    for groups in inventory.index.ranked(request):
        for device in (device for group in groups for device in group.devices):
            entry, reason = (
                inventory.devices[device],
                unavailable_reason(inventory.state_of(device)),
            )
            host = inventory.hosts[entry.host]
            if reason is None:
                continue
            if host.shown_state is not HostState.UP:
                if entry.host not in hosts:
                    hosts[entry.host] = None
                    yield f"{entry.host} ({host.shown_state.value})"
                continue
            detail = f": {entry.device.detail}" if entry.device.detail else ""
            yield f"{entry.host}/{entry.device.index} ({reason.value}{detail})"


def _reason_counts(
    request: Request, inventory: Inventory, attempt: str | None
) -> dict[NoFit | None, int]:
    """The number of devices by result; the few reserved devices are evaluated one by one."""
    counts: dict[NoFit | None, int] = {}
    for group in inventory.index.groups.values():
        group.count_reasons(request, counts)
        for device in group.reserved_devices():
            reason = fits(request, inventory.state_of(device), attempt)
            counts[reason] = counts.get(reason, 0) + 1
    return counts


def with_verdicts(
    explanation: Explanation, request: Request, inventory: Inventory, attempt: str | None = None
) -> Explanation:
    """Add the verdicts of single devices, and the largest fit."""
    named = tuple(islice(_nearest_first(request, inventory), VERDICTS_MAX))
    most = largest(request, inventory)
    return replace(
        explanation,
        largest=most,
        largest_fit=_largest_fit(most, inventory),
        devices=tuple(_verdict(request, inventory, device, attempt) for device in named),
        devices_left_out=len(inventory.devices) - len(named),
    )


def _nearest_first(request: Request, inventory: Inventory) -> Iterator[DeviceId]:
    """Feasible devices, the one with most free memory of every row first, then all others."""
    for groups in inventory.index.ranked(request):
        for group in groups:
            yield from group.nearest_first()
    for group in inventory.index.groups.values():
        if not is_feasible(request, group.device_class):
            yield from group.devices


def _verdict(
    request: Request, inventory: Inventory, device: DeviceId, attempt: str | None
) -> DeviceVerdict:
    entry, device_state = inventory.devices[device], inventory.state_of(device)
    healthy = entry.device.health is Health.OK
    return DeviceVerdict(
        host=entry.host,
        device=device,
        index=entry.device.index,
        kind=entry.device.kind,
        model=entry.device.model,
        reason=fits(request, device_state, attempt),
        free_mib=device_state.free_mib,
        free_pct=percent_of(device_state.free_permille),
        detail="" if healthy else entry.device.detail,
        resident=taken(request, inventory, device).used is not None,
        data=inventory.held.text(request.data_sets, entry.host),
    )


# ---------------------------------------------------------------------- text


def _largest_fit(most: Request | None, inventory: Inventory) -> str:
    if most is None:
        return "no device is known"
    classes = (*inventory.index.classes(), *inventory.declared_classes())
    kinds = dict.fromkeys(
        device_class.kind.value for device_class in classes if is_feasible(most, device_class)
    )
    return f"{most.count} × {'/'.join(kinds)} with {most.memory_mib} MiB, 100 %"


#: What a device is that does not serve a request.
REASON_TEXT = {
    NoFit.KIND: "of another kind",
    NoFit.MODEL: "of another model",
    NoFit.MEMORY: "with too little memory",
    NoFit.TOO_LARGE: "larger than allowed",
    NoFit.COMPUTE: "with too little compute free",
    NoFit.DRIVER: "with too old a driver",
    NoFit.RUNTIME: "with too old a runtime",
    NoFit.VERSION: "with another version of a library, driver or runtime",
    NoFit.DATA: "on hosts without that data",
    NoFit.PROGRAM: "on hosts without that program",
    NoFit.DATA_SPACE: "on hosts without space for that data",
    NoFit.EXCLUSIVE_TAKEN: "allocated exclusively",
    NoFit.SHARED_TAKEN: "allocated in shares",
    NoFit.HOST_STALE: "on a silent host",
    NoFit.HOST_LOST: "on a lost host",
    NoFit.DRAINED: "drained",
    NoFit.SUSPECT: "suspect until a clean check",
    NoFit.BAD: "bad",
    NoFit.MIDDLEWARE: "on hosts without that middleware",
    NoFit.ADVISORY: "without a gateway",
    NoFit.SAME_HOST: "fitting, but too few on one host",
    NoFit.RESERVED_FOR_HEAD: "reserved for an earlier request",
}

_SHORTAGE_TEXT = {
    NoFit.KIND: "only {most} is known",
    NoFit.MODEL: "only {most} is known",
    NoFit.MIDDLEWARE: "the hosts of such devices offer {most}",
    NoFit.ADVISORY: "no host of such a device has a gateway",
    NoFit.DRIVER: "driver {most} is the newest",
    NoFit.RUNTIME: "runtime {most} is the newest",
    NoFit.VERSION: "such devices have {most}",
    NoFit.DATA: "{most}",
    NoFit.PROGRAM: "{most}",
    NoFit.DATA_SPACE: "the most on one host is {most}",
    NoFit.MEMORY: "the largest such device has {most}",
    NoFit.TOO_LARGE: "the smallest such device has {most}",
    NoFit.SAME_HOST: "{most} is the most on one host",
    NoFit.COUNT: "only {most} such {devices}",
}


def shortage_text(short: Shortage) -> str:
    """A shortage as text: `the largest such device has 8000 MiB`."""
    devices = "device exists" if short.most == "1" else "devices exist"
    return _SHORTAGE_TEXT[short.what].format(most=short.most, devices=devices)


def _sentence(request: Request, inventory: Inventory, explanation: Explanation) -> str:
    seen = _inventory_text(inventory, explanation)
    if explanation.short is not None:
        infeasible = f"no known capacity can ever serve {request_text(request)}"
        if explanation.largest is None:
            return f"{infeasible}: {seen}"
        short = shortage_text(explanation.short)
        return f"{infeasible}: {short}, the largest fit is {explanation.largest_fit} ({seen})"
    if explanation.devices_fitting >= request.count and NoFit.SAME_HOST not in explanation.counts:
        return f"{request_text(request)} fits now"
    fitting = f"{explanation.devices_fitting} of {request.count} fit now"
    return (
        f"{queue_place(explanation.position)}{request_text(request)} must wait, {fitting} ({seen})"
    )


def queue_place(position: int | None) -> str:
    """The beginning of the sentence about a queued request."""
    return "" if position is None else f"number {position} in the queue: "


def _inventory_text(inventory: Inventory, explanation: Explanation) -> str:
    """Counts of the registered devices: those that fit now, and the others by reason."""
    known = explanation.devices_known
    if not known:
        declared = next(inventory.declared_classes(), None)
        return "no device is known" if declared is None else "no device has registered yet"
    counts = explanation.counts
    parts = [f"{counts[reason]} {REASON_TEXT[reason]}" for reason in _REASONS if reason in counts]
    # SAME_HOST counts the devices that fit
    if explanation.devices_fitting and NoFit.SAME_HOST not in counts:
        parts.insert(0, f"{explanation.devices_fitting} fitting")
    return f"of {known} device{'s' if known > 1 else ''}: {', '.join(parts)}"
