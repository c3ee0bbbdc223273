"""The length of a lease: which one a request gets, and whether it may be that long."""

from __future__ import annotations

from corekit.errors import ErrorCode
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import LeaseLifetime, Request


def length_s(request: Request, lease_s: float | None = None) -> float | None:
    """The stated length of a lease for this request; None = not known."""
    return request.lease_s if lease_s is None else lease_s


def length_problem(
    tx: Transaction, hold: LeaseLifetime, asked_s: float | None, elapsed_s: float = 0.0
) -> tuple[ErrorCode, str] | None:
    """Why a lease may not be this long, or go on this long after it lasted for a while."""
    most_s = tx.state.parameters.lease_s_max
    if hold is LeaseLifetime.DEADLINE and asked_s is None:
        return ErrorCode.INVALID, "hold deadline needs lease_s, the seconds until the lease ends"
    if asked_s is not None and elapsed_s + asked_s > most_s:
        text = f"lease_s {asked_s:g} is too long: a lease may last {most_s:g} s in all"
        return ErrorCode.INVALID, f"{text} (parameter lease_s_max)"
    return None
