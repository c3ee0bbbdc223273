"""Limits of waiting requests, job records and request rates: by key, by tenant and in total.

A request for something new above a limit is refused for now (EXHAUSTED, with the `Limit` and its
figures as details); the sender waits and repeats it. A request that keeps an existing lease or job
alive, or that continues or ends one, is never refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from corekit.errors import ErrorCode
from corekit.values import Value
from gpu_scheduler.core import events as on
from gpu_scheduler.core.admission.usage_counts import UsageCount
from gpu_scheduler.core.timers import TimerKind
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import changes as to
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.keys import key_of
from gpu_scheduler.verdicts import Limit

#: Requests that read, or ask for something new: each costs one token of each rate.
_CHARGED: frozenset[type[ops.Op[Value]]] = frozenset(
    {
        ops.Attempt,
        ops.Reserve,
        ops.Reopen,
        ops.Explain,
        ops.Orphans,
        ops.RecordOf,
        ops.Records,
        ops.Inventory,
        ops.Leases,
        ops.Queue,
        ops.Workloads,
        ops.ParametersOf,
        ops.Watch,
        ops.Resize,
        ops.Transfer,
    }
)


class Refusal(NamedTuple):
    """The reason why a request is refused for now."""

    limit: Limit
    message: str
    most: float
    #: None: unknown, since it depends on when a counted request or job ends.
    retry_in_s: float | None = None

    def reply(self, tx: Transaction, reply_to: str) -> None:
        details: dict[str, object] = {"limit": self.limit.value, "most": self.most}
        if self.retry_in_s is not None:
            details["retry_in_s"] = self.retry_in_s
        tx.refuse(reply_to, ErrorCode.EXHAUSTED, self.message, details)


def rate_limited(tx: Transaction, event: on.Asked[ops.Op[Value]]) -> bool:
    """Refuse a request above the rate of its sender. Returns True when it was refused."""
    if type(event.op) not in _CHARGED:
        return False
    held, key = tx.state.parameters, key_of(event.session)
    if not key and held.rate_per_s is None:
        return False
    asked = getattr(event.op, "request", None)
    scopes: dict[str, tuple[Limit, str, float | None]] = {
        "all": (Limit.RATE_PER_S, "all keys together send", held.rate_per_s)
    }
    if key:
        scopes[f"key/{key}"] = (Limit.KEY_RATE_PER_S, f"key {key!r} sends", held.key_rate_per_s)
    if key and asked is not None:  # a session without a key is local to this machine
        what = f"tenant {asked.tenant!r} sends"
        scopes[f"tenant/{asked.tenant}"] = Limit.TENANT_RATE_PER_S, what, held.tenant_rate_per_s
    empty = tx.state.rates.take([(name, scope[2]) for name, scope in scopes.items()], tx.at_s)
    if empty is None:
        return False
    limit, what, rate = scopes[empty.scope]
    text = f"{what} more than {rate:g} requests a second (parameter {limit.lower()}); "
    text += f"retry in {empty.in_s:.3f} s"
    Refusal(limit, text, rate or 0.0, empty.in_s).reply(tx, event.reply_to)
    return True


def waiting_refusal(tx: Transaction, waiting: to.Waiting) -> Refusal | None:
    """The refusal of one more waiting request; None when it may wait."""
    record = tx.record_of(waiting.holder)
    key = key_of(waiting.session) if record is None else record.key
    for scope in _scopes(tx, key, waiting.request.tenant):
        most = scope.waiting_max
        if most is not None and scope.usage.waiting >= most:
            what = f"{scope.who} has {most} requests waiting"
            return _full(Limit[f"{scope.prefix}WAITING_MAX"], what, most)
    return None


def records_refusal(tx: Transaction, key: str, tenant: str | None) -> Refusal | None:
    """The refusal of a record for one more live job; None when there is room."""
    for scope in _scopes(tx, key, tenant):
        most = scope.records_max
        if most is not None and scope.usage.live >= most:
            what = f"{scope.who} has {most} records of jobs that have not ended"
            return _full(Limit[f"{scope.prefix}RECORDS_MAX"], what, most)
    return None


def evict_history(tx: Transaction, record: Record) -> None:
    """Evict as many ended records as needed for a new one that `records_refusal` has accepted."""
    for scope in _scopes(tx, record.key, record.tenant):
        if scope.records_max is not None:
            _evict_ended(tx, scope.usage, scope.records_max - 1)


def limits_lowered(tx: Transaction) -> None:
    """Apply lower limits: records of ended jobs are evicted, live jobs stay."""
    held, usage_counts = tx.state.parameters, tx.state.usage_counts
    every = [
        (held.records_max, [usage_counts.total]),
        (held.key_records_max, list(usage_counts.keys.values())),
        (held.tenant_records_max, list(usage_counts.tenants.values())),
    ]
    for most, found in every:
        for usage in found if most is not None else ():
            _evict_ended(tx, usage, most or 0)


def _evict_ended(tx: Transaction, usage: UsageCount, most: int) -> None:
    """Evict records, the first ended first, until `most` records or only live jobs are left."""
    while usage.records > most and usage.ended:
        oldest = next(iter(usage.ended))
        tx.state.timers.cancel(TimerKind.RECORD, oldest)
        tx.forget(oldest)


class _Scope(NamedTuple):
    prefix: str  #: prefix of the names of its limits
    name: str  #: name of the key or tenant
    usage: UsageCount
    waiting_max: int | None
    records_max: int | None

    @property
    def who(self) -> str:
        """The subject of a refusal's message."""
        return f"{self.prefix[:-1].lower()} {self.name!r}" if self.prefix else "the scheduler"


def _scopes(tx: Transaction, key: str, tenant: str | None) -> Iterator[_Scope]:
    held, usage_counts = tx.state.parameters, tx.state.usage_counts
    if key:
        yield _Scope(
            "KEY_", key, usage_counts.of_key(key), held.key_waiting_max, held.key_records_max
        )
    if tenant is not None:
        yield _Scope(
            "TENANT_",
            tenant,
            usage_counts.of_tenant(tenant),
            held.tenant_waiting_max,
            held.tenant_records_max,
        )
    yield _Scope("", "", usage_counts.total, held.waiting_max, held.records_max)


def _full(limit: Limit, what: str, most: int) -> Refusal:
    text = f"{what}, the limit (parameter {limit.lower()}); "
    return Refusal(limit, text + "retry when some have ended, or raise the limit", float(most))
