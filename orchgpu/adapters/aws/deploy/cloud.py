"""`Cloud` over plain boto3: AWS, LocalStack, moto and the embedded cloud alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol, assert_never

from contract.aws.clients import expect_owner, patience
from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from fdl.model import Function
from fdl.plan import resources as kinds
from fdl.plan.desired import buckets_of
from fdl.plan.facts import Facts
from fdl.plan.functions import owners_of
from fdl.plan.plan import Action, Observed, Step, frees_interfaces
from fdl.plan.resources import QUEUE_URL, DeployTarget, Resource, key_of
from orchgpu.adapters.aws.api import Shape
from orchgpu.adapters.aws.deploy.calls import EventSources, Schedules
from orchgpu.adapters.aws.deploy.events import EventRules, Topics
from orchgpu.adapters.aws.deploy.facts import FactsReader, data_buckets
from orchgpu.adapters.aws.deploy.functions import (
    FunctionUrls,
    InvokeConfigs,
    LambdaFunctions,
    LogRetentions,
    Permissions,
)
from orchgpu.adapters.aws.deploy.queues import SqsQueues
from orchgpu.adapters.aws.deploy.revisions import Locks, Revisions
from orchgpu.adapters.aws.deploy.roles import IamRoles, Interfaces
from orchgpu.adapters.aws.deploy.storage import (
    Buckets,
    Expiries,
    Notifications,
    StateObjects,
)
from orchgpu.adapters.aws.endpoints import Clients, ClientSettings, place_of
from orchgpu.deploy.ports import ScheduleState
from orchgpu.deploy.revisions import Revision

#: An interactive command: a dead endpoint is reported within seconds.
_PATIENCE = patience(tries=3, connect_s=5, read_s=60)


class QueueParts(Protocol):
    """Queues as deploy makes them: SQS, or those of another cloud."""

    def url(self, name: str) -> str | None: ...
    def observe(self, name: str) -> tuple[kinds.QueueResource, str] | None: ...
    def messages(self, name: str) -> int: ...
    def put(self, queue: kinds.QueueResource) -> None: ...
    def delete(self, name: str) -> None: ...


class RuleParts(Protocol):
    """Rules by which new objects of a bucket reach queues and functions."""

    def observe(self, bucket: str) -> tuple[kinds.Notification, ...]: ...
    def put(self, rule: kinds.Notification) -> None: ...
    def delete(self, rule: kinds.Notification, *along: kinds.Notification) -> None: ...


class Parts(Value):
    """One adapter per service."""

    buckets: Buckets
    expiries: Expiries
    notifications: RuleParts
    revisions: Revisions
    retentions: LogRetentions
    roles: IamRoles
    interfaces: Interfaces
    reader: FactsReader
    state: StateObjects
    queues: QueueParts
    functions: LambdaFunctions
    configs: InvokeConfigs
    permissions: Permissions
    urls: FunctionUrls
    sources: EventSources
    schedules: Schedules
    topics: Topics
    rules: EventRules


class AwsCloud:
    """One account and region. `settings` maps a service to how its client is made."""

    def __init__(
        self, settings: Callable[[str], ClientSettings], patience: Shape | None = None
    ) -> None:
        """`patience`: botocore's timeouts and retries. [default: those of a waiting person]"""
        #: The client of a service, closed with this cloud.
        self.client = Clients(settings, settled=True, **(patience or _PATIENCE))
        self._foreign: dict[str, str] = {}  #: bucket → account, of those of other accounts

    @cached_property
    def place(self) -> DeployTarget:
        place = place_of(self.client)
        expect_owner(self.client("s3"), lambda bucket: self._foreign.get(bucket, place.account))
        return place

    def facts(self, functions: Sequence[Function]) -> Facts:
        self._foreign.update(
            {name: owner for one in functions for name, owner in owners_of(one).items()}
        )
        own = {name for one in functions for name in buckets_of(one)}
        for bucket in data_buckets(functions):
            if bucket not in own:
                self._foreign.setdefault(bucket, "")  # of any account: its content is pinned
        return self._parts.reader.facts(functions)

    def observe(
        self, names: Sequence[str], wanted: Sequence[Resource], *, count: bool = False
    ) -> Observed:
        reading = _Reading(self._parts, self.place, self._foreign, count=count)
        return reading.observe(names, wanted)

    def apply(
        self, step: Step, packages: Mapping[str, bytes], notice: Callable[[str], None]
    ) -> None:
        if frees_interfaces(step):
            role = step.before or step.resource
            assert isinstance(role, kinds.Role)
            self._parts.interfaces.wait_gone(role, notice)
        if step.action is Action.DELETE:
            self._delete(step)
        else:
            self._put(step, packages)

    def schedules(self, function: str | None = None) -> tuple[ScheduleState, ...]:
        ledgers = self._parts.state.ledgers()
        meant = [one for name, one in ledgers.items() if function in (None, name)]
        owned = [(one.name, *key.split("/", 1)) for one in meant for key in one.created]
        names = {name: function for function, kind, name in owned if kind == kinds.Schedule.kind}
        found = ((names[name], self._parts.schedules.state(name)) for name in sorted(names))
        return tuple(
            ScheduleState(function=function, schedule=schedule, paused=paused)
            for function, (schedule, paused) in found
            if schedule is not None and schedule.put
        )

    def pause_schedule(self, name: str, *, paused: bool) -> None:
        self._parts.schedules.pause(name, paused=paused)

    def warm(self, name: str) -> None:
        self._parts.functions.warm(name)

    def revisions(self, name: str) -> tuple[Revision, ...]:
        return self._parts.revisions.of(name)

    def kept_package(self, revision: Revision) -> bytes:
        return self._parts.revisions.package(revision)

    def keep(self, revision: Revision, data: bytes | None) -> Revision:
        return self._parts.revisions.write(revision, data)

    def forget_revisions(self, name: str) -> None:
        self._parts.revisions.forget(name)

    def close(self) -> None:
        self.client.close()

    @cached_property
    def _parts(self) -> Parts:
        place = self.place  # from now on every call names the owner of its bucket
        s3, lambda_ = self.client("s3"), self.client("lambda")
        locks, state, buckets = Locks(s3, place), StateObjects(s3, place), Buckets(s3, place)
        return Parts(
            buckets=buckets,
            expiries=Expiries(s3, locks.held),
            notifications=Notifications(s3, locks.held),
            revisions=Revisions(s3, place),
            retentions=LogRetentions(lambda: self.client("logs")),
            roles=IamRoles(lambda: self.client("iam"), place.account),
            interfaces=Interfaces(lambda: self.client("ec2"), lambda_),
            reader=FactsReader(self.client, place, buckets),
            state=state,
            queues=SqsQueues(self.client("sqs")),
            functions=LambdaFunctions(lambda_, lambda: self.client("iam"), place),
            configs=InvokeConfigs(lambda_),
            permissions=Permissions(lambda_),
            urls=FunctionUrls(lambda_),
            sources=EventSources(lambda_, place),
            schedules=Schedules(lambda: self.client("scheduler"), place),
            topics=Topics(lambda: self.client("sns"), place),
            rules=EventRules(lambda: self.client("events"), place),
        )

    def _put(  # noqa: C901 - one flat table
        self, step: Step, packages: Mapping[str, bytes]
    ) -> None:
        parts, resource = self._parts, step.resource
        match resource:
            case kinds.Bucket():
                parts.buckets.put(resource, exists=step.action is Action.UPDATE)
            case kinds.Package():
                parts.state.write_package(resource, packages[resource.sha256])
            case kinds.FunctionResource():
                self._put_function(step, resource, packages.get(resource.package))
            case kinds.Record():
                parts.state.write_record(self._resolved(resource))
            case kinds.Ledger():
                parts.state.write_ledger(resource)
            case kinds.QueueResource():
                parts.queues.put(resource)
            case kinds.InvokeConfig():
                parts.configs.put(resource)
            case kinds.Permission():
                parts.permissions.put(resource)
            case kinds.FunctionUrl():
                parts.urls.put(resource)
            case kinds.Notification():
                parts.notifications.put(resource)
            case kinds.Expiry():
                parts.expiries.put(resource)
            case kinds.LogRetention():
                parts.retentions.put(resource)
            case kinds.Role():
                parts.roles.put(resource)
            case kinds.EventSource():
                parts.sources.put(resource)
            case kinds.Schedule():
                parts.schedules.put(resource)
            case kinds.Topic():
                parts.topics.put(resource)
            case kinds.EventRule():
                parts.rules.put(resource)
            case _:
                assert_never(resource)

    def _put_function(
        self, step: Step, function: kinds.FunctionResource, data: bytes | None
    ) -> None:
        if step.action is Action.CREATE:
            self._parts.functions.create(function, data)
            return
        before = step.before if isinstance(step.before, kinds.FunctionResource) else None
        self._parts.functions.update(function, before, data)

    def _resolved(self, record: kinds.Record) -> kinds.Record:
        references = [value for value in record.body.values() if isinstance(value, Mapping)]
        names = [value[QUEUE_URL] for value in references if QUEUE_URL in value]
        urls = {name: self._parts.queues.url(name) for name in names}
        missing = [name for name, url in urls.items() if url is None]
        if missing:
            raise AppError(ErrorCode.NOT_FOUND, f"queues are missing: {', '.join(missing)}")
        return record.resolved({name: url for name, url in urls.items() if url is not None})

    def _delete(self, step: Step) -> None:  # noqa: C901 - one flat table
        parts, resource = self._parts, step.resource
        match resource:
            case kinds.Bucket():
                parts.buckets.delete(resource.name)
            case kinds.Expiry():
                parts.expiries.delete(resource)
            case kinds.Package() | kinds.Record() | kinds.Ledger():
                parts.state.delete(resource)
            case kinds.QueueResource():
                parts.queues.delete(resource.name)
            case kinds.FunctionResource():
                parts.functions.delete(resource.name)
            case kinds.InvokeConfig():
                parts.configs.delete(resource.name)
            case kinds.Permission():
                parts.permissions.delete(resource)
            case kinds.FunctionUrl():
                parts.urls.delete(resource.name)
            case kinds.Notification():
                parts.notifications.delete(resource, *step.deleted_with)
            case kinds.Role():
                parts.roles.delete(resource.name)
            case kinds.EventSource():
                parts.sources.delete(resource)
            case kinds.Schedule():
                parts.schedules.delete(resource.name)
            case kinds.Topic():
                parts.topics.delete(resource.name)
            case kinds.EventRule():
                parts.rules.delete(resource.name)
            case kinds.LogRetention():
                pass  # never planned: logs outlive their function
            case _:
                assert_never(resource)


class _Reading:
    """One observation: everything asked for, each thing read once."""

    def __init__(
        self, parts: Parts, place: DeployTarget, foreign: dict[str, str], *, count: bool
    ) -> None:
        """`foreign`: filled with the accounts of buckets that are not of this account."""
        self._parts = parts
        self._place = place
        self._foreign = foreign
        self._owned: frozenset[str] = frozenset()  #: keys that some deploy created
        self._wanted: dict[str, Resource] = {}
        self._count = count
        self._resources: dict[str, Resource] = {}
        self._rules: dict[str, tuple[kinds.Notification, ...]] = {}
        self._urls: dict[str, str] = {}
        self._messages: dict[str, int] = {}
        self._filled: list[str] = []

    def observe(self, names: Sequence[str], wanted: Sequence[Resource]) -> Observed:
        ledgers = self._parts.state.ledgers()
        created = [key for name in names if name in ledgers for key in ledgers[name].created]
        self._owned = frozenset(key for ledger in ledgers.values() for key in ledger.created)
        self._wanted = {key_of(resource): resource for resource in wanted}
        self._know_owners([ledgers[name] for name in names if name in ledgers])
        state = kinds.Bucket(name=self._place.state_bucket)
        keys = [key_of(state), *(key_of(r) for r in wanted), *(f"record/{n}" for n in names)]
        for key in dict.fromkeys([*keys, *created]):
            found = self._read(*key.split("/", 1))
            if found is not None:
                self._resources[key] = found
        for key in created:
            kind, name = key.split("/", 1)
            if (
                kind == kinds.Bucket.kind
                and key in self._resources
                and self._parts.buckets.filled(name)
            ):
                self._filled.append(name)
        return Observed(
            resources=self._resources,
            rules=tuple(rule for rules in self._rules.values() for rule in rules),
            ledgers=ledgers,
            queue_urls=self._urls,
            filled=tuple(self._filled),
            messages=self._messages,
            workflows=tuple(self._workflows()),
        )

    def _workflows(self) -> Iterator[kinds.WorkflowRecord]:
        """The records of all workflows that are deployed."""
        for key in sorted(self._owned):
            kind, name = key.split("/", 1)
            if kind == kinds.WorkflowRecord.kind:
                record = self._parts.state.record(kind, name)
                if isinstance(record, kinds.WorkflowRecord):
                    yield record

    def _know_owners(self, ledgers: Sequence[kinds.Ledger]) -> None:
        for ledger in ledgers:
            self._foreign.update(ledger.owners)
        buckets = [one for one in self._wanted.values() if isinstance(one, kinds.Bucket)]
        self._foreign.update({bucket.name: bucket.owner for bucket in buckets if bucket.owner})

    def _read(  # noqa: C901 - one flat table
        self, kind: str, name: str
    ) -> Resource | None:
        parts = self._parts
        match kind:
            case kinds.Bucket.kind:
                return self._bucket(name)
            case kinds.Expiry.kind:
                return parts.expiries.observe(*name.split("/", 1))
            case kinds.Package.kind:
                return parts.state.package(*name.split("/", 1))
            case kinds.QueueResource.kind:
                return self._queue(name)
            case kinds.FunctionResource.kind:
                return parts.functions.observe(name)
            case kinds.InvokeConfig.kind:
                return parts.configs.observe(name)
            case kinds.FunctionUrl.kind:
                return parts.urls.observe(name)
            case kinds.Permission.kind:
                return parts.permissions.observe(*name.split("/", 1))
            case kinds.Notification.kind:
                return self._notification(*name.split("/", 1))
            case kinds.LogRetention.kind:
                wanted = self._wanted.get(f"{kind}/{name}")
                asked = wanted if isinstance(wanted, kinds.LogRetention) else None
                return parts.retentions.observe(asked or kinds.LogRetention(name=name, days=0))
            case kinds.Role.kind:
                return parts.roles.observe(name)
            case kinds.EventSource.kind:
                return parts.sources.observe(*name.split("/", 1))
            case kinds.Schedule.kind:
                return parts.schedules.observe(name)
            case kinds.Topic.kind:
                return parts.topics.observe(name)
            case kinds.EventRule.kind:
                return parts.rules.observe(name)
            case kinds.Record.kind | kinds.WorkflowRecord.kind:
                return parts.state.record(kind, name)
        raise AppError(ErrorCode.INVALID, f"a ledger names the unknown kind {kind!r}")

    def _bucket(self, name: str) -> kinds.Bucket | None:
        owner = self._foreign.get(name, "")
        return self._parts.buckets.observe(
            name, owner=owner, tagged=f"{kinds.Bucket.kind}/{name}" in self._owned
        )

    def _queue(self, name: str) -> kinds.QueueResource | None:
        found = self._parts.queues.observe(name)
        if found is None:
            return None
        queue, self._urls[name] = found
        if self._count:
            self._messages[name] = self._parts.queues.messages(name)
        return queue

    def _notification(self, bucket: str, rule_id: str) -> kinds.Notification | None:
        if bucket not in self._rules:
            exists = f"bucket/{bucket}" in self._resources or self._bucket(bucket)
            self._rules[bucket] = self._parts.notifications.observe(bucket) if exists else ()
        found = (rule for rule in self._rules[bucket] if rule.id == rule_id)
        # the setting has no target, unlike a user's rule of that name
        return next(
            (one for one in found if rule_id != kinds.EVENT_BRIDGE or not one.target_arn), None
        )
