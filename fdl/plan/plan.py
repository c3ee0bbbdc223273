"""(desired, observed) → Plan: ordered steps without open decisions.

Rules. Only resources that a ledger lists as created by deploy are changed or deleted, and a bucket
only while it is empty; a foreign bucket is used as it is, a foreign function or queue of the same
name is a CONFLICT. The ledger is written before the resources it will own, so an interrupted deploy
still owns its pieces. The record is created last and deleted first: orchestrators never see half a
function. Planning again after all steps were applied gives no steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from fdl.plan.conflicts import EXCLUSIVE, check_collisions
from fdl.plan.desired import DesiredFunction, foreign_owners, ledger_of, owned_keys
from fdl.plan.resources import (
    ORDER,
    Bucket,
    DeployTarget,
    EventRule,
    EventSource,
    FunctionResource,
    Ledger,
    Notification,
    QueueResource,
    Record,
    Resource,
    Role,
    WorkflowRecord,
    fields_of,
    key_of,
)
from fdl.plan.roles import uses_interfaces
from fdl.plan.secrets import secret_changes, secrets_of
from fdl.plan.tags import FUNCTION_TAG

#: The one field that the cloud does not show, so that it is not compared.
_UNOBSERVED = "code_at"
#: Fields whose values are not shown: they may be long, or private.
_OPAQUE = ("variables", "policy", "body", "created", "package", "tags", "put", "pattern")


class Action(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class Step(Value):
    """One change; idempotent."""

    action: Action
    resource: Resource  #: as it must be after the step; for DELETE as it was
    before: Resource | None = None  #: for UPDATE
    #: Of a deleted notification: the others of its bucket that the same write deletes. Each has a
    #: step of its own, which then changes nothing.
    deleted_with: tuple[Notification, ...] = ()

    @property
    def key(self) -> str:
        return key_of(self.resource)

    def changes(self) -> dict[str, tuple[object, object]]:
        """Field → (before, after) of an UPDATE."""
        if self.before is None:
            return {}
        old, new = fields_of(self.before), fields_of(self.resource)
        differing = [name for name in new if name != _UNOBSERVED and old[name] != new[name]]
        return {name: (old[name], new[name]) for name in differing}

    def sentence(self) -> str:
        """One line for people."""
        sign = {Action.CREATE: "+", Action.UPDATE: "~", Action.DELETE: "-"}[self.action]
        changes = [_change(name, *values) for name, values in self.changes().items()]
        changes += secret_changes(self.before, self.resource, deleted=self.action is Action.DELETE)
        detail = ": " + ", ".join(changes) if changes else ""
        return f"{sign} {self.resource.kind} {self.resource.name}{detail}"


def _change(name: str, old: object, new: object) -> str:
    if name == "created" and isinstance(old, list) and isinstance(new, list):
        more, fewer = len(set(new) - set(old)), len(set(old) - set(new))
        return f"list of resources (+{more}, -{fewer})"
    if name not in _OPAQUE:
        return f"{name} {_shown(old)} → {_shown(new)}"
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = sorted(dict.fromkeys((*old, *new)))
        keys = [key for key in names if old.get(key) != new.get(key)]
        return f"{name} ({', '.join(keys)})"
    return name


def _shown(value: object) -> str:
    return '""' if value == "" else str(value)


class Kept(Value):
    """A resource of deploy's that is not deleted, with the reason."""

    key: str
    reason: str


class Plan(Value):
    """The steps, in their order."""

    steps: tuple[Step, ...] = ()
    kept: tuple[Kept, ...] = ()
    notices: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.steps

    def as_json(self) -> dict[str, object]:
        """The plan as data; values of quiet fields are left out."""
        return {
            "changes": len(self.steps),
            "steps": [_step_json(step) for step in self.steps],
            "kept": [{"resource": kept.key, "reason": kept.reason} for kept in self.kept],
            "notices": list(self.notices),
        }

    def text(self) -> str:
        """The plan for people."""
        lines = [f"  {step.sentence()}" for step in self.steps]
        lines += [f"  = {kept.key.replace('/', ' ', 1)} stays: {kept.reason}" for kept in self.kept]
        counts = [sum(step.action is action for step in self.steps) for action in Action]
        total = "{} to create, {} to change, {} to delete".format(*counts)
        return "\n".join([*lines, f"plan: {total}" if self.steps else "plan: nothing to do"])


def _step_json(step: Step) -> dict[str, object]:
    changes = {
        name: None if name in _OPAQUE else {"before": old, "after": new}
        for name, (old, new) in step.changes().items()
    }
    return {
        "action": step.action.value,
        "resource": step.key,
        "kind": step.resource.kind,
        "name": step.resource.name,
        "changes": changes,
        **({"secrets": secrets_of(step.resource)} if secrets_of(step.resource) else {}),
    }


class Observed(Value):
    """The existing resources, as far as a plan needs them."""

    resources: Mapping[str, Resource] = {}  #: key → as it is
    rules: tuple[Notification, ...] = ()  #: every rule of the buckets concerned, foreign ones too
    ledgers: Mapping[str, Ledger] = {}  #: of all functions ever deployed
    queue_urls: Mapping[str, str] = {}  #: of the queues that exist
    filled: tuple[str, ...] = ()  #: buckets that hold objects or old versions
    #: queue → about how many messages it holds, S3's test events aside; empty when not asked
    messages: Mapping[str, int] = {}
    workflows: tuple[WorkflowRecord, ...] = ()  #: all that are deployed


def plan(wanted: Sequence[DesiredFunction], observed: Observed, place: DeployTarget) -> Plan:
    """The steps to `wanted`. Raises CONFLICT for foreign resources of the same name."""
    resources = {key_of(r): r for function in wanted for r in function.resources}
    owned = _owned(observed.ledgers.values())
    state = key_of(Bucket(name=place.state_bucket))
    check_collisions(wanted)
    _check_foreign(wanted, observed)
    _check_steps(wanted, observed)
    _check_regions(wanted, observed, place)
    garbage = _garbage(wanted, observed, resources)
    _check_overlaps(resources, observed, garbage)
    steps = [_upsert(resource, observed, owned) for resource in resources.values()]
    made = sorted((step for step in steps if step is not None), key=lambda step: _rank(step, state))
    first = [step for step in made if step.key == state]
    removals, kept = _deletions(garbage, observed)
    before = [step for step in removals if isinstance(step.resource, Notification)]
    split = next((i for i, s in enumerate(made) if _rank(s, state) >= _NOTIFY), len(made))
    ledgers = tuple(_ledgers(wanted, observed, place, owned))
    return Plan(
        steps=(
            *first,
            *(
                Step(
                    action=Action.UPDATE if each.before else Action.CREATE,
                    resource=each.intent,
                    before=each.before,
                )
                for each in ledgers
                if each.intent != each.before
            ),
            *made[len(first) : split],
            *before,
            *made[max(split, len(first)) :],
            *(step for step in removals if step not in before),
            *(
                Step(action=Action.UPDATE, resource=each.final, before=each.intent)
                for each in ledgers
                if each.final != each.intent
            ),
        ),
        kept=kept,
        notices=(
            *(notice for function in wanted for notice in function.notices),
            *place.lacks.values(),
            *place.notes,
            *([] if place.local else _late_rules(wanted, made)),
        ),
    )


def _late_rules(wanted: Sequence[DesiredFunction], made: Sequence[Step]) -> Iterator[str]:
    """Notices of functions whose early uploads stay lost: orchestrators search for those of
    functions with jobs.

    S3 applies a changed notification configuration within about five minutes (AWS, "Amazon S3
    Event Notifications").
    """
    changed = {step.key for step in made if isinstance(step.resource, Notification)}
    for function in wanted:
        rules = [r for r in function.resources if isinstance(r, Notification)]
        has_jobs = any(isinstance(r, Record) for r in function.resources)
        buckets = sorted({rule.bucket for rule in rules if key_of(rule) in changed})
        if buckets and not has_jobs:
            text = (
                f"{function.name}: S3 applies new rules within about five minutes, and a function"
            )
            where = f"of an upload to {', '.join(buckets)} before then"
            yield f"{text} without jobs gets no event {where}: upload later, or again"


def removal(
    names: Sequence[str], observed: Observed, place: DeployTarget, *, force: bool = False
) -> Plan:
    """The steps that delete everything of these functions but data and foreign resources.

    Raises CONFLICT when a queue of theirs still holds messages, or a workflow that stays has one as
    a step, unless `force`.
    """
    others = _owned(led for name, led in observed.ledgers.items() if name not in names)
    created = _owned(observed.ledgers[n] for n in names if n in observed.ledgers)
    records = [Record(name=n, bucket=place.state_bucket, body={}) for n in names]
    deleted = [key_of(record) for record in records] + [k for k in created if k not in others]
    if not force:
        _check_messages(deleted, observed)
        _check_needed(names, observed)
    steps, kept = _deletions(deleted, observed)
    ledgers = [observed.ledgers[n] for n in names if n in observed.ledgers]
    last = [Step(action=Action.DELETE, resource=ledger) for ledger in ledgers]
    shared = [Kept(key=k, reason="another function uses it") for k in created if k in others]
    return Plan(steps=(*steps, *last), kept=(*kept, *shared))


_NOTIFY = ORDER.index("notification")


def _rank(step: Step, state: str) -> int:
    if step.key == state:
        return -1
    return len(ORDER) if frees_interfaces(step) else ORDER.index(step.resource.kind)


def frees_interfaces(step: Step) -> bool:
    """True for a step that takes away the rights by which Lambda removes network interfaces.

    It is the last one of a plan, and waits until they are gone: without the rights they stay.
    """
    before = step.resource if step.action is Action.DELETE else step.before
    after = None if step.action is Action.DELETE else step.resource
    had = isinstance(before, Role) and uses_interfaces(before)
    return had and not (isinstance(after, Role) and uses_interfaces(after))


def _owned(ledgers: Iterable[Ledger]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(key for ledger in ledgers for key in ledger.created))


def _upsert(resource: Resource, observed: Observed, owned: tuple[str, ...]) -> Step | None:
    found = observed.resources.get(key_of(resource))
    if found is None:
        return Step(action=Action.CREATE, resource=resource)
    if isinstance(resource, Bucket) and isinstance(found, Bucket):
        return _bucket_step(resource, found) if key_of(resource) in owned else None
    if isinstance(resource, Role) and isinstance(found, Role) and resource.path != found.path:
        message = (
            f"role {found.name!r} has the path {found.path}, which IAM cannot change: write `path:"
            f" {found.path}`, or remove the function with `orchgpu rm` first"
        )
        raise AppError(ErrorCode.CONFLICT, message, resource=key_of(found))
    final = resource
    if isinstance(resource, Record):
        final = resource.resolved(observed.queue_urls)
    if final == found:
        return None
    return Step(action=Action.UPDATE, resource=final, before=found)


def _bucket_step(resource: Bucket, found: Bucket) -> Step | None:
    """The change of a bucket that deploy made.

    Versioning stays once it is enabled. Functions may share a bucket: it keeps the tag of the one
    that it was made for.
    """
    shared = {FUNCTION_TAG: found.tags[FUNCTION_TAG]} if FUNCTION_TAG in found.tags else {}
    final = replace(
        resource,
        versioned=resource.versioned or found.versioned,
        region=found.region,
        owner=found.owner,
        tags={**resource.tags, **shared} if FUNCTION_TAG in resource.tags else resource.tags,
    )
    return None if final == found else Step(action=Action.UPDATE, resource=final, before=found)


def _check_regions(
    wanted: Sequence[DesiredFunction], observed: Observed, place: DeployTarget
) -> None:
    """S3 notifies targets of the bucket's own region only. Raises INVALID."""
    for resource in (one for function in wanted for one in function.resources):
        key = key_of(resource)
        found = observed.resources.get(key)
        if not isinstance(resource, Bucket) or not isinstance(found, Bucket):
            continue
        if resource.region and found.region and resource.region != found.region:
            message = (
                f"bucket {found.name!r} is in {found.region}, this deploy is in {place.region}: S3"
                " notifies only functions and queues of its own region; choose another bucket, or"
                f" write `region: {found.region}`"
            )
            raise AppError(ErrorCode.INVALID, message, resource=key)


def _check_foreign(wanted: Sequence[DesiredFunction], observed: Observed) -> None:
    """Resources of one function are its own, or not there. Raises CONFLICT."""
    for function in wanted:
        ledger = observed.ledgers.get(function.name)
        itself = f"{FunctionResource.kind}/{function.name}"
        visits = any(isinstance(one, EventSource) for one in function.resources)
        if ledger is not None and itself in ledger.created and visits != ledger.visits:
            message = f"another function {function.name!r} is deployed, which this would replace:"
            message += f" choose another name, or run `orchgpu rm {function.name}` first"
            raise AppError(ErrorCode.CONFLICT, message, resource=itself)
        other = FunctionResource.kind if function.workflow else WorkflowRecord.kind
        if ledger is not None and f"{other}/{function.name}" in ledger.created:
            message = f"a {other} {function.name!r} is deployed; choose another name, or remove it"
            raise AppError(ErrorCode.CONFLICT, message, resource=f"{other}/{function.name}")
        for resource in function.resources:
            key = key_of(resource)
            if not isinstance(resource, EXCLUSIVE) or key not in observed.resources:
                continue
            if ledger is not None and key in ledger.created:
                continue
            owner = next((n for n, led in observed.ledgers.items() if key in led.created), None)
            whose = f"belongs to {owner}" if owner else "was not made by orchgpu deploy"
            message = (
                f"{resource.kind} {resource.name!r} exists and {whose};"
                " choose another name, or delete it yourself"
            )
            raise AppError(ErrorCode.CONFLICT, message, resource=key)


def _check_steps(wanted: Sequence[DesiredFunction], observed: Observed) -> None:
    """A function is a step of one workflow, or of none. Raises CONFLICT.

    With a deployed workflow that this plan leaves as it is, a file would start two jobs.
    """
    names = [function.name for function in wanted]
    steps = {name for f in wanted if f.workflow is not None for name in f.workflow.steps}
    for workflow in observed.workflows:
        for function in wanted if workflow.name not in names else ():
            rule = f"orchgpu-{function.name}-jobs"
            uploads = any(
                isinstance(r, EventRule) or (isinstance(r, Notification) and r.id == rule)
                for r in function.resources
            )
            if function.name in workflow.steps and (uploads or function.name in steps):
                message = (
                    f"{function.name} is a step of the deployed workflow {workflow.name!r}, which"
                    f" this file does not declare: declare it, or run `orchgpu rm {workflow.name}`"
                )
                raise AppError(ErrorCode.CONFLICT, message, resource=key_of(workflow))


def _check_needed(names: Sequence[str], observed: Observed) -> None:
    """Steps go with their workflow, or after it. Raises CONFLICT."""
    for workflow in observed.workflows:
        needed = [name for name in names if name in workflow.steps]
        if needed and workflow.name not in names:
            message = (
                f"{', '.join(needed)}: a step of the workflow {workflow.name!r}; remove that first"
                f" (`orchgpu rm {workflow.name}`), or use --force"
            )
            raise AppError(ErrorCode.CONFLICT, message, resource=key_of(workflow))


def _check_overlaps(
    resources: Mapping[str, Resource], observed: Observed, garbage: Sequence[str]
) -> None:
    remaining = [
        r for r in observed.rules if key_of(r) not in resources and key_of(r) not in garbage
    ]
    for resource in resources.values():
        if not isinstance(resource, Notification):
            continue
        rival = next((rule for rule in remaining if resource.overlaps(rule)), None)
        if rival is not None:
            message = (
                f"bucket {rival.bucket}: the rule {rival.id!r} (prefix {rival.prefix!r}, suffix"
                f" {rival.suffix!r}) already takes objects that {resource.id!r} needs; S3 allows"
                " one rule per object: change one of the prefixes"
            )
            raise AppError(ErrorCode.CONFLICT, message, resource=key_of(resource))


def _check_messages(deleted: Sequence[str], observed: Observed) -> None:
    """Refuse to lose jobs and dead letters; completion messages do not count. Raises CONFLICT."""
    queues = [r for r in observed.resources.values() if isinstance(r, QueueResource)]
    dead = [queue.dead_letter_arn for queue in queues if queue.dead_letter_arn]
    held = [
        f"{queue.name} ({observed.messages.get(queue.name, 0)})"
        for queue in sorted(queues, key=lambda queue: queue.name)
        if (queue.dead_letter_arn or any(arn.endswith(f":{queue.name}") for arn in dead))
        and key_of(queue) in deleted
        and observed.messages.get(queue.name, 0)
    ]
    if held:
        message = f"these queues still hold messages: {', '.join(held)}"
        advice = "wait until their jobs have ended, or lose them with --force"
        raise AppError(ErrorCode.CONFLICT, f"{message}; {advice}")


def _garbage(
    wanted: Sequence[DesiredFunction], observed: Observed, needed: Mapping[str, Resource]
) -> tuple[str, ...]:
    """Keys that an earlier deploy created for these functions and that are not needed any more."""
    names = {function.name for function in wanted}
    mine = _owned(led for name, led in observed.ledgers.items() if name in names)
    others = _owned(led for name, led in observed.ledgers.items() if name not in names)
    return tuple(key for key in mine if key not in needed and key not in others)


def _deletions(
    keys: Iterable[str], observed: Observed
) -> tuple[tuple[Step, ...], tuple[Kept, ...]]:
    steps, kept = [], []
    found = [observed.resources[key] for key in keys if key in observed.resources]
    for resource in sorted(found, key=_deletion_rank):
        if isinstance(resource, Bucket) and resource.name in observed.filled:
            kept.append(Kept(key=key_of(resource), reason="it holds data"))
        else:
            others = _deleted_with(resource, found)
            steps.append(Step(action=Action.DELETE, resource=resource, deleted_with=others))
    return tuple(steps), tuple(kept)


def _deletion_rank(resource: Resource) -> tuple[bool, int, str]:
    waits = isinstance(resource, Role) and uses_interfaces(resource)
    return waits, -ORDER.index(resource.kind), resource.name


def _deleted_with(resource: Resource, deleted: Sequence[Resource]) -> tuple[Notification, ...]:
    """The other notifications of the same bucket that are deleted too."""
    if not isinstance(resource, Notification):
        return ()
    rules = [rule for rule in deleted if isinstance(rule, Notification)]
    return tuple(r for r in rules if r.bucket == resource.bucket and r.id != resource.id)


@dataclass(frozen=True, slots=True)
class _Ledgers:
    """One function's ledger before the plan, before all its other steps, and after them."""

    before: Ledger | None
    intent: Ledger  #: old and new resources
    final: Ledger


def _ledgers(
    wanted: Sequence[DesiredFunction],
    observed: Observed,
    place: DeployTarget,
    owned: tuple[str, ...],
) -> Iterator[_Ledgers]:
    for function in wanted:
        before = observed.ledgers.get(function.name)
        keys = owned_keys(function, place)
        created = {key for key in keys if key not in observed.resources or key in owned}
        earlier = () if before is None else before.created
        foreign = foreign_owners(function)
        both = {**(before.owners if before is not None else {}), **foreign}
        intent = ledger_of(function.name, place, created.union(earlier), both)
        yield _Ledgers(before, intent, ledger_of(function.name, place, created, foreign))
