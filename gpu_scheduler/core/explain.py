"""Why a request waits or is refused: counts of reasons first, then one sentence for people."""

from __future__ import annotations

from gpu_scheduler.core.fits import Shape, fits
from gpu_scheduler.core.inventory import Inventory
from gpu_scheduler.core.placement import devices_ever, place
from gpu_scheduler.model import Explanation, NoFit, Placement, Request, Sharing


def impossible(request: Request, inventory: Inventory) -> bool:
    """True when no known device, or not enough of them, could ever hold the request."""
    return devices_ever(request, inventory) < request.count


def explain(
    request: Request, inventory: Inventory, *, attempt: str | None = None,
    position: int | None = None,
) -> Explanation:  # fmt: skip
    """Judge every known device once and say what stands in the way."""
    judged = _judged(request, inventory, attempt)
    fitting = judged.get(None, 0)
    counts = {reason: judged[reason] for reason in NoFit if reason in judged}
    if fitting >= request.count > 1 and place(request, inventory, attempt) is None:
        counts[NoFit.SAME_HOST] = fitting
    largest = largest_fit(request, inventory)
    return Explanation(
        devices_known=len(inventory.devices),
        devices_fitting=fitting,
        counts={reason.value: counts[reason] for reason in NoFit if reason in counts},
        position=position,
        largest_fit=largest,
        sentence=_sentence(request, inventory, fitting, counts, position, largest),
    )


def _judged(request: Request, inventory: Inventory, attempt: str | None) -> dict[NoFit | None, int]:
    """How many devices give each answer. Only free memory differs within a family."""
    counts: dict[NoFit | None, int] = {}
    for name, family in inventory.families.items():
        least = fits(request, name._replace(free_mib=family.free_mib[0]), attempt)
        most = fits(request, name._replace(free_mib=family.free_mib[-1]), attempt)
        if least is most:
            counts[most] = counts.get(most, 0) + family.devices
            continue
        for free_mib in family.free_mib:
            shape = name._replace(free_mib=free_mib)
            reason = fits(request, shape, attempt)
            counts[reason] = counts.get(reason, 0) + len(inventory.shapes[shape])
    return counts


def wanted(request: Request) -> str:
    """A request in words: `2 × cuda A100 with 8192 MiB, 50 % compute`."""
    kinds = "/".join(kind.value for kind in request.kinds) or "device"
    models = " " + "/".join(request.models) if request.models else ""
    parts = [f"{request.memory_mib} MiB"] if request.memory_mib else []
    exclusive = ", exclusive" if request.sharing is Sharing.EXCLUSIVE else ""
    if request.compute_guarantee_pct and not exclusive:
        parts.append(f"{request.compute_guarantee_pct} % compute")
    same_host = " on one host" if request.placement is Placement.SAME_HOST else ""
    with_ = " with " + ", ".join(parts) if parts else ""
    return f"{request.count} × {kinds}{models}{with_}{exclusive}{same_host}"


def largest_fit(request: Request, inventory: Inventory) -> str:
    """The most one device of the wanted kinds could ever give; of any kind when none has those."""
    known = [*inventory.families, *inventory.declared_shapes()]
    if not known:
        return "no device is known"
    of_kind = [s for s in known if not request.kinds or s.kind in request.kinds] or known
    best = max(of_kind, key=lambda s: s.memory_mib)
    count = sum(f.devices for name, f in inventory.families.items() if _alike(name, best))
    return f"{max(1, count)} × {best.kind.value} with {best.memory_mib} MiB, 100 %"


def _alike(left: Shape, right: Shape) -> bool:
    return left.kind == right.kind and left.memory_mib == right.memory_mib


_WORDS = {
    NoFit.KIND: "of another kind",
    NoFit.MODEL: "of another model",
    NoFit.MEMORY: "with too little memory",
    NoFit.COMPUTE: "with too little compute free",
    NoFit.DRIVER: "with too old a driver",
    NoFit.RUNTIME: "with too old a runtime",
    NoFit.EXCLUSIVE_TAKEN: "lent exclusively",
    NoFit.SHARED_TAKEN: "lent in shares",
    NoFit.HOST_STALE: "on a silent host",
    NoFit.HOST_LOST: "on a lost host",
    NoFit.DRAINED: "on a drained host",
    NoFit.SUSPECT: "under suspicion until a clean check",
    NoFit.BAD: "bad",
    NoFit.ADVISORY: "without a gateway",
    NoFit.SAME_HOST: "fitting, but too few on one host",
    NoFit.RESERVED_FOR_HEAD: "kept for an earlier request",
}


def _sentence(
    request: Request, inventory: Inventory, fitting: int, counts: dict[NoFit, int],
    position: int | None, largest: str,
) -> str:  # fmt: skip
    seen = _seen(inventory, fitting, counts)
    if impossible(request, inventory):
        return (
            f"no known capacity can ever hold {wanted(request)}; "
            f"the largest fit is {largest} ({seen})"
        )
    if fitting >= request.count and not counts.get(NoFit.SAME_HOST):
        return f"{wanted(request)} fits now"
    place = f"number {position} in the queue: " if position is not None else ""
    return f"{place}{wanted(request)} must wait, {fitting} of {request.count} fit now ({seen})"


def _seen(inventory: Inventory, fitting: int, counts: dict[NoFit, int]) -> str:
    """All registered devices, each told once: those that fit now and why the others do not."""
    known = len(inventory.devices)
    if not known:
        declared = any(inventory.declared_shapes())
        return "no device has registered yet" if declared else "no device is known"
    told = [f"{counts[reason]} {_WORDS[reason]}" for reason in NoFit if reason in counts]
    if fitting and NoFit.SAME_HOST not in counts:  # that reason tells of the same devices
        told.insert(0, f"{fitting} fitting")
    return f"of {known} device{'s' if known > 1 else ''}: {', '.join(told)}"
