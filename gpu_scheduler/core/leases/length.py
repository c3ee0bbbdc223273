"""The requested length of a lease, and the check that a lease may be that long."""

from __future__ import annotations

from corekit.errors import ErrorCode
from gpu_scheduler.model import LeaseLifetime, Request
from gpu_scheduler.parameters import Parameters


def requested_length_s(request: Request, lease_s: float | None) -> float | None:
    """The length of the lease for a request; None = not known."""
    return request.lease_s if lease_s is None else lease_s


def length_problem(
    parameters: Parameters, hold: LeaseLifetime, length_s: float | None, elapsed_s: float = 0.0
) -> tuple[ErrorCode, str] | None:
    """The reason why a deadline lease may not last this long from now; None when it may.

    Bounds on waiting depend on these lengths, so the `elapsed_s` since its start counts.
    """
    if hold is not LeaseLifetime.DEADLINE:
        return None
    if length_s is None:
        return ErrorCode.INVALID, "hold deadline needs lease_s, the seconds until the lease ends"
    most_s = parameters.lease_s_max
    if length_s > 0 and elapsed_s + length_s <= most_s:
        return None
    in_all = f", of which {elapsed_s:.0f} s have elapsed" if elapsed_s else ""
    bound = f"more than 0 and at most {most_s:g} (parameter lease_s_max){in_all}"
    return ErrorCode.INVALID, f"lease_s {length_s:g} must be {bound}"
