"""Mappings of queues, and schedules: they call functions by themselves."""

from __future__ import annotations

import re
from collections.abc import Callable

from fdl.plan.resources import DeployTarget, EventSource, Schedule
from orchgpu.adapters.aws.api import Client, Shape, answer_or_none

_REPORTS = ["ReportBatchItemFailures"]
_RATE = re.compile(r"rate\((\d+) minutes?\)")


class EventSources:
    """Event source mappings of one account and region."""

    def __init__(self, lambda_: Client, place: DeployTarget) -> None:
        self._lambda = lambda_
        self._place = place

    def observe(self, function: str, queue: str) -> EventSource | None:
        found = self._found(function, queue)
        if found is None:
            return None
        return EventSource(
            function=function,
            queue=queue,
            batch=int(found.get("BatchSize", 0)),
            concurrency_max=int(found.get("ScalingConfig", {}).get("MaximumConcurrency", 0)),
        )

    def put(self, source: EventSource) -> None:
        settings: Shape = {
            "FunctionName": source.function,
            "BatchSize": source.batch,
            "FunctionResponseTypes": _REPORTS,
            "ScalingConfig": {"MaximumConcurrency": source.concurrency_max},
        }
        found = self._found(source.function, source.queue)
        if found is None:
            arn = self._place.queue_arn(source.queue)
            self._lambda.create_event_source_mapping(EventSourceArn=arn, **settings)
        else:
            self._lambda.update_event_source_mapping(UUID=found["UUID"], **settings)

    def delete(self, source: EventSource) -> None:
        found = self._found(source.function, source.queue)
        if found is not None:
            answer_or_none(self._lambda.delete_event_source_mapping, UUID=found["UUID"])

    def _found(self, function: str, queue: str) -> Shape | None:
        answer = answer_or_none(
            self._lambda.list_event_source_mappings,
            FunctionName=function,
            EventSourceArn=self._place.queue_arn(queue),
        )
        found = () if answer is None else answer.get("EventSourceMappings", ())
        return next((one for one in found if one.get("State") != "Deleting"), None)


class Schedules:
    """Schedules of EventBridge in its default group."""

    def __init__(self, scheduler: Callable[[], Client], place: DeployTarget) -> None:
        self._client = scheduler  #: made when it is needed
        self._place = place

    def observe(self, name: str) -> Schedule | None:
        answer = answer_or_none(self._client().get_schedule, Name=name)
        if answer is None:
            return None
        rate = _RATE.fullmatch(str(answer.get("ScheduleExpression", "")))
        target = answer.get("Target", {})
        return Schedule(
            name=name,
            every_min=int(rate[1]) if rate else 0,
            function=str(target.get("Arn", "")).rpartition(":")[2],
            role=str(target.get("RoleArn", "")),
        )

    def put(self, schedule: Schedule) -> None:
        client, every = self._client(), schedule.every_min
        write = (
            client.create_schedule
            if self.observe(schedule.name) is None
            else client.update_schedule
        )
        write(
            Name=schedule.name,
            ScheduleExpression=f"rate({every} minute{'' if every == 1 else 's'})",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={
                "Arn": self._place.function_arn(schedule.function),
                "RoleArn": schedule.role,
                "Input": "{}",
            },
        )

    def delete(self, name: str) -> None:
        answer_or_none(self._client().delete_schedule, Name=name)
