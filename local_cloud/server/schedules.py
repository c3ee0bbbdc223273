"""EventBridge Scheduler over its REST protocol, and the clock of its schedules."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from functools import partial

from local_cloud.model.errors import CloudError, refused
from local_cloud.model.s3.object_version import Condition
from local_cloud.model.schedules import LATE_S_MAX, MISSED_MAX, PUT_OBJECT, Schedule
from local_cloud.model.weather import LostAnswerError
from local_cloud.server.context import Context
from local_cloud.server.services import Answer, Body, RestService

logger = logging.getLogger(__name__)

#: Fields of a call beside the settings of the schedule.
_NOT_SETTINGS = ("Name", "GroupName", "ClientToken")


def _settings(body: Body) -> Body:
    return {name: value for name, value in body.items() if name not in _NOT_SETTINGS}


def _create(context: Context, body: Body) -> Answer:
    schedules = context.cloud.schedules
    schedules.create(context.now_s(), body["Name"], _settings(body))
    return {"ScheduleArn": schedules.arn(body["Name"])}


def _update(context: Context, body: Body) -> Answer:
    schedules = context.cloud.schedules
    schedules.update(context.now_s(), body["Name"], _settings(body))
    return {"ScheduleArn": schedules.arn(body["Name"])}


def _get(context: Context, body: Body) -> Answer:
    schedules = context.cloud.schedules
    schedule = schedules.get(body["Name"])
    return {
        "ActionAfterCompletion": "NONE",
        "ScheduleExpressionTimezone": "UTC",
        "State": "ENABLED",
        **schedule.given,
        "Arn": schedules.arn(schedule.name),
        "GroupName": "default",
        "Name": schedule.name,
        "CreationDate": schedule.made_at_s,
        "LastModificationDate": schedule.modified_at_s,
    }


def _delete(context: Context, body: Body) -> Answer:
    context.cloud.schedules.delete(body["Name"])
    return {}


SCHEDULER = RestService(
    names=("scheduler",),
    invalid="ValidationException",
    missing="ValidationException",
    operations={
        "CreateSchedule": _create,
        "DeleteSchedule": _delete,
        "GetSchedule": _get,
        "UpdateSchedule": _update,
    },
)


class ScheduledCalls:
    """Begins the runs of each schedule; the first one of a rate is one period after a change.

    Runs of a time at which the cloud was not there are stated in its log and not made up for.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self) -> None:
        schedules = self._context.cloud.schedules
        schedules.on_change = self._changed
        for name in schedules.names():
            self._changed(name)

    def _changed(self, name: str) -> None:
        task = self._tasks.pop(name, None)
        if task is not None:
            task.cancel()
        schedule = self._schedule(name)
        if schedule is not None and schedule.enabled:
            runs = partial(self._runs, name)
            self._tasks[name] = self._context.nursery.start_loop(runs, f"schedule/{name}")

    def _schedule(self, name: str) -> Schedule | None:
        try:
            return self._context.cloud.schedules.get(name)
        except CloudError:
            return None

    async def _runs(self, name: str) -> None:
        schedules = self._context.cloud.schedules
        while True:
            schedule, now_s = schedules.get(name), self._context.now_s()
            if missed := schedule.missed(now_s):
                logger.warning(
                    "the schedule %s missed %d%s runs: this cloud was not running",
                    name,
                    missed,
                    " or more" if missed == MISSED_MAX else "",
                    extra={"event": "schedule_missed", "schedule": name, "runs": missed},
                )
                schedule = schedules.seen(name, now_s - LATE_S_MAX)
            at_s = next(schedule.times(), None)
            if at_s is None:
                return
            if at_s > now_s:  # in steps: the machine's clock may be set
                await asyncio.sleep(min(at_s - now_s, LATE_S_MAX / 2))
            else:
                self._run(schedule, at_s)  # first: a cloud that ends between repeats it
                schedules.seen(name, at_s)

    def _run(self, schedule: Schedule, at_s: float) -> None:
        cloud, now_s = self._context.cloud, self._context.now_s()
        if schedule.target != PUT_OBJECT:
            cloud.invoke_later(now_s, schedule.target, schedule.payload)
            return
        try:
            self._put(schedule.parameters(at_s), now_s)
        except CloudError as error:
            logger.warning(
                "a run of the schedule %s failed: %s",
                schedule.name,
                error,
                extra={"event": "schedule_failed", "schedule": schedule.name},
            )

    def _put(self, parameters: Body, now_s: float) -> None:
        cloud, data = self._context.cloud, str(parameters.get("Body", "")).encode()
        if parameters.get("ExpectedBucketOwner", cloud.account.id) != cloud.account.id:
            raise refused("AccessDenied", "The bucket belongs to another account.")
        with self._context.bodies.new() as writer:
            writer.write(data)
            content = writer.finish(hashlib.md5(data, usedforsecurity=False).hexdigest())
        try:
            cloud.put_object(
                now_s,
                parameters["Bucket"],
                parameters["Key"],
                content,
                condition=Condition(if_none_match="IfNoneMatch" in parameters),
            )
        except CloudError as error:
            if not isinstance(error, LostAnswerError):  # after which the object is there
                self._context.bodies.release(content.segments)
            raise
