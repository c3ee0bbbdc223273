"""A request as text for people."""

from __future__ import annotations

from corekit.units import format_percent
from gpu_scheduler.data_names import short
from gpu_scheduler.model import Placement, Request, Sharing


def request_text(request: Request) -> str:
    """A request as text: `2 × cuda A100 with 8192 MiB, 50 % compute`."""
    if not request.count:
        return "no device"
    kinds = "/".join(request.kinds) or "device"
    models = " " + "/".join(request.models) if request.models else ""
    parts = [f"{request.memory_mib} MiB"] if request.memory_mib else []
    if request.memory_pct:
        parts.append(f"{format_percent(request.memory_pct)} memory")
    parts.extend(f"data set {one.name}" for one in request.data_sets)
    exclusive = ", exclusive" if request.sharing is Sharing.EXCLUSIVE else ""
    max_mib = request.memory_max_mib
    size = "" if max_mib is None else f" of at most {max_mib} MiB"
    if request.compute_guarantee_pct and not exclusive:
        parts.append(f"{format_percent(request.compute_guarantee_pct)} compute")
    if request.middleware:
        parts.append(f"middleware {request.middleware}")
    if request.min_driver:
        parts.append(f"driver {request.min_driver}")
    if request.min_runtime:
        parts.append(f"runtime {request.min_runtime}")
    parts.extend(request.requires)
    parts.extend(f"data {short(one)}" for one in request.data)
    parts.extend(f"program {short(one)}" for one in request.programs)
    same_host = " on one host" if request.placement is Placement.SAME_HOST else ""
    with_ = " with " + ", ".join(parts) if parts else ""
    return f"{request.count} × {kinds}{models}{size}{with_}{exclusive}{same_host}"
