"""Starts of functions ahead of their device: which functions wait there, and for how long. Pure.

Lambda's own limit of such a function has room for the wait, so that its code keeps the declared
timeout.
"""

from __future__ import annotations

import math

from fdl.model import LAMBDA_TIMEOUT_S_MAX, Function, Job

#: The longest wait of `auto`.
AUTO_S = 30.0


def advance_s(function: Function) -> int:
    """The longest wait of a deployed function for a device that is not free yet; 0 = none."""
    asked_s = asked_advance_s(function)
    if why_not_ahead(function) or (asked_s is None and _is_doubtful(function)):
        return 0
    room_s = LAMBDA_TIMEOUT_S_MAX - lambda_timeout_s(function)
    return max(0, min(math.ceil(AUTO_S if asked_s is None else asked_s), room_s))


def lambda_timeout_s(function: Function) -> int:
    """The declared timeout as far as Lambda has it: `auto` may try there for less."""
    return min(function.function.timeout_s, LAMBDA_TIMEOUT_S_MAX)


def asked_advance_s(function: Function) -> float | None:
    """The wait that the file names; None = `auto`."""
    return (function.job or Job()).advance_s


def why_not_ahead(function: Function) -> str:
    """The reason why a function never starts ahead of its device; "" = it may."""
    if function.gpu is None or not function.queued:
        return "its jobs need no device"
    if function.service is not None:
        return "its service may need a pod first, and no event starts it again"
    if not function.in_lambda:
        return "a run on the host of its device begins with it"
    if function.foreign:
        return "code that our runner does not run cannot wait for its device"
    if function.gpu.request.count > 1:
        return "jobs with several devices wait until all are free"
    return ""


def _is_doubtful(function: Function) -> bool:
    """True where only the user knows whether a wait is good.

    Each function that waits takes one of its reserved runs, which another job may need; and the
    runner inside an image may be of a version that cannot wait.
    """
    own = function.function
    return own.reserved_concurrency is not None or own.runtime == "image"
