"""One sentence for each parameter of the scheduler, for people who change it."""

from __future__ import annotations

from collections.abc import Mapping

#: By name; those of tenants and policies with the placeholders of `parameters.NAMES`.
MEANINGS: Mapping[str, str] = {
    "policy": "the rule that chooses the next request",
    "aging_s": "waiting this long equals one step of priority; none: priorities are absolute",
    "bypass_max": "grants that may overtake the head of the queue on devices that it could use",
    "lease_s_max": "the longest lease of `ssgm`, renewals included",
    "warm_workers_max": "warm workers that a device keeps without a lease; 0: none",
    "warm_idle_s_max": "the longest time that a warm worker stays without a lease",
    "warm_memory_pct_max": "the most memory of all warm workers of a device, in percent of it",
    "preempt_grace_s": "time between the notice to a preempted lease and its end",
    "forget_after_s": "an ephemeral host is forgotten this long after it is LOST; none: it stays",
    "leases_max": "live leases; at this limit every request waits",
    "waiting_max": "waiting requests of all keys together",
    "key_waiting_max": "waiting requests of one key",
    "tenant_waiting_max": "waiting requests of one tenant",
    "records_max": "job records; for a new one the record of the job that ended first is evicted",
    "key_records_max": "job records of one key",
    "tenant_records_max": "job records of one tenant",
    "record_leases_max": "ended leases that a job record keeps, the newest ones",
    "record_attempts_max": "earlier attempts that a job record keeps",
    "record_past_s": "they leave it with its next change after this time; none: with the record",
    "rate_per_s": "requests a second that read or ask for something new, of all keys together",
    "key_rate_per_s": "the same of one key",
    "tenant_rate_per_s": "attempts, reservations and dry runs a second of one tenant",
    "usage_half_life_s": "policy `fair`: past use counts half after this long",
    "weight.TENANT": "policy `fair`: twice the weight, twice the share",
    "quota.TENANT.devices": "most devices of all leases of the tenant together",
    "quota.TENANT.memory_mib": "most memory; an exclusive device counts with its whole memory",
    "quota.TENANT.compute_pct": "most guaranteed compute, with one decimal; a whole device is 100",
}


def meaning_of(name: str) -> str:
    """The sentence of a parameter as `ssgm set` names it; "" for one of a newer version."""
    kind, _, rest = name.partition(".")
    if kind == "weight":
        return MEANINGS["weight.TENANT"]
    if kind == "quota":
        return MEANINGS.get(f"quota.TENANT.{rest.rpartition('.')[2]}", "")
    return MEANINGS.get(name, "")
