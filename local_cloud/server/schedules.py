"""EventBridge Scheduler over its REST protocol, and the clock of its schedules."""

from __future__ import annotations

import asyncio
from functools import partial

from local_cloud.model.errors import CloudError
from local_cloud.model.schedules import Schedule
from local_cloud.server.context import Context
from local_cloud.server.services import Answer, Body, RestService

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
    """Calls the function of each schedule; the first time one period after it was changed."""

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
            call = partial(self._call, schedule)
            self._tasks[name] = self._context.nursery.start_loop(call, f"schedule/{name}")

    def _schedule(self, name: str) -> Schedule | None:
        try:
            return self._context.cloud.schedules.get(name)
        except CloudError:
            return None

    async def _call(self, schedule: Schedule) -> None:
        while True:
            await asyncio.sleep(schedule.every_s)
            now_s = self._context.now_s()
            self._context.cloud.invoke_later(now_s, schedule.target, schedule.payload)
