"""CloudWatch Logs: the calls that read the output of functions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from aiohttp import web

from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.log_pattern import compile_pattern
from local_cloud.sandbox.log_store import LogEvent, LogStore
from local_cloud.server.context import Context
from local_cloud.server.reading import read_signed
from local_cloud.server.shapes import Body, Shape, WrongShape, read_body

Answer: TypeAlias = Mapping[str, object]
_PAGE_MAX = 10_000


async def handle(context: Context, request: web.BaseRequest, operation: str) -> web.Response:
    """Answer one call; a refusal is raised as CloudError."""
    run = _OPERATIONS.get(operation)
    if run is None:
        raise not_implemented(f"CloudWatch Logs {operation}")
    try:
        data = await read_signed(context, request, "logs")
        answer = run(context.logs, _body(data))
    except KeyError as error:
        raise refused("InvalidParameterException", f"{error.args[0]} is required") from None
    text = json.dumps(answer or {})
    return web.Response(text=text, content_type="application/x-amz-json-1.1")


def _body(data: bytes) -> Body:
    try:
        return read_body(data, _SHAPE)
    except ValueError:
        raise refused("SerializationException", "The body is not JSON") from None
    except WrongShape as error:
        raise refused("InvalidParameterException", str(error)) from None


_SHAPE: dict[str, Shape] = {
    "endTime": int,
    "filterPattern": str,
    "limit": int,
    "logGroupName": str,
    "logGroupNamePrefix": str,
    "logStreamName": str,
    "logStreamNamePrefix": str,
    "logStreamNames": [str],
    "nextToken": str,
    "retentionInDays": int,
    "startTime": int,
}


def _create_group(logs: LogStore, body: Body) -> None:
    if not logs.create_group(body["logGroupName"]):
        raise refused("ResourceAlreadyExistsException", "The specified log group already exists")


def _delete_group(logs: LogStore, body: Body) -> None:
    if not logs.delete_group(body["logGroupName"]):
        raise _no_group()


def _put_retention(logs: LogStore, body: Body) -> None:
    _streams(logs, body)
    logs.set_retention(body["logGroupName"], int(body["retentionInDays"]))


def _describe_groups(logs: LogStore, body: Body) -> Answer:
    prefix = body.get("logGroupNamePrefix", "")
    groups = []
    for name in logs.groups():
        if name.startswith(prefix):
            days = logs.retention(name)
            retention = {} if days is None else {"retentionInDays": days}
            groups.append({"logGroupName": name, **retention})
    return {"logGroups": groups}


def _describe_streams(logs: LogStore, body: Body) -> Answer:
    prefix = body.get("logStreamNamePrefix", "")
    return {
        "logStreams": [
            {
                "logStreamName": name,
                "firstEventTimestamp": events[0].at_ms,
                "lastEventTimestamp": events[-1].at_ms,
            }
            for name, events in _streams(logs, body).items()
            if name.startswith(prefix) and events
        ]
    }


def _get_events(logs: LogStore, body: Body) -> Answer:
    events = _streams(logs, body).get(body["logStreamName"])
    if events is None:
        raise refused("ResourceNotFoundException", "The specified log stream does not exist.")
    # A token is the number of the last event seen; the one given back does not change at the end.
    after = _after(body)
    found = [e for e in _between(events, body) if e.number > after][: _limit(body)]
    last = found[-1].number if found else after
    return {
        "events": [{"timestamp": e.at_ms, "message": e.message} for e in found],
        "nextForwardToken": f"f/{last}",
        "nextBackwardToken": "b/0",
    }


def _filter_events(logs: LogStore, body: Body) -> Answer:
    matches = compile_pattern(body.get("filterPattern", ""))
    names = body.get("logStreamNames")
    prefix = body.get("logStreamNamePrefix", "")
    after = _after(body)
    found = [
        (event.number, name, event)
        for name, events in _streams(logs, body).items()
        if name.startswith(prefix) and (names is None or name in names)
        for event in _between(events, body)
        if event.number > after and matches(event.message)
    ]
    found.sort(key=lambda item: item[0])
    page = found[: _limit(body)]
    answer: dict[str, object] = {
        "events": [
            {
                "logStreamName": name,
                "timestamp": event.at_ms,
                "message": event.message,
                "eventId": str(number),
            }
            for number, name, event in page
        ]
    }
    if len(page) < len(found):
        answer["nextToken"] = str(page[-1][0])
    return answer


def _between(events: Iterable[LogEvent], body: Body) -> Iterable[LogEvent]:
    start, end = body.get("startTime", 0), body.get("endTime", float("inf"))
    return (event for event in events if start <= event.at_ms <= end)


def _after(body: Body) -> int:
    """The number of the last event that a page before ended with."""
    number = body.get("nextToken", "f/0").rpartition("/")[2]
    if not number.isdecimal():
        raise refused("InvalidParameterException", "The specified nextToken is invalid.")
    return int(number)


def _limit(body: Body) -> int:
    return min(int(body.get("limit", _PAGE_MAX)), _PAGE_MAX)


def _streams(logs: LogStore, body: Body) -> Mapping[str, Sequence[LogEvent]]:
    found = logs.streams(body["logGroupName"])
    if found is None:
        raise _no_group()
    return found


def _no_group() -> CloudError:
    return refused("ResourceNotFoundException", "The specified log group does not exist.")


_OPERATIONS: dict[str, Callable[[LogStore, Body], Answer | None]] = {
    "CreateLogGroup": _create_group,
    "DeleteLogGroup": _delete_group,
    "DescribeLogGroups": _describe_groups,
    "DescribeLogStreams": _describe_streams,
    "FilterLogEvents": _filter_events,
    "GetLogEvents": _get_events,
    "PutRetentionPolicy": _put_retention,
}
