"""Plans, deploys and removals of a stack, in their order, over the port `Stacks`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import yaml

from corekit.budget import Budget
from corekit.decode import decode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import Value, replace
from fdl.plan.roles import BOUNDARY_NAME
from orchgpu.infra import quotas
from orchgpu.infra.bundles import Bundle
from orchgpu.infra.costs import Cost, Prices, Rates, idle
from orchgpu.infra.model import (
    VERSION_TAG,
    ChangeSet,
    Kept,
    Output,
    Resource,
    Stack,
    named_stores,
)
from orchgpu.infra.ports import Stacks
from orchgpu.infra.quotas import Quota
from orchgpu.infra.template import Template
from orchgpu.permissions.model import STACK_TAG

PRICES = Path(__file__).parent / "prices.yaml"
#: Parameters of a plan before the packages are built.
UNBUILT = "built by deploy"
#: CloudFormation is asked for the state of a stack so often.
POLL_S = 5.0
#: Resources that are made one after the other; a stack takes about five minutes.
WAIT_S_MAX = 3600.0
#: The parameter by which a stack is one of ours.
_OURS = "SchedulerBundle"
_GROUP = "AWS::AutoScaling::AutoScalingGroup"

#: After a call that changes a stack its status may be the one before for some seconds.
SETTLE_S = 30.0

#: Called as a stack changes: finished resources, all of them, words.
Progress = Callable[[int, int, str], None]


class Lack(Value):
    """A quota below what the stack may need."""

    quota: Quota
    has: float | None  #: None: AWS does not answer for it


class Asked(Value):
    """The stack as it is to be: its name, template and parameters."""

    name: str
    template: Template
    values: Mapping[str, str]
    before: Stack | None  #: None: there is no such stack
    kept: Kept


class Proposed(Value):
    """The difference, with what people decide by."""

    asked: Asked
    change_set: ChangeSet
    costs: tuple[Cost, ...]
    prices: Prices
    lacks: tuple[Lack, ...]

    @property
    def usd_month(self) -> float:
        return sum(cost.usd_month for cost in self.costs)


def asked_of(stacks: Stacks, name: str, template: Template, given: Mapping[str, str]) -> Asked:
    """The stack as it is, and the parameters as they are to be.

    Raises CONFLICT for a stack that is not one of ours, while CloudFormation works on it, and when
    it can only be removed; INVALID for wrong parameters.
    """
    before = stacks.find(name)
    _check_ours(before)
    if before is not None and before.busy:
        text = f"the stack {name} is {before.status}; `orchgpu infra status` follows it"
        raise AppError(ErrorCode.CONFLICT, text)
    if before is not None and before.must_go:
        text = f"the stack {name} is {before.status}: {before.reason or 'its creation failed'}"
        raise AppError(
            ErrorCode.CONFLICT, f"{text}; `orchgpu infra rm` removes it, then deploy again"
        )
    real = before is not None and not before.proposed
    old = before.parameters if before is not None and real else {}
    kept = stacks.kept(name, BOUNDARY_NAME)
    own = {"StateBucket": stacks.place.state_bucket}
    if not old:
        own["Stores"] = _stores(name, kept)
        own["Boundary"] = "kept" if kept.boundary else "make"
    unbuilt = {key: old.get(key, UNBUILT) for key in ("SchedulerBundle", "HostBundle")}
    values = template.values({**unbuilt, **own, **given}, old)
    check_values(values)
    return Asked(
        name=name,
        template=template,
        values=values,
        before=before if real else None,
        kept=kept,
    )


def _check_ours(stack: Stack | None) -> None:
    """Raise CONFLICT for a stack of something else: a deploy would remove its resources."""
    if stack is not None and not stack.proposed and _OURS not in stack.parameters:
        text = f"the stack {stack.name} was not made by orchgpu; give another --stack"
        raise AppError(ErrorCode.CONFLICT, text)


def _check_stores(name: str, kept: Kept) -> None:
    """Raise CONFLICT for stores of something else that have the names of this stack's."""
    if kept.foreign:
        there = ", ".join(f"{kind} {named_stores(name)[kind]}" for kind in kept.foreign)
        text = f"{there}: not of an earlier stack {name}, by the tag {STACK_TAG}"
        raise AppError(ErrorCode.CONFLICT, f"{text}; give another --stack, or tag it if it is")


def _stores(name: str, kept: Kept) -> str:
    """Whether table, secret and logs of an earlier stack are used again: all of them, or none."""
    _check_stores(name, kept)
    if kept.stores and len(kept.stores) != len(named_stores(name)):
        there = ", ".join(f"{kind} {named_stores(name)[kind]}" for kind in kept.stores)
        missing = ", ".join(kind for kind in named_stores(name) if kind not in kept.stores)
        text = f"of an earlier stack {name} there is {there}, but its {missing} is gone"
        raise AppError(ErrorCode.CONFLICT, f"{text}; `orchgpu infra rm --all` removes the rest")
    return "kept" if kept.stores else "make"


def check_values(values: Mapping[str, str]) -> None:
    """Raise INVALID for parameters that contradict each other, or that the fleet cannot use."""
    network = [name for name in ("Vpc", "SubnetA", "SubnetB") if values[name]]
    wanted = ("Vpc", "SubnetA") if values["Machines"] == "one" else ("Vpc", "SubnetA", "SubnetB")
    if network and (missing := [name for name in wanted if name not in network]):
        raise invalid(f"an existing network also needs --set {' and --set '.join(missing)}")
    if int(values["GpuMin"]) > int(values["GpuMax"]):
        raise invalid(f"GpuMin {values['GpuMin']} must not exceed GpuMax {values['GpuMax']}")
    known = read_prices().gpus
    for name in ("GpuType", "GpuTypeElse"):
        if (kind := values[name]) not in known:
            text = f"--set {name}={kind}: the fleet does not know the devices of this type"
            raise invalid(f"{text}; known: {', '.join(known)}")


def proposed(stacks: Stacks, asked: Asked) -> Proposed:
    """The change set of what was asked for, its price and its quotas."""
    budget, prices = Budget(), read_prices()
    rates = Rates(
        beats=1 / budget.leader_beat_s,
        polls=1 / budget.standby_poll_s,
        registry_reads=1 / budget.registry_poll_s,
    )
    resources = asked.template.resources(asked.values)
    costs = tuple(idle(resources, asked.values, prices, rates))
    lacking = tuple(lacks(stacks, asked.values))
    tags = {VERSION_TAG: own_version()}  # last: a change set of a plan that fails would stay
    change_set = stacks.propose(asked.name, asked.template.text, asked.values, tags)
    return Proposed(asked=asked, change_set=change_set, costs=costs, prices=prices, lacks=lacking)


def lacks(stacks: Stacks, values: Mapping[str, str]) -> Iterator[Lack]:
    """Quotas that are smaller than needed, or unknown."""
    for quota in quotas.needed(values):
        has = stacks.quota(quota)
        if has is None or has < quota.needed:
            yield Lack(quota=quota, has=has)


def read_prices() -> Prices:
    found: Prices = decode(Prices, yaml.safe_load(PRICES.read_text()), PRICES.name)
    return found


def with_bundles(stacks: Stacks, asked: Asked, scheduler: Bundle, host: Bundle) -> Asked:
    """The same with packages, which are in the state bucket then."""
    keys = {}
    for parameter, bundle in (("SchedulerBundle", scheduler), ("HostBundle", host)):
        key = bundle.key(asked.name)
        if not stacks.has_object(key):
            stacks.put_object(key, bundle.file)
        keys[parameter] = key
    return replace(asked, values={**asked.values, **keys})


def execute(
    stacks: Stacks, found: Proposed, progress: Progress, sleep: Callable[[float], None] = time.sleep
) -> Stack:
    """Do a change set and wait for its end; the stack then. Raises CONFLICT when it failed."""
    name = found.asked.name
    before = stacks.find(name)
    stacks.execute(name, found.change_set)
    count = len(found.asked.template.resources(found.asked.values))
    stack = _waited(stacks, name, before, count, progress, sleep)
    if stack is None or stack.failed or stack.proposed:
        reasons = "; ".join(stacks.failures(name)) or (stack.reason if stack else "it is gone")
        status = stack.status if stack else "deleted"
        text = f"the stack {name} is {status}: {reasons}"
        raise AppError(ErrorCode.CONFLICT, text)
    return stack


def remove(
    stacks: Stacks,
    name: str,
    progress: Progress,
    *,
    everything: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> tuple[str, ...]:
    """Delete a stack, and with `everything` its stores and packages; what was kept, for people.

    Raises CONFLICT when it is not one of ours, while functions are in its network, and when
    CloudFormation cannot delete it. An absent stack is accepted: what it
    has left behind may still be removed.
    """
    stack = stacks.find(name)
    _check_ours(stack)
    if everything:  # those that are in the stack are its own
        _check_stores(name, stacks.kept(name, BOUNDARY_NAME))
    if stack is not None:
        resources = stacks.resources(name)
        _check_unused(stacks, name, resources)
        stacks.release_machines([one.physical for one in resources if one.kind == _GROUP])
        stacks.delete(name)
        last = _waited(stacks, name, stack, len(resources), progress, sleep)
        if last is not None:
            reasons = "; ".join(stacks.failures(name)) or last.reason
            raise AppError(ErrorCode.CONFLICT, f"the stack {name} is {last.status}: {reasons}")
    left = stacks.kept(name, BOUNDARY_NAME)
    names = named_stores(name)
    if not everything:
        return tuple(f"{kind} {names[kind]}" for kind in left.stores)
    for kind in left.stores:
        stacks.remove_store(kind, names[kind])
    stacks.remove_objects(f"infra/{name}/")
    return ()


def _check_unused(stacks: Stacks, name: str, resources: Sequence[Resource]) -> None:
    """Raise CONFLICT while functions are in the network: its group could not be deleted."""
    for one in resources:
        if one.logical == Output.FUNCTION_GROUP and one.physical:
            count = stacks.interfaces_in(one.physical)
            if count:
                text = f"{count} network interfaces of functions use the group {one.physical}"
                advice = (
                    "`orchgpu rm` removes functions; Lambda keeps their interfaces for up to"
                    " 20 minutes, so wait, then repeat"
                )
                raise AppError(ErrorCode.CONFLICT, f"{text} of the stack {name}; {advice}")


def _waited(
    stacks: Stacks,
    name: str,
    before: Stack | None,
    count: int,
    progress: Progress,
    sleep: Callable[[float], None],
) -> Stack | None:
    """Follow an operation to its end; None: the stack is gone. Raises TIMEOUT.

    `before`: the stack when the operation was asked for.
    """
    waited_s, began = 0.0, False
    while True:
        stack = stacks.find(name)
        if stack is None:
            return None
        began = began or before is None or stack.status != before.status
        if not stack.busy and (began or waited_s >= SETTLE_S):
            return stack
        if stack.busy:
            resources = stacks.resources(name)
            deleting = stack.status.startswith("DELETE")
            progress(_done(resources, count, deleting=deleting), count, _now(resources))
        if waited_s > WAIT_S_MAX:
            text = f"the stack {name} is still {stack.status} after an hour"
            raise AppError(ErrorCode.TIMEOUT, f"{text}; `orchgpu infra status` follows it")
        sleep(POLL_S)
        waited_s += POLL_S


def _done(resources: Sequence[Resource], count: int, *, deleting: bool) -> int:
    if deleting:
        return max(0, count - sum(one.status != "DELETE_COMPLETE" for one in resources))
    return min(count, sum(one.status.endswith("_COMPLETE") for one in resources))


def _now(resources: Sequence[Resource]) -> str:
    moving = [one.logical for one in resources if one.status.endswith("_IN_PROGRESS")]
    return f"  {', '.join(moving[:3])}" if moving else ""


def own_version() -> str:
    return version("orchgpu")
