"""The cost of an attempt while it runs, as the orchestrator and the function state it. Pure."""

from __future__ import annotations


def spent_usd(
    paid_usd: float,
    running_s: float,
    usd_per_s: float,
    *,
    waited_s: float = 0.0,
    waiting_usd_per_s: float | None = None,
) -> float:
    """Dollars of earlier attempts and of one that is paid for `running_s`.

    For `waited_s` of that it waited for a device that was not free yet, and its function alone is
    paid: `waiting_usd_per_s`; None = as the rest.
    """
    waiting_usd_per_s = usd_per_s if waiting_usd_per_s is None else waiting_usd_per_s
    running_s = max(0.0, running_s)
    waited_s = min(max(0.0, waited_s), running_s)
    return paid_usd + waiting_usd_per_s * waited_s + usd_per_s * (running_s - waited_s)
