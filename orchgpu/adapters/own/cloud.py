"""`Cloud` of a deploy to own hosts: an S3-compatible store, and PostgreSQL.

Buckets, lifecycle rules, packages, records and revisions are those of AWS, by the same calls.
Queues and notification rules are rows of the database; Lambda, IAM and logs are absent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn

from corekit.errors import AppError, ErrorCode, invalid
from corekit.values import replace
from fdl.model import Function
from fdl.plan.facts import Facts
from fdl.plan.resources import DeployTarget, LogRetention
from fdl.plan.schedules import schedule_name
from orchgpu.adapters.aws.deploy.cloud import AwsCloud, Parts
from orchgpu.adapters.aws.deploy.facts import FactsReader
from orchgpu.adapters.aws.deploy.revisions import Locks, Revisions
from orchgpu.adapters.aws.deploy.storage import Buckets, Expiries, StateObjects
from orchgpu.adapters.aws.endpoints import ClientSettings
from orchgpu.adapters.own.database import Database
from orchgpu.adapters.own.probe import judge
from orchgpu.adapters.own.settings import USE_HOSTS, place_of
from orchgpu.adapters.own.tables import Queues, Rules
from orchgpu.adapters.own.trying import try_store

#: The adapters of services that are AWS's alone.
_OF_AWS = (
    *("retentions", "roles", "interfaces", "reader", "functions", "configs"),
    *("permissions", "sources", "urls"),
)
_USE_CRON = (
    "remove `schedule:`, and let the cron of a machine run `orchgpu put FILE FUNCTION` at its times"
)
_USE_GPU = "write `gpu:` (a device has a host) in place of `host: {batch: …}`"
_USE_STORE = "leave `via:` out: here the store itself sends the events of uploads"
_LOGS = "logs of functions stay with the hosts that run them; a result has the last lines"


class OwnCloud(AwsCloud):
    """One store and one database."""

    def __init__(self, settings: ClientSettings, database: Database) -> None:
        super().__init__(lambda service: replace(settings, service=service))
        self._settings = settings
        self._database = database

    @cached_property
    def place(self) -> DeployTarget:
        return place_of(self._settings)

    def facts(self, functions: Sequence[Function]) -> Facts:
        """Tries the store; from then on `place` has what it lacks.

        Raises INVALID for a function with Lambda, Batch or schedules, and for a store that cannot
        be used; NOT_FOUND for declared data that are not in the store.
        """
        in_lambda = [one.name for one in functions if one.in_lambda]
        if in_lambda:
            raise invalid(f"cloud `own` has no Lambda for {', '.join(in_lambda)}: {USE_HOSTS}")
        if batched := [one.name for one in functions if one.in_batch]:
            raise invalid(f"cloud `own` has no AWS Batch for {', '.join(batched)}: {_USE_GPU}")
        if scheduled := [schedule_name(one, at) for one in functions for at in one.schedule]:
            raise invalid(f"cloud `own` has no schedules for {', '.join(scheduled)}: {_USE_CRON}")
        verdict = judge(try_store(self.client("s3")))
        if verdict.refused:
            reasons = "; ".join(verdict.refused)
            raise invalid(
                f"the store at {self._settings.shown} cannot be used: {reasons}. Results and locks"
                " rest on conditional writes (docs/how-to/without-aws.md lists stores that have"
                " them)"
            )
        lacks = {**verdict.lacks, LogRetention.kind: _LOGS}
        self.place = replace(self.place, lacks=lacks, notes=verdict.notes)
        s3 = self.client("s3")
        reader = FactsReader(self.client, self.place, CheckedBuckets(s3, self.place))
        return Facts(data=reader.data(functions))

    def close(self) -> None:
        super().close()
        self._database.close()

    @cached_property
    def _parts(self) -> Parts:
        s3, place = self.client("s3"), self.place
        locks = Locks(s3, place)
        absent: dict[str, Any] = dict.fromkeys(_OF_AWS, Absent("Lambda and roles", USE_HOSTS))
        absent["schedules"] = Absent("schedules", _USE_CRON)
        absent |= dict.fromkeys(("topics", "rules"), Absent("SNS and EventBridge", _USE_STORE))
        return Parts(
            buckets=CheckedBuckets(s3, place),
            expiries=Expiries(s3, locks.held),
            notifications=Rules(self._database),
            revisions=Revisions(s3, place),
            state=StateObjects(s3, place),
            queues=Queues(self._database),
            **absent,
        )


class CheckedBuckets(Buckets):
    """Some stores delete a bucket together with its objects: each is looked into just before."""

    def delete(self, name: str) -> None:
        if self.filled(name):
            message = f"bucket {name!r} is not empty any more; run the command again to keep it"
            raise AppError(ErrorCode.CONFLICT, message)
        super().delete(name)


class Absent:
    """An adapter of what is not here."""

    def __init__(self, what: str, remedy: str) -> None:
        self._refusal = f"cloud `own` has no {what}: {remedy}"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise invalid(self._refusal)
