"""Parameters of the scheduler that an operator changes at run time: `ssgm set NAME VALUE`.

`Parameters` is one frozen value; `changed` returns the next one. An override is journalled by name
and takes precedence over the configuration of the daemon; the value `default` removes it. The
parameters of a tenant carry its name: `weight.TENANT`, `quota.TENANT.devices`; the tenant `*` means
all tenants without a parameter of their own. The value None (`none`, `off`) removes a limit.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Collection, Mapping
from typing import Annotated, Any

from corekit.errors import AppError, invalid
from corekit.suggest import one_of_known
from corekit.units import parse_duration_s, plain_percent
from corekit.values import Checked, Meta, checked, field, replace
from gpu_scheduler.names import named
from gpu_scheduler.policy_parameters import Given, PolicyParameter, finite

#: The tenant whose quota and weight apply to tenants without their own.
EVERYBODY = "*"
TENANTS_MAX = 1000  #: most tenants with a quota or a weight: one line of the journal holds them all
#: The most warm workers of one device: all of them are published and indexed.
WARM_WORKERS_MAX = 64
#: Of the loads for leases granted ahead of one device, of which there are as many at most.
WARM_LOADS_MAX = 4
WARM_IDLE_S_MAX = 366 * 86400.0
PREEMPT_GRACE_S_MAX = 3600.0
#: A Lambda function runs for at most 900 s: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html
ADVANCE_S_MAX = 900.0
#: The most ended leases, and ended attempts, of one job record: it is one item of a log.
RECORD_PAST_MAX = 32

#: The queue policy of a scheduler without a setting for it.
DEFAULT_POLICY = "fifo"
#: The locations of policies: an entry-point group, a package, and the name of the object in each of
#: its modules (`corekit.plugins.find_plugins`).
POLICY_PLUGINS = ("orchgpu.policies", "gpu_scheduler.core.policies", "POLICY")


#: A length of time; `Length`: of more than nothing.
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Length = Annotated[float, Meta(gt=0, le=1e9)]
Count = Annotated[int, Meta(ge=0, le=10**9)]
Rate = Annotated[float, Meta(ge=1e-3, le=1e9)]
Past = Annotated[int, Meta(ge=0, le=RECORD_PAST_MAX)]
_LIMIT = Meta(ge=0, le=2**53 - 1)


class Quota(Checked):
    """The most that all live leases of one tenant may hold together; None = no limit."""

    devices: Annotated[int, _LIMIT] | None = None
    memory_mib: Annotated[int, _LIMIT] | None = None
    #: Sum of guarantees; a whole device is 100.
    compute_pct: Annotated[int, _LIMIT] | Annotated[float, _LIMIT] | None = None

    def __post_init__(self) -> None:
        checked(self)
        if self.compute_pct is not None and plain_percent(self.compute_pct) != self.compute_pct:
            raise invalid(f"quota compute_pct {self.compute_pct} must have at most one decimal")

    def __str__(self) -> str:
        """As text: `4 devices, 8192 MiB`."""
        units = ((self.devices, "devices"), (self.memory_mib, "MiB"), (self.compute_pct, "%"))
        return ", ".join(f"{limit} {unit}" for limit, unit in units if limit is not None)


#: No limits.
NO_QUOTA = Quota()


class Parameters(Checked):
    """Parameters of the queue, and limits. Validated on construction (raises INVALID)."""

    policy: str = DEFAULT_POLICY
    #: Waiting for this time equals one step of priority: the order is by
    #: `waiting_since − priority × aging_s`. None: a higher priority is always first (and may
    #: starve the lower ones). With one minute the range of priorities is worth 3 h 20 min.
    aging_s: Length | None = 60.0
    #: Grants that may overtake the head of the queue on devices that it could use. Overtaking
    #: keeps devices busy; 64 grants are a few seconds of a busy pool.
    bypass_max: Count = 64
    #: Live leases of the whole scheduler; at the limit every request waits. Ten for each device
    #: of the largest inventory in `benchmarks.scheduler.decision`.
    leases_max: Annotated[int, Meta(ge=1, le=10**9)] = 100_000
    # A request above one of the next nine limits is refused for now (EXHAUSTED,
    # `details.limit`): its sender waits and repeats it. None: no limit. Limits of keys, and the
    # rate of a tenant, do not apply to sessions without a key: they exist only before the first
    # key was created, and only on this machine.
    #: Waiting requests: a hundred for each of 1,000 devices.
    waiting_max: Count | None = 100_000
    #: Per key: the windows of ten functions of an orchestrator (1,000 each); a tenth of all.
    key_waiting_max: Count | None = 10_000
    #: Per tenant, under any key: a fifth of all.
    tenant_waiting_max: Count | None = 20_000
    #: Job records. Records of ended jobs are history: the one that ended first is evicted for a
    #: new record. A new job is refused only when no recorded job has ended.
    records_max: Count | None = 200_000
    #: Per key: as many running or ended jobs as waiting ones; a tenth of all.
    key_records_max: Count | None = 20_000
    tenant_records_max: Count | None = 40_000  #: per tenant: a fifth of all
    #: Ended leases, and ended attempts, that a job record keeps: the newest ones.
    record_leases_max: Past = 8
    record_attempts_max: Past = 8
    #: They leave the record with its next change after this time; None: with the record. A week.
    record_past_s: Seconds | None = 604_800.0
    #: Requests per second that read, or ask for something new (`core/admission/limits.py`). All
    #: together: no limit; the endpoints serve connections in turn.
    rate_per_s: Rate | None = None
    #: Per key: the jobs of 1,000 devices at one second each.
    key_rate_per_s: Rate | None = 1000.0
    tenant_rate_per_s: Rate | None = 2000.0  #: per tenant: two of its keys at their limit
    #: The longest deadline lease, renewals included; a week.
    lease_s_max: Length = 604_800.0
    #: Warm workers that a device keeps without a lease; 0: none.
    warm_workers_max: Annotated[int, Meta(ge=0, le=WARM_WORKERS_MAX)] = 4
    #: The longest time that a warm worker stays without a lease.
    warm_idle_s_max: Annotated[float, Meta(ge=0, le=WARM_IDLE_S_MAX)] = 600.0
    #: The most memory of all warm workers of a device, in percent of the device.
    warm_memory_pct_max: Annotated[int, Meta(ge=0, le=100)] = 50
    #: Workers that load at once on a device for leases granted ahead; 0: none, and the limits above
    #: count the workers that such leases would get.
    warm_loads_max: Annotated[int, Meta(ge=0, le=WARM_LOADS_MAX)] = 1
    #: The time between the notice to a preempted lease and its end.
    preempt_grace_s: Annotated[float, Meta(ge=0, le=PREEMPT_GRACE_S_MAX)] = 10.0
    #: The longest wait of a function for a lease granted ahead; 0: none is granted ahead.
    advance_s_max: Annotated[float, Meta(ge=0, le=ADVANCE_S_MAX)] = 30.0
    #: An ephemeral host is forgotten this long after it is lost: longer than a reboot of its
    #: machine takes. None: it stays, as every other host.
    forget_after_s: Seconds | None = 600.0
    #: Policy `fair`: half-life of past use.
    usage_half_life_s: Length = 3600.0
    #: Policy `fair`: tenant → weight; twice the weight gives twice the share. Absent: 1.
    weights: Mapping[str, float] = field(default_factory=dict)
    #: Tenant → quota. Absent: that of `*`, else no limit.
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    #: POLICY.PARAMETER → value. Absent: the default of the policy.
    policy_parameters: Mapping[str, str | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked(self)
        tenants = (*self.weights, *self.quotas)
        for tenant in tenants:
            named("tenant", tenant)
        if not all(1e-6 <= weight <= 1e6 for weight in self.weights.values()):
            raise invalid("a weight must lie in 0.000001…1000000")
        if len(tenants) > TENANTS_MAX:
            raise invalid(
                f"at most {TENANTS_MAX} tenants may have a quota or a weight of their own"
            )

    def quota(self, tenant: str) -> Quota:
        """The quota of this tenant."""
        if not self.quotas:
            return NO_QUOTA
        return self.quotas.get(tenant) or self.quotas.get(EVERYBODY, NO_QUOTA)

    def weight(self, tenant: str) -> float:
        """The weight of this tenant: the divisor of its share."""
        return self.weights.get(tenant) or self.weights.get(EVERYBODY, 1.0)


#: The types of the parameters that have one value for all tenants and policies.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    name: typing.get_args(hint) or (hint,)
    for name, hint in typing.get_type_hints(Parameters).items()
    if typing.get_origin(hint) is not Mapping
}
_QUOTAS = Quota.__struct_fields__
#: The value that removes an override.
DEFAULT = "default"
_OFF = ("none", "off", "null", "")

#: Every name that `changed` accepts; TENANT is the name of a tenant or `*`.
NAMES = (
    *_PLAIN,
    "policy.POLICY.PARAMETER",
    "weight.TENANT",
    *(f"quota.TENANT.{limit}" for limit in _QUOTAS),
)


def changed(
    parameters: Parameters, name: str, value: Given, policies: Collection[str] | None = None
) -> Parameters:
    """The parameters with one of them changed. Raises INVALID with the name and the valid values.

    `policies` are the installed policies by name; without them, a policy's name and its parameters
    are not checked.
    """
    known_name(name)
    kind, _, rest = name.partition(".")
    tenant, _, limit = rest.rpartition(".")
    try:
        if name == "policy":
            return replace(parameters, policy=_policy(value, policies))
        if types := _PLAIN.get(name, ()):
            read = _integer if int in types else _number
            figure: Any = None if type(None) in types and _is_off(value) else read(value)
            return replace(parameters, **{name: figure})
        if kind == "policy":
            return _with_policy_parameter(parameters, rest, value, policies)
        if kind == "weight":
            return _with_weight(parameters, rest, value)
        return _with_quota(parameters, tenant, limit, value)
    except AppError as error:
        raise invalid(f"parameter {name}: {error.message}") from None


def overridden(
    configured: Parameters,
    overrides: Mapping[str, Given],
    policies: Collection[str] | None = None,
) -> Parameters:
    """The configured parameters with overrides applied. Raises INVALID."""
    parameters = configured
    for name, value in overrides.items():
        parameters = changed(parameters, name, value, policies)
    return parameters


def in_force(
    configured: Parameters, overrides: Mapping[str, Given], policies: Collection[str]
) -> tuple[Parameters, Mapping[str, str]]:
    """The parameters in force, and the reason by name for each ignored override.

    An override that a newer version accepted and that is unknown here (a name, a policy) is not
    an error: the configured value is in force instead.
    """
    parameters, ignored = configured, {}
    for name, value in overrides.items():
        try:
            parameters = changed(parameters, name, value, policies)
        except AppError as error:
            ignored[name] = error.message
    return parameters, ignored


def known_name(name: str) -> None:
    """Raise INVALID, with the closest name, for a name that is not one of `NAMES`."""
    kind, _, rest = name.partition(".")
    tenant, _, limit = rest.rpartition(".")
    tenants_own = (kind == "weight" and rest) or (kind == "quota" and tenant and limit in _QUOTAS)
    policys_own = kind == "policy" and tenant and limit
    if name not in _PLAIN and not tenants_own and not policys_own:
        raise invalid(f"parameter {name!r} is unknown{one_of_known(name, NAMES)}")


def given_of(name: str, text: str) -> Given:
    """A value from text: a length of time, which may have a unit, in seconds; else the text."""
    of_tenant = name.startswith(("weight.", "quota."))
    is_length = name.endswith(("_s", "_s_max")) and not name.endswith("rate_per_s")
    if is_length and not of_tenant and text[:1].isdecimal():
        return parse_duration_s(text)
    return text


def canonical_name(name: str, policies: Collection[str]) -> str:
    """The one spelling of a parameter: `policy.fair-sticky.overdue_s` has the policy's own name."""
    kind, _, rest = name.partition(".")
    policy, _, parameter = rest.rpartition(".")
    found = installed_name(policy, policies) if kind == "policy" else None
    return name if found is None else f"policy.{found}.{parameter}"


def installed_name(name: str, policies: Collection[str]) -> str | None:
    """The name of an installed policy; `least-loaded` is the module `least_loaded`."""
    return next((one for one in (name, name.replace("-", "_")) if one in policies), None)


def declared_parameter(policy: str, parameter: str, policies: Mapping[str, Any]) -> PolicyParameter:
    """The declaration of a policy's parameter. Raises INVALID with the names of those it has."""
    # a policy that only orders declares no parameters
    parameters: tuple[PolicyParameter, ...] = getattr(policies.get(policy), "parameters", ())
    for one in parameters:
        if one.name == parameter:
            return one
    known = ", ".join(one.name for one in parameters) or "none"
    raise invalid(f"policy {policy} has no parameter {parameter!r}; its parameters: {known}")


def _with_weight(parameters: Parameters, tenant: str, value: Given) -> Parameters:
    weights = {name: weight for name, weight in parameters.weights.items() if name != tenant}
    if not _is_off(value):
        weights[tenant] = _number(value)
    return replace(parameters, weights=weights)


def _with_quota(parameters: Parameters, tenant: str, limit: str, value: Given) -> Parameters:
    read = _percent if limit == "compute_pct" else _integer
    figure: Any = None if _is_off(value) else read(value)
    quota = replace(parameters.quotas.get(tenant, NO_QUOTA), **{limit: figure})
    quotas = {name: theirs for name, theirs in parameters.quotas.items() if name != tenant}
    if quota != NO_QUOTA:
        quotas[tenant] = quota
    return replace(parameters, quotas=quotas)


def _with_policy_parameter(
    parameters: Parameters, name: str, value: Given, policies: Collection[str] | None
) -> Parameters:
    policy, _, parameter = name.partition(".")
    policy, read = _policy(policy, policies), value
    if policies is not None:
        known = policies if isinstance(policies, Mapping) else {}
        read = declared_parameter(policy, parameter, known).read(value)
    if read is None:
        raise invalid("it must have a value; `default` removes it")
    given = {**parameters.policy_parameters, f"{policy}.{parameter}": read}
    return replace(parameters, policy_parameters=given)


def _is_off(value: Given) -> bool:
    return value is None or (isinstance(value, str) and value.strip().lower() in _OFF)


def _policy(value: Given, policies: Collection[str] | None) -> str:
    if isinstance(value, str):
        found = value if policies is None else installed_name(value, policies)
        if found is not None:
            return found
    known = f"; installed are {', '.join(policies)}" if policies else ""
    raise invalid(f"{value!r} is not an installed policy{known}")


def _number(value: Given) -> float:
    number = finite(value)
    if math.isnan(number):
        raise invalid(f"{value!r} is not a finite number")
    return number


def _percent(value: Given) -> int | float:
    number = _number(value)
    if plain_percent(number) != number:
        raise invalid(f"{value!r} has more than one decimal")
    return plain_percent(number)


def _integer(value: Given) -> int:
    number = _number(value)
    if number != int(number):
        raise invalid(f"{value!r} is not an integer")
    return int(number)


# ---------------------------------------------------------------------- for people

#: One sentence for each, for people who change it; by the names of `NAMES`.
MEANINGS: Mapping[str, str] = {
    "policy": "the rule that chooses the next request",
    "aging_s": "waiting this long equals one step of priority; none: priorities are absolute",
    "bypass_max": "grants that may overtake the head of the queue on devices that it could use",
    "lease_s_max": "the longest lease of `ssgm`, renewals included",
    "warm_workers_max": "warm workers that a device keeps without a lease; 0: none",
    "warm_idle_s_max": "the longest time that a warm worker stays without a lease",
    "warm_loads_max": "workers that load at once on a device for leases granted ahead; 0: none",
    "warm_memory_pct_max": "the most memory of all warm workers of a device, in percent of it",
    "advance_s_max": "longest wait of a function for a share that is not free yet; 0 = none waits",
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
