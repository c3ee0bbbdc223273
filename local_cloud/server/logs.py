"""CloudWatch Logs: the calls that read the output of functions, and those of other programs that
write it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.sandbox.log_store import LogEvent
from local_cloud.server.context import Context
from local_cloud.server.services import Answer, Body, JsonService

_PAGE_MAX = 10_000
_EVENT_BYTES, _BATCH_BYTES_MAX = 26, 1_048_576
#: Of PutLogEvents: a batch's span, and what is too old or too new to be stored.
_SPAN_MS_MAX, _OLD_MS_MAX, _NEW_MS_MAX = 86_400_000, 14 * 86_400_000, 2 * 3_600_000
PATTERN_CHARS_MAX = 1024  #: as CloudWatch
#: A term of a filter pattern: a word, or one text in quotes.
_TERM = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^\s"]+))')


def terms_of(pattern: str) -> tuple[str, ...]:
    """The terms of a filter pattern, all of which a line must contain (user guide, "Filter pattern
    syntax"). Raises InvalidParameterException, and NotImplemented for its other forms.
    """
    text = pattern.strip()
    if len(text) > PATTERN_CHARS_MAX:
        raise _invalid_pattern(f"it has more than {PATTERN_CHARS_MAX} characters")
    terms: list[str] = []
    while text:
        match = _TERM.match(text)
        if match is None:
            raise _invalid_pattern(f"it cannot be read from {text[:20]!r} on")
        quoted, word = match.groups()
        if quoted is None and word[0] in "{[?-%":
            raise not_implemented(f"the filter pattern {word:.40}: of JSON, columns, ?, -, %")
        terms.append(word if quoted is None else re.sub(r"\\(.)", r"\1", quoted))
        text = text[match.end() :].lstrip()
    return tuple(terms)


def _invalid_pattern(reason: str) -> CloudError:
    return _invalid(f"Invalid filter pattern: {reason}")


def _create_group(context: Context, body: Body) -> None:
    if not context.logs.create_group(body["logGroupName"]):
        raise refused("ResourceAlreadyExistsException", "The specified log group already exists")


def _delete_group(context: Context, body: Body) -> None:
    if not context.logs.delete_group(body["logGroupName"]):
        raise _no_group()


def _put_retention(context: Context, body: Body) -> None:
    _streams(context, body)
    context.logs.set_retention(body["logGroupName"], body["retentionInDays"])


def _create_stream(context: Context, body: Body) -> None:
    _streams(context, body)
    if not context.logs.create_stream(body["logGroupName"], body["logStreamName"]):
        raise refused("ResourceAlreadyExistsException", "The specified log stream already exists")


def _put_events(context: Context, body: Body) -> Answer:
    """The limits of one call (API reference, PutLogEvents); its sequence token is ignored."""
    _stream(context, body)
    events = body["logEvents"]
    times = [event["timestamp"] for event in events]
    size = sum(len(event["message"].encode()) + _EVENT_BYTES for event in events)
    if not 1 <= len(events) <= _PAGE_MAX or size > _BATCH_BYTES_MAX:
        raise _invalid("Upload too large, or empty: 1 to 10,000 events and 1,048,576 bytes")
    if times != sorted(times):
        order = "Log events in a single PutLogEvents request must be in chronological order."
        raise _invalid(order)
    if times[-1] - times[0] > _SPAN_MS_MAX:
        raise _invalid("The batch of log events in a single PutLogEvents request spans 24 hours")
    now_ms = context.now_s() * 1000
    kept = [time for time in times if now_ms - _OLD_MS_MAX <= time <= now_ms + _NEW_MS_MAX]
    old = sum(time < now_ms - _OLD_MS_MAX for time in times)
    for event in events[old : old + len(kept)]:
        at_s = event["timestamp"] / 1000
        context.logs.append(body["logGroupName"], body["logStreamName"], at_s, event["message"])
    rejected = {
        **({"tooOldLogEventEndIndex": old} if old else {}),
        **({"tooNewLogEventStartIndex": old + len(kept)} if old + len(kept) < len(times) else {}),
    }
    return {
        "nextSequenceToken": "1",
        **({"rejectedLogEventsInfo": rejected} if rejected else {}),
    }


def _describe_groups(context: Context, body: Body) -> Answer:
    groups = []
    for name in context.logs.groups():
        if name.startswith(body.get("logGroupNamePrefix", "")):
            days = context.logs.retention(name)
            retention = {} if days is None else {"retentionInDays": days}
            groups.append({"logGroupName": name, **retention})
    return {"logGroups": groups}


def _get_events(context: Context, body: Body) -> Answer:
    events = _stream(context, body)
    # A token is the number of the last event seen; the one given back does not change at the end.
    after = _after(body)
    page = list(_between(events, body, lambda event: event.number > after))[: _limit(body)]
    last = page[-1].number if page else after
    return {
        "events": [{"timestamp": e.at_ms, "message": e.message} for e in page],
        "nextForwardToken": f"f/{last}",
        "nextBackwardToken": "b/0",
    }


def _filter_events(context: Context, body: Body) -> Answer:
    terms, after = terms_of(body.get("filterPattern", "")), _after(body)
    names = body.get("logStreamNames")

    def wanted(event: LogEvent) -> bool:
        return event.number > after and all(term in event.message for term in terms)

    events = [
        {
            "logStreamName": name,
            "timestamp": event.at_ms,
            "message": event.message,
            "eventId": str(event.number),
        }
        for name, stream in _streams(context, body).items()
        if names is None or name in names
        for event in _between(stream, body, wanted)
    ]
    events.sort(key=lambda event: int(str(event["eventId"])))
    page = events[: _limit(body)]
    rest = {"nextToken": page[-1]["eventId"]} if len(page) < len(events) else {}
    return {"events": page, **rest}


def _between(
    events: Iterable[LogEvent], body: Body, wanted: Callable[[LogEvent], bool]
) -> Iterable[LogEvent]:
    start, end = body.get("startTime", 0), body.get("endTime", float("inf"))
    return (event for event in events if start <= event.at_ms <= end and wanted(event))


def _after(body: Body) -> int:
    """The number of the last event that a page before ended with."""
    number = body.get("nextToken", "f/0").rpartition("/")[2]
    if not number.isdecimal():
        raise _invalid("The specified nextToken is invalid.")
    return int(number)


def _limit(body: Body) -> int:
    return min(int(body.get("limit", _PAGE_MAX)), _PAGE_MAX)


def _streams(context: Context, body: Body) -> Mapping[str, Sequence[LogEvent]]:
    streams = context.logs.streams(body["logGroupName"])
    if streams is None:
        raise _no_group()
    return streams


def _stream(context: Context, body: Body) -> Sequence[LogEvent]:
    events = _streams(context, body).get(body["logStreamName"])
    if events is None:
        raise refused("ResourceNotFoundException", "The specified log stream does not exist.")
    return events


def _invalid(message: str) -> CloudError:
    return refused("InvalidParameterException", message)


def _no_group() -> CloudError:
    return refused("ResourceNotFoundException", "The specified log group does not exist.")


LOGS = JsonService(
    names=("logs",),
    invalid="InvalidParameterException",
    missing="InvalidParameterException",
    operations={
        "CreateLogGroup": _create_group,
        "CreateLogStream": _create_stream,
        "DeleteLogGroup": _delete_group,
        "DescribeLogGroups": _describe_groups,
        "FilterLogEvents": _filter_events,
        "GetLogEvents": _get_events,
        "PutLogEvents": _put_events,
        "PutRetentionPolicy": _put_retention,
    },
)
