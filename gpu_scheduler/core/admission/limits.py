"""Limits of waiting requests, job records and request rates: by key, by tenant and in total.

A request for something new above a limit is refused for now (EXHAUSTED, with the `Limit` and its
figures as details); the sender waits and repeats it. A request that keeps an existing lease or job
alive, or that continues or ends one, is never refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from corekit.values import Value
from gpu_scheduler.core.admission.tenants import Accounts
from gpu_scheduler.core.admission.usage_counts import UsageCount
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.keys import key_of
from gpu_scheduler.verdicts import Limit

#: Requests that read, or ask for something new: each costs one token of each rate.
_CHARGED: frozenset[type[ops.Op[Value]]] = frozenset(
    {
        ops.Attempt,
        ops.Reserve,
        ops.Admit,
        ops.Reopen,
        ops.Explain,
        ops.Orphans,
        ops.RecordOf,
        ops.Records,
        ops.Inventory,
        ops.Leases,
        ops.Queue,
        ops.Workloads,
        ops.Demand,
        ops.ParametersOf,
        ops.Watch,
        ops.Resize,
        ops.Transfer,
        ops.KeepWarm,
    }
)


class Refusal(NamedTuple):
    """The reason why a request is refused for now."""

    limit: Limit
    message: str
    most: float
    #: None: unknown, since it depends on when a counted request or job ends.
    retry_in_s: float | None = None

    @property
    def error(self) -> AppError:
        """EXHAUSTED, with the limit and its figures."""
        details: dict[str, object] = {"limit": self.limit.value, "most": self.most}
        if self.retry_in_s is not None:
            details["retry_in_s"] = self.retry_in_s
        return AppError(ErrorCode.EXHAUSTED, self.message, **details)


def check_rate(accounts: Accounts, session: str, op: ops.Op[Value], at_s: float) -> None:
    """Raise EXHAUSTED for a request above the rate of its sender."""
    if type(op) not in _CHARGED:
        return
    held, key = accounts.parameters, key_of(session)
    if not key and held.rate_per_s is None:
        return
    asked = getattr(op, "request", None)
    scopes: dict[str, tuple[Limit, str, float | None]] = {
        "all": (Limit.RATE_PER_S, "all keys together send", held.rate_per_s)
    }
    if key:
        scopes[f"key/{key}"] = (Limit.KEY_RATE_PER_S, f"key {key!r} sends", held.key_rate_per_s)
    if key and asked is not None:  # a session without a key is local to this machine
        what = f"tenant {asked.tenant!r} sends"
        scopes[f"tenant/{asked.tenant}"] = Limit.TENANT_RATE_PER_S, what, held.tenant_rate_per_s
    empty = accounts.rates.take([(name, scope[2]) for name, scope in scopes.items()], at_s)
    if empty is not None:
        limit, what, rate = scopes[empty.scope]
        text = f"{what} more than {rate:g} requests a second (parameter {limit.lower()}); "
        text += f"retry in {empty.in_s:.3f} s"
        raise Refusal(limit, text, rate or 0.0, empty.in_s).error


def waiting_refusal(accounts: Accounts, key: str, tenant: str) -> Refusal | None:
    """The refusal of one more waiting request; None when it may wait."""
    for prefix, who, usage in _scopes(accounts, key, tenant):
        most = getattr(accounts.parameters, f"{prefix}waiting_max")
        if most is not None and usage.waiting >= most:
            return _full(f"{prefix}waiting_max", f"{who} has {most} requests waiting", most)
    return None


def records_refusal(accounts: Accounts, key: str, tenant: str | None) -> Refusal | None:
    """The refusal of a record for one more live job; None when there is room."""
    for prefix, who, usage in _scopes(accounts, key, tenant):
        most = getattr(accounts.parameters, f"{prefix}records_max")
        if most is not None and usage.live >= most:
            what = f"{who} has {most} records of jobs that have not ended"
            return _full(f"{prefix}records_max", what, most)
    return None


def history_before(accounts: Accounts, record: Record) -> Iterator[JobId]:
    """The ended jobs that leave room for a new record that `records_refusal` has accepted.

    The caller forgets each before it takes the next one.
    """
    for prefix, _, usage in _scopes(accounts, record.key, record.tenant):
        most = getattr(accounts.parameters, f"{prefix}records_max")
        if most is not None:
            yield from _ended_above(usage, most - 1)


def history_above_limits(accounts: Accounts) -> Iterator[JobId]:
    """The ended jobs above lower limits, in the same way; live jobs stay."""
    held, usage_counts = accounts.parameters, accounts.usage_counts
    every = [
        (held.records_max, [usage_counts.total]),
        (held.key_records_max, list(usage_counts.keys.values())),
        (held.tenant_records_max, list(usage_counts.tenants.values())),
    ]
    for most, usages in every:
        for usage in usages if most is not None else ():
            yield from _ended_above(usage, most or 0)


def _ended_above(usage: UsageCount, most: int) -> Iterator[JobId]:
    """Ended jobs, the first ended first, until `most` records or only live jobs are left."""
    while usage.records > most and usage.ended:
        yield next(iter(usage.ended))


def _scopes(
    accounts: Accounts, key: str, tenant: str | None
) -> Iterator[tuple[str, str, UsageCount]]:
    """Of key, tenant and all: the prefix of its parameters, its name in messages, its counts."""
    if key:
        yield "key_", f"key {key!r}", accounts.usage_counts.of_key(key)
    if tenant is not None:
        yield "tenant_", f"tenant {tenant!r}", accounts.usage_counts.of_tenant(tenant)
    yield "", "the scheduler", accounts.usage_counts.total


def _full(parameter: str, what: str, most: int) -> Refusal:
    text = f"{what}, the limit (parameter {parameter}); "
    text += "retry when some have ended, or raise the limit"
    return Refusal(Limit[parameter.upper()], text, float(most))
