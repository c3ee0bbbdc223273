"""Words and sentences about a fleet's hosts, actions and notices."""

from __future__ import annotations

from collections import Counter

from corekit.units import format_duration
from gpu_scheduler.model import HostState
from orchgpu.fleet.core.model import (
    Action,
    Drain,
    Host,
    Notice,
    NoticeCode,
    Reason,
    Start,
    Stop,
    Values,
    View,
    Withdraw,
)

_WHY = {
    Reason.DEMAND: "waiting requests need {needed} more",
    Reason.MINIMUM: "its minimum is {floor}",
    Reason.BUFFER: "{floor} with its buffer, because jobs come",
    Reason.POLICY: "the policy wants {floor}",
    Reason.IDLE: "without a lease for {idle_s}",
    Reason.NEVER_JOINED: "it has not joined {age_s} after its start",
    Reason.LOST: "the scheduler has lost it",
    Reason.DRAINED: "it is drained and has no lease",
    Reason.NOT_DELIVERED: "{missing} hosts did not come in {waited_s}{refusal}",
    Reason.NOT_NEEDED: "nothing waits for the {missing} missing hosts any more",
    Reason.RETIRED: "no offer has its pool",
    Reason.ABOVE_MAX: "its offer has a max of {max}",
    Reason.TOO_DEAR: "all hosts cost more than {usd_per_h_max} USD/h (usd_per_hour_max)",
}
_NOTICES = {
    NoticeCode.HOUR_NEAR: "the hosts cost {usd_per_h} USD/h, of at most {max} (usd_per_hour_max)",
    NoticeCode.HOUR_FULL: "{offer}: {wanted} hosts wanted, {allowed} within usd_per_hour_max {max}",
    NoticeCode.MONTH_NEAR: "{usd} USD are spent this month, of {max} (usd_per_month_max)",
    NoticeCode.MONTH_FULL: "{usd} USD are spent this month, {max} allowed: no host is started",
    NoticeCode.SKIPPED: "{offer} does not deliver and is left out for {left_s}",
    NoticeCode.POOL_FULL: "{waiting} requests wait for more hosts than the pools may have (max)",
    NoticeCode.NO_OFFER: "{waiting} requests wait for devices that no offer has",
}


def action_text(action: Action) -> str:
    """`a10g: start 2 (3 in all): waiting requests need 2 more`."""
    why = _filled(_WHY[action.reason], action.values)
    match action:
        case Start():
            return f"{action.offer}: start {action.values['more']} ({action.size} in all): {why}"
        case Withdraw():
            return f"{action.offer}: ask for no more hosts: {why}"
        case Drain():
            return f"{action.host}: drain: {why}"
        case Stop():
            return f"{action.host}: stop: {why}"


def notice_text(notice: Notice) -> str:
    return _filled(_NOTICES[notice.code], notice.values)


def _filled(text: str, values: Values) -> str:
    shown = {key: _shown(key, value) for key, value in values.items()}
    refusal = values.get("refusal")
    return text.format(**{**shown, "refusal": f": {refusal}" if refusal else ""})


def _shown(key: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if key.endswith("_s"):
        return format_duration(value)
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def host_states(view: View, pool: str) -> Counter[str]:
    """Hosts of a pool by state, for people."""
    return Counter(state_text(host) for host in view.hosts if host.pool == pool)


def state_text(host: Host) -> str:
    """One word for the state of a host."""
    if host.state is None:
        return "starting"
    if host.leaving or host.state is HostState.DRAINED:
        return "draining"
    if host.state is not HostState.UP:
        return host.state.value.lower()
    return "busy" if host.leases else "idle"
