"""The reconciler's decisions: when inputs are listed, and which uploads are looked for.

S3 delivers an event at least once, except while a new notification rule takes effect, typically
five minutes. An upload whose event was lost is sent again as a message of the same form, which
names the same job: an event that was only late adds nothing.

An upload is considered once it is `reconcile_age_s` old, and not when it is older than the record
of its function or than `reconcile_back_s`. A pass goes back `reconcile_overlap_s` before the end of
the last one: S3 dates an object by the start of its upload.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime

from contract.keys import job_id
from contract.run import run_id
from corekit.budget import Budget
from corekit.ids import RandomStream
from corekit.values import Value, replace
from orchgpu.core.function import Function
from orchgpu.core.routing import InputEvent, classify
from orchgpu.core.runs.workflow import Workflow


class ObjectVersion(Value):
    """One version of an object, as a listing names it."""

    key: str
    version_id: str | None  #: None on an unversioned bucket
    etag: str  #: without quotes
    size: int  #: bytes
    modified_s: float  #: wall clock of the store


class Cursor(Value):
    """The key and the version that end one page of a listing."""

    key: str
    version_id: str


class VersionPage(Value):
    """One page of a listing of all versions, without delete markers."""

    versions: tuple[ObjectVersion, ...]
    after: Cursor | None  #: None: the last page


class Upload(Value):
    """One upload that starts a job, or a run of a workflow."""

    job: str  #: or the run
    key: str
    modified_s: float  #: wall clock of the store
    body: str  #: the message of its event


class Interval(Value):
    """The uploads that one pass considers: by the store's date, both ends included."""

    since_s: float
    until_s: float
    after: Cursor | None = None  #: where an earlier part of the pass ended


def listed_prefix(function: Function | Workflow) -> str:
    return f"{function.input_prefix}/" if function.input_prefix else ""


def uploads(
    function: Function | Workflow, versions: Iterable[ObjectVersion], interval: Interval
) -> list[Upload]:
    """The uploads of an interval that the function's trigger matches, oldest first."""
    found = [
        _upload(function, version)
        for version in versions
        if interval.since_s <= version.modified_s <= interval.until_s
        and version.key.startswith(listed_prefix(function))
        and version.key.endswith(function.input_suffixes or ("",))
    ]
    return sorted((one for one in found if one is not None), key=lambda one: one.modified_s)


def _upload(function: Function | Workflow, version: ObjectVersion) -> Upload | None:
    """None for an object that an event would not make a job of."""
    date = datetime.fromtimestamp(int(version.modified_s), UTC).isoformat()
    event = InputEvent(
        bucket=function.input_bucket,
        key=version.key,
        version_id=version.version_id,
        etag=version.etag,
        size=version.size,
        event_name="ObjectCreated:Put",
        event_time=date,
    )
    body = json.dumps(event.as_s3_event())
    if not isinstance(classify(body, function), InputEvent):
        return None
    named = version.version_id or f"{version.etag}@{date}"
    name = run_id if isinstance(function, Workflow) else job_id
    job = name(function.input_bucket, version.key, named, function.name)
    return Upload(job=job, key=version.key, modified_s=version.modified_s, body=body)


class Passes:
    """The passes over the inputs of one function: their times, intervals and settled jobs."""

    def __init__(
        self,
        function: Function | Workflow,
        budget: Budget,
        jitter: RandomStream,
        *,
        at_s: float,
        wall_s: float,
    ) -> None:
        self._budget = budget
        self._jitter = jitter
        self._function = function
        self._due_s = at_s  # at start
        self._often_until_s = at_s + budget.reconcile_often_s - (wall_s - function.deployed_at_s)
        self._backlog_until_s: float | None = None  #: of a pass that waits for an empty queue
        self._considered_s = 0.0  #: store's clock: the end of the last whole pass
        self._begun: Interval | None = None  #: an unfinished pass
        self._settled: dict[str, float] = {}  #: job → date of its upload: it needs no second look

    def changed(self, function: Function | Workflow, at_s: float) -> None:
        """The function was deployed again: its trigger may take effect minutes later."""
        if (function.input_bucket, listed_prefix(function)) != (
            self._function.input_bucket,
            listed_prefix(self._function),
        ):
            self._considered_s, self._begun = 0.0, None
        self._function = function
        self._often_until_s = at_s + self._budget.reconcile_often_s
        self._due_s = min(self._due_s, at_s + self._budget.reconcile_age_s)

    def due(self, at_s: float) -> bool:
        """True when a pass should begin; never for a record without the time of its deploy."""
        return self._function.deployed_at_s > 0 and at_s >= self._due_s

    def interval(self, at_s: float, wall_s: float, backlog: int) -> Interval | None:
        """The interval of the pass that begins now; None while events wait in the queue."""
        budget = self._budget
        if backlog:
            if self._backlog_until_s is None:
                self._backlog_until_s = at_s + budget.reconcile_backlog_s
            if at_s < self._backlog_until_s:
                self._due_s = at_s + budget.reconcile_age_s
                return None
        self._backlog_until_s = None
        if self._begun is not None:
            return self._begun
        since_s = max(
            self._function.deployed_at_s,
            wall_s - budget.reconcile_back_s,
            self._considered_s - budget.reconcile_overlap_s,
        )
        return Interval(since_s=since_s, until_s=wall_s - budget.reconcile_age_s)

    def unsettled(self, found: Iterable[Upload]) -> list[Upload]:
        return [upload for upload in found if upload.job not in self._settled]

    def settle(self, upload: Upload) -> None:
        """The upload's job exists, or its event was sent again."""
        self._settled[upload.job] = upload.modified_s

    def passed(self, interval: Interval, after: Cursor | None, at_s: float) -> None:
        """A pass ended, or after its pages a part of it: the next one begins at that cursor."""
        if after is None:
            self._begun, self._considered_s = None, interval.until_s
            kept_s = interval.until_s - self._budget.reconcile_overlap_s
            self._settled = {job: at for job, at in self._settled.items() if at >= kept_s}
        else:
            self._begun = replace(interval, after=after)
        often = at_s < self._often_until_s
        pause_s = self._budget.reconcile_age_s if often else self._budget.reconcile_every_s
        # several replicas should not list at the same moment
        self._due_s = at_s + pause_s * self._jitter.uniform(0.8, 1.2)

    def failed(self, at_s: float) -> None:
        """A call failed: the pass begins again."""
        self._due_s = at_s + self._budget.reconcile_age_s
