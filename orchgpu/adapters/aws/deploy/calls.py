"""Mappings of queues, and schedules: they call functions by themselves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from fdl.plan.resources import DeployTarget, EventSource, Schedule
from fdl.plan.schedules import input_text
from orchgpu.adapters.aws.api import Client, Shape, answer_or_none

_REPORTS = ["ReportBatchItemFailures"]
_PAUSED = "DISABLED"
#: What an answer has of a schedule's settings, beside its name and state.
_SETTINGS = (
    *("ActionAfterCompletion", "Description", "EndDate", "FlexibleTimeWindow", "GroupName"),
    *("KmsKeyArn", "ScheduleExpression", "ScheduleExpressionTimezone", "StartDate", "Target"),
)
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
        return self.state(name)[0]

    def state(self, name: str) -> tuple[Schedule | None, bool]:
        """The schedule, and whether it is paused."""
        answer = answer_or_none(self._client().get_schedule, Name=name)
        if answer is None:
            return None, False
        expression, target = str(answer.get("ScheduleExpression", "")), answer.get("Target", {})
        rate, arn = _RATE.fullmatch(expression), str(target.get("Arn", ""))
        puts = arn == self._put_arn
        schedule = Schedule(
            name=name,
            role=str(target.get("RoleArn", "")),
            every_min=int(rate[1]) if rate else 0,
            function="" if puts else arn.rpartition(":")[2],
            cron="" if rate else expression,
            timezone=str(answer.get("ScheduleExpressionTimezone", "UTC")),
            put=json.loads(target.get("Input", "{}")) if puts else {},
        )
        return schedule, answer.get("State") == _PAUSED

    def put(self, schedule: Schedule) -> None:
        """Make or change it; a paused one stays paused."""
        found, paused = self.state(schedule.name)
        every = schedule.every_min
        rate = f"rate({every} minute{'' if every == 1 else 's'})"
        target = {
            "Arn": self._put_arn if schedule.put else self._place.function_arn(schedule.function),
            "RoleArn": schedule.role,
            "Input": input_text(schedule.put),
        }
        write = self._client().create_schedule if found is None else self._client().update_schedule
        write(
            Name=schedule.name,
            ScheduleExpression=schedule.cron or rate,
            ScheduleExpressionTimezone=schedule.timezone,
            FlexibleTimeWindow={"Mode": "OFF"},
            State=_PAUSED if paused else "ENABLED",
            Target=target,
        )

    def pause(self, name: str, *, paused: bool) -> None:
        """EventBridge replaces a schedule as a whole: all of it is written again."""
        client = self._client()
        answer = client.get_schedule(Name=name)
        kept = {key: answer[key] for key in _SETTINGS if key in answer}
        client.update_schedule(**kept, Name=name, State=_PAUSED if paused else "ENABLED")

    def delete(self, name: str) -> None:
        answer_or_none(self._client().delete_schedule, Name=name)

    @property
    def _put_arn(self) -> str:
        return f"arn:{self._place.partition}:scheduler:::aws-sdk:s3:putObject"
