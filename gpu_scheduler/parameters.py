"""What an operator may change while the scheduler runs: `ssgm set NAME VALUE`.

`Parameters` is one frozen value; `changed` gives the next one. What was set is journalled by name
and goes before what the daemon was configured with; the value `default` takes it back. Names of
tenants' own parameters carry the tenant: `weight.TENANT`, `quota.TENANT.devices`; the tenant `*`
stands for all that have none of their own. The value None (`none`, `off`) takes a limit away.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from corekit.errors import AppError, invalid
from corekit.values import Value, field, replace
from gpu_scheduler.names import named

#: The tenant whose quota and weight everybody has who has none of their own.
EVERYBODY = "*"
TENANTS_MAX = 1000  #: with a quota or a weight of their own: the value is one line of the journal


class str(StrEnum):
    """Who goes next; `gpu_scheduler/core/policies` has a file for each."""

    FIFO = "fifo"  #: by place; the head is passed `bypass_max` times at most
    BACKFILL = "backfill"  #: and then only by what ends before the head can start
    FAIR = "fair"  #: by tenant, the one with the least weighted dominant share first


class Quota(Value):
    """The most that all live leases of one tenant may hold together; None = no limit."""

    devices: int | None = None
    memory_mib: int | None = None
    compute_pct: int | None = None  #: sum of guarantees; a whole device is 100

    def __post_init__(self) -> None:
        for limit in self.__struct_fields__:
            value = getattr(self, limit)
            if value is not None and not 0 <= value < 2**53:
                raise invalid(f"quota {limit} {value} must be 0 or more")

    def __str__(self) -> str:
        """In words: `4 devices, 8192 MiB`."""
        units = ((self.devices, "devices"), (self.memory_mib, "MiB"), (self.compute_pct, "%"))
        return ", ".join(f"{limit} {unit}" for limit, unit in units if limit is not None)


#: Nothing is limited.
NO_QUOTA = Quota()


class Parameters(Value):
    """Rules of the queue and limits. Validated on construction (raises INVALID)."""

    policy: str = str.FIFO
    #: Waiting this long outweighs one step of priority: the order is by
    #: `waiting_since − priority × aging_s`. None: a higher priority always goes first (and may
    #: starve the lower ones). A minute makes the whole range of priorities worth 3 h 20 min.
    aging_s: float | None = 60.0
    #: Grants that may pass the head of the queue on devices it could use. Passing keeps devices
    #: busy; 64 is a few seconds of a busy pool, far below any job's patience.
    bypass_max: int = 64
    #: Live leases of the whole scheduler; above it every request waits. Ten times the largest
    #: inventory it is measured at.
    leases_max: int = 100_000
    # Of the next nine a request above one is refused for now (EXHAUSTED, `details.limit`): its
    # sender waits and asks again. A waiting job with the longest block and handle takes 25 KiB of
    # memory. None: no limit. Those of keys, and a tenant's rate, do not count sessions without a
    # key: there are some only while no key was made, and only this machine is served then.
    #: Waiting requests. 2.5 GiB at worst; a hundred waiting for each of 1,000 devices.
    waiting_max: int | None = 100_000
    #: Of one key: ten functions' windows of an orchestrator (1,000 each); a tenth of all.
    key_waiting_max: int | None = 10_000
    #: Of one tenant, whatever keys ask for it: a fifth of all.
    tenant_waiting_max: int | None = 20_000
    #: Job records. Ended ones are history: the oldest is forgotten for a new one, and only when all
    #: are of jobs that have not ended, a new job is refused.
    records_max: int | None = 200_000
    #: Of one key: as many jobs run or are remembered as wait; a tenth of all.
    key_records_max: int | None = 20_000
    tenant_records_max: int | None = 40_000  #: of one tenant: a fifth of all
    #: Requests a second that look or ask for something new (`core/limits.py`). Of all together: no
    #: limit, the machine's own speed is one, and the doors take every connection's in turns.
    rate_per_s: float | None = None
    #: Of one key: a tenth of what two cores decide; 1,000 devices whose jobs last a second.
    key_rate_per_s: float | None = 1000.0
    tenant_rate_per_s: float | None = 2000.0  #: of one tenant: two keys of it at their fastest
    #: A deadline lease may be this long; a week.
    lease_s_max: float = 604_800.0
    #: Policy `fair`: what a tenant used counts half after this long.
    usage_half_life_s: float = 3600.0
    #: Policy `fair`: tenant → weight; twice the weight, twice the share. Absent: 1.
    weights: Mapping[str, float] = field(default_factory=dict)
    #: Tenant → quota. Absent: that of `*`, else no limit.
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    def __post_init__(self) -> None:
        lengths_s = (self.aging_s, self.lease_s_max, self.usage_half_life_s)
        tenants = (*self.weights, *self.quotas)
        checks = (
            (
                all(s is None or 0 < s <= 1e9 for s in lengths_s),
                "aging_s, lease_s_max, usage_half_life_s must be more than 0 seconds, and finite",
            ),
            (0 <= self.bypass_max <= 10**9, "bypass_max must be 0 or more"),
            (1 <= self.leases_max <= 10**9, "leases_max must be 1 or more"),
            *(
                (most is None or 0 <= most <= 10**9, f"{name} must be 0 or more")
                for name, most in ((name, getattr(self, name)) for name in _COUNTS)
            ),
            *(
                (rate is None or 1e-3 <= rate <= 1e9, f"{name} must lie in 0.001…1000000000")
                for name, rate in ((name, getattr(self, name)) for name in _RATES)
            ),
            (
                all(1e-6 <= weight <= 1e6 for weight in self.weights.values()),
                "a weight must lie in 0.000001…1000000",
            ),
            (
                len(tenants) <= TENANTS_MAX,
                f"at most {TENANTS_MAX} tenants have a quota or a weight of their own",
            ),
        )
        for tenant in tenants:
            named("tenant", tenant)
        for holds, message in checks:
            if not holds:
                raise invalid(message)

    def quota(self, tenant: str) -> Quota:
        """What limits this tenant."""
        if not self.quotas:
            return NO_QUOTA
        return self.quotas.get(tenant) or self.quotas.get(EVERYBODY, NO_QUOTA)

    def weight(self, tenant: str) -> float:
        """What this tenant's use is divided by."""
        return self.weights.get(tenant) or self.weights.get(EVERYBODY, 1.0)


#: What a value may be on the wire or on a command line.
Given = str | float | int | bool | None

_COUNTS = (
    "waiting_max",
    "key_waiting_max",
    "tenant_waiting_max",
    "records_max",
    "key_records_max",
    "tenant_records_max",
)
_RATES = ("rate_per_s", "key_rate_per_s", "tenant_rate_per_s")
_INTEGERS = ("bypass_max", "leases_max", *_COUNTS)
_LENGTHS_S = ("aging_s", "lease_s_max", "usage_half_life_s")
_NUMBERS = (*_LENGTHS_S, *_RATES)
_MAY_BE_OFF = frozenset({"aging_s", *_COUNTS, *_RATES})
_PLAIN = ("policy", *_LENGTHS_S, *_INTEGERS, *_RATES)
_QUOTAS = Quota.__struct_fields__
#: The word that takes an override back.
DEFAULT = "default"
_OFF = ("none", "off", "null", "")

#: Every name that `changed` knows; TENANT stands for a tenant or `*`.
NAMES = (*_PLAIN, "weight.TENANT", *(f"quota.TENANT.{limit}" for limit in _QUOTAS))


def changed(parameters: Parameters, name: str, value: Given) -> Parameters:
    """The parameters with one of them changed. Raises INVALID naming it and what it may be."""
    known_name(name)
    kind, _, rest = name.partition(".")
    tenant, _, limit = rest.rpartition(".")
    try:
        if name == "policy":
            return replace(parameters, policy=_policy(value))
        if name in _INTEGERS or name in _NUMBERS:
            read = _integer if name in _INTEGERS else _number
            figure: Any = None if name in _MAY_BE_OFF and _is_off(value) else read(value)
            return replace(parameters, **{name: figure})
        if kind == "weight":
            return _with_weight(parameters, rest, value)
        return _with_quota(parameters, tenant, limit, value)
    except AppError as error:
        raise invalid(f"parameter {name}: {error.message}") from None


def overridden(configured: Parameters, overrides: Mapping[str, Given]) -> Parameters:
    """The configured parameters with others over them. Raises INVALID."""
    parameters = configured
    for name, value in overrides.items():
        parameters = changed(parameters, name, value)
    return parameters


def in_force(
    configured: Parameters, overrides: Mapping[str, Given]
) -> tuple[Parameters, Mapping[str, str]]:
    """What holds: the configured parameters with those set since; and what is ignored, and why.

    An override that a newer version accepted and this one does not know (a name, a policy) is not
    an error: what was configured holds in its place.
    """
    parameters, ignored = configured, {}
    for name, value in overrides.items():
        try:
            parameters = changed(parameters, name, value)
        except AppError as error:
            ignored[name] = error.message
    return parameters, ignored


def known_name(name: str) -> None:
    """Raises INVALID, with a guess, for a name that is none of `NAMES`."""
    kind, _, rest = name.partition(".")
    tenant, _, limit = rest.rpartition(".")
    tenants_own = (kind == "weight" and rest) or (kind == "quota" and tenant and limit in _QUOTAS)
    if name not in _PLAIN and not tenants_own:
        close = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(NAMES)}"
        raise invalid(f"parameter {name!r} is unknown; {hint}")


def _with_weight(parameters: Parameters, tenant: str, value: Given) -> Parameters:
    weights = {name: weight for name, weight in parameters.weights.items() if name != tenant}
    if not _is_off(value):
        weights[tenant] = _number(value)
    return replace(parameters, weights=weights)


def _with_quota(parameters: Parameters, tenant: str, limit: str, value: Given) -> Parameters:
    quota = replace(
        parameters.quotas.get(tenant, NO_QUOTA),
        **{limit: None if _is_off(value) else _integer(value)},
    )
    quotas = {name: theirs for name, theirs in parameters.quotas.items() if name != tenant}
    if quota != NO_QUOTA:
        quotas[tenant] = quota
    return replace(parameters, quotas=quotas)


def _is_off(value: Given) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _OFF)


def _policy(value: Given) -> str:
    try:
        return str(str(value))
    except ValueError:
        known = ", ".join(policy.value for policy in str)
        raise invalid(f"{value!r} is no policy; known are {known}") from None


def _number(value: Given) -> float:
    try:
        number = math.nan if isinstance(value, bool) or value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise invalid(f"{value!r} is no finite number")
    return number


def _integer(value: Given) -> int:
    number = _number(value)
    if number != int(number):
        raise invalid(f"{value!r} is no whole number")
    return int(number)
