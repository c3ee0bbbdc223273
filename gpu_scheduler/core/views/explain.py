"""Why a request waits or is refused: counts of reasons first, then one sentence for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from corekit.ids import DeviceId
from corekit.values import replace
from gpu_scheduler.core.inventory.capacity import available_mib, impossible, largest, shortage
from gpu_scheduler.core.inventory.inventory import Inventory
from gpu_scheduler.core.placement.fits import fits, is_feasible, unavailable_reason
from gpu_scheduler.core.placement.placement import place
from gpu_scheduler.model import (
    DeviceVerdict,
    Explanation,
    Health,
    HeldBack,
    HostState,
    NoFit,
    Request,
    Shortage,
)
from gpu_scheduler.request_text import wanted

#: Devices told one by one: an answer stays a page, and cheap however many there are.
VERDICTS_MAX = 64
#: Hosts and devices named in a sentence.
NAMED_MAX = 8
_REASONS = tuple(NoFit)  #: in the order in which they are told


def explain(
    request: Request,
    inventory: Inventory,
    *,
    attempt: str | None = None,
    position: int | None = None,
    own: Request | None = None,
) -> Explanation:
    """Judge all known devices and say what stands in the way.

    `own`: as it was asked, where the quota of its tenant classes `request` want less.
    """
    judged = _judged(request, inventory, attempt)
    fitting = judged.pop(None, 0)
    counts = {reason: judged[reason] for reason in _REASONS if reason in judged}
    if fitting >= request.count > 1 and place(request, inventory, attempt) is None:
        counts[NoFit.SAME_HOST] = fitting
    most, short = None, None
    if impossible(request, inventory):
        most, short = largest(request, inventory), shortage(request, inventory)
    told = Explanation(
        devices_known=len(inventory.devices),
        devices_fitting=fitting,
        counts={reason.value: counts[reason] for reason in _REASONS if reason in counts},
        position=position,
        largest_fit="" if short is None else _largest_fit(most, inventory),
        largest=most,
        short=short,
        sentence="",
    )
    return replace(told, sentence=_sentence(own or request, inventory, told))


def out_of_service(request: Request, inventory: Inventory, told: Explanation) -> Explanation:
    """The same, when too few devices for it are up, healthy and not drained: and which are not."""
    if told.short is not None or available_mib(request, inventory) >= request.memory_mib:
        return told
    named = list(islice(_away(request, inventory), NAMED_MAX + 1))
    which = ", ".join(named[:NAMED_MAX]) + (" and others" if len(named) > NAMED_MAX else "")
    sentence = f"{told.sentence}; out of service: {which}" if named else told.sentence
    return replace(told, held_back=HeldBack.OUT_OF_SERVICE, sentence=sentence)


def _away(request: Request, inventory: Inventory) -> Iterator[str]:
    """Whole hosts, then devices, that could serve it and do not take anybody now."""
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


def _judged(request: Request, inventory: Inventory, attempt: str | None) -> dict[NoFit | None, int]:
    """How many devices give each answer; kept ones, a few at most, are asked one by one."""
    counts: dict[NoFit | None, int] = {}
    for group in inventory.index.groups.values():
        for reason, devices in group.reason_counts(request).items():
            counts[reason] = counts.get(reason, 0) + devices
        for device in group.reserved_devices():
            reason = fits(request, inventory.state_of(device), attempt)
            counts[reason] = counts.get(reason, 0) + 1
    return counts


def with_verdicts(
    told: Explanation, request: Request, inventory: Inventory, attempt: str | None = None
) -> Explanation:
    """The same with what the devices say one by one, and the largest fit."""
    named = tuple(islice(_nearest_first(request, inventory), VERDICTS_MAX))
    most = largest(request, inventory)
    return replace(
        told,
        largest=most,
        largest_fit=_largest_fit(most, inventory),
        devices=tuple(_verdict(request, inventory, device, attempt) for device in named),
        devices_left_out=len(inventory.devices) - len(named),
    )


def _nearest_first(request: Request, inventory: Inventory) -> Iterator[DeviceId]:
    """Devices that could ever serve it, the freest of every row first, then all the others."""
    for groups in inventory.index.ranked(request):
        for group in groups:
            yield from group.in_reach()
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
        kind=device_state.kind,
        model=device_state.model,
        reason=fits(request, device_state, attempt),
        free_mib=device_state.free_mib,
        free_pct=device_state.free_pct,
        detail="" if healthy else entry.device.detail,
    )


# ---------------------------------------------------------------------- in words


def _largest_fit(most: Request | None, inventory: Inventory) -> str:
    if most is None:
        return "no device is known"
    classes = (*inventory.index.groups, *inventory.declared_makes())
    kinds = dict.fromkeys(
        device_class.kind.value for device_class in classes if is_feasible(most, device_class)
    )
    return f"{most.count} × {'/'.join(kinds)} with {most.memory_mib} MiB, 100 %"


_REASON_TEXT = {
    NoFit.KIND: "of another kind",
    NoFit.MODEL: "of another model",
    NoFit.MEMORY: "with too little memory",
    NoFit.TOO_LARGE: "larger than allowed",
    NoFit.COMPUTE: "with too little compute free",
    NoFit.DRIVER: "with too old a driver",
    NoFit.RUNTIME: "with too old a runtime",
    NoFit.EXCLUSIVE_TAKEN: "lent exclusively",
    NoFit.SHARED_TAKEN: "lent in shares",
    NoFit.HOST_STALE: "on a silent host",
    NoFit.HOST_LOST: "on a lost host",
    NoFit.DRAINED: "drained",
    NoFit.SUSPECT: "under suspicion until a clean check",
    NoFit.BAD: "bad",
    NoFit.MIDDLEWARE: "on hosts without that middleware",
    NoFit.ADVISORY: "without a gateway",
    NoFit.SAME_HOST: "fitting, but too few on one host",
    NoFit.RESERVED_FOR_HEAD: "kept for an earlier request",
}

_SHORTAGE_TEXT = {
    NoFit.KIND: "there is only {most}",
    NoFit.MODEL: "there is only {most}",
    NoFit.MIDDLEWARE: "such hosts offer {most}",
    NoFit.ADVISORY: "no such host has a gateway",
    NoFit.DRIVER: "driver {most} is the newest",
    NoFit.RUNTIME: "runtime {most} is the newest",
    NoFit.MEMORY: "{most} is the most of one device",
    NoFit.TOO_LARGE: "{most} is the least of one device",
    NoFit.SAME_HOST: "{most} is the most on one host",
    NoFit.COUNT: "{most} such is all there is",
}


def in_words(short: Shortage) -> str:
    """What there is instead: `8000 MiB is the most of one device`."""
    return _SHORTAGE_TEXT[short.what].format(most=short.most)


def _sentence(request: Request, inventory: Inventory, told: Explanation) -> str:
    seen = _seen(inventory, told)
    if told.short is not None:
        if told.largest is None:
            return f"no known capacity can ever hold {wanted(request)}: {seen}"
        return (
            f"no known capacity can ever hold {wanted(request)}: {in_words(told.short)}, "
            f"the largest fit is {told.largest_fit} ({seen})"
        )
    if told.devices_fitting >= request.count and NoFit.SAME_HOST not in told.counts:
        return f"{wanted(request)} fits now"
    place_ = f"number {told.position} in the queue: " if told.position is not None else ""
    fitting = f"{told.devices_fitting} of {request.count} fit now"
    return f"{place_}{wanted(request)} must wait, {fitting} ({seen})"


def _seen(inventory: Inventory, told: Explanation) -> str:
    """All registered devices, each told once: those that fit now and why the others do not."""
    known = told.devices_known
    if not known:
        declared = next(inventory.declared_makes(), None)
        return "no device is known" if declared is None else "no device has registered yet"
    counts = told.counts
    words = [f"{counts[reason]} {_REASON_TEXT[reason]}" for reason in _REASONS if reason in counts]
    if told.devices_fitting and NoFit.SAME_HOST not in counts:  # it tells of the same devices
        words.insert(0, f"{told.devices_fitting} fitting")
    return f"of {known} device{'s' if known > 1 else ''}: {', '.join(words)}"
