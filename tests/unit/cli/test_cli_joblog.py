"""Lines from several places as one stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchgpu.adapters.aws.api import AwsClient
from orchgpu.adapters.aws.commands import AwsServices
from orchgpu.cloud_services import Address, LogEvent
from orchgpu.jobs import joblog
from orchgpu.jobs.joblog import (
    LATE_S,
    FunctionLog,
    JobsByRequest,
    Line,
    Programs,
    Stream,
    invocation,
    read_line,
)


def line(at_s: float, text: str) -> Line:
    return Line(at_s=at_s, where="function", text=text)


def test_each_line_of_several_sources_is_shown_once_by_time() -> None:
    one, other = [line(3.0, "c")], [line(1.0, "a"), line(2.0, "b"), line(2.0, "b")]
    stream = Stream([lambda: one, lambda: other], lambda told: told.text != "no")
    assert [told.text for told in stream.fresh()] == ["a", "b", "b", "c"]
    assert stream.fresh() == []
    one += [line(0.5, "late"), line(4.0, "no")]
    other.append(line(2.0, "b"))
    assert [told.text for told in stream.fresh()] == ["late", "b"]


def test_lines_of_one_moment_stay_in_the_order_in_which_they_were_written() -> None:
    written = [line(1.0, text) for text in ("zebra", "ant", "bee", "ant")]
    stream = Stream([lambda: written])
    assert [told.text for told in stream.fresh()] == ["zebra", "ant", "bee", "ant"]
    written += [line(1.0, "zebra"), line(1.0, "ant")]
    assert [told.text for told in stream.fresh()] == ["zebra", "ant"]


def test_the_json_line_of_a_program_becomes_text() -> None:
    raw = {
        "time": "1970-01-01T00:01:40.500Z",
        "level": "warning",
        "logger": "x",
        "message": "m",
        "event": "e",
        "job": "j1",
        "own_ms": 3,
    }
    told = read_line("orchestrator", json.dumps(raw))
    assert told == Line(at_s=100.5, where="orchestrator", text="warning: m own_ms=3")


@pytest.mark.parametrize(
    "raw", ["", "Traceback", "[]", "{}", '{"time": "x", "message": ""}', "[" * 9999]
)
def test_a_foreign_line_has_no_time(raw: str) -> None:
    assert read_line("x", raw) is None


def test_lines_of_programs_are_those_that_name_the_job_or_its_lease(tmp_path: Path) -> None:
    def said(text: str) -> str:
        return json.dumps({"time": "1970-01-01T00:00:01Z", "message": text}) + "\n"

    words = [("j1", "j1")]
    file = tmp_path / "gpu-a.log"
    file.write_text(said("about j1") + said("about lease-7") + "not j1 json\n" + said("j1")[:-1])
    programs = Programs(tmp_path, lambda: words)
    assert [told.text for told in programs()] == ["about j1"]
    words.append(("lease-7", "j1"))
    with file.open("a") as log:
        log.write("\n")
    assert [told.text for told in programs()] == ["about j1", "about lease-7", "j1"]
    assert {told.job for told in programs()} == {"j1"}


def test_a_moment_is_shown_once_though_its_text_changes() -> None:
    """Which lease it was may be known at the first look only."""
    told = [Line(at_s=1.0, where="scheduler", text="lease granted on gpu-a/0", id="j1/RESERVED@1")]
    stream = Stream([lambda: told])
    assert len(stream.fresh()) == 1
    told[0] = Line(at_s=1.0, where="scheduler", text="lease granted", id="j1/RESERVED@1")
    assert stream.fresh() == []
    told.append(Line(at_s=9.0, where="scheduler", text="lease granted", id="j1/RESERVED@9"))
    assert [line.at_s for line in stream.fresh()] == [9.0]


REQUEST, OTHER = "a" * 36, "b" * 36


def events(*messages: str) -> list[LogEvent]:
    return [LogEvent(message=message, at_ms=n) for n, message in enumerate(messages)]


def test_an_invocation_is_between_its_start_and_its_report() -> None:
    written = events(
        f"START RequestId: {OTHER} Version: $LATEST",
        "other",
        f"END RequestId: {OTHER}",
        f"REPORT RequestId: {OTHER}\tDuration: 1 ms",
        f"START RequestId: {REQUEST} Version: $LATEST",
        "mine",
        f"END RequestId: {REQUEST}",
        f"REPORT RequestId: {REQUEST}\tDuration: 1 ms",
        "between",
    )
    assert [event.at_ms for event in invocation(written, REQUEST)] == [4, 5, 6, 7]


def test_a_stream_is_read_no_further_than_the_end_of_the_request() -> None:
    def endless() -> Iterator[LogEvent]:
        yield from events(f"START RequestId: {REQUEST} Version: $LATEST", "mine")
        yield from events(
            f"END RequestId: {REQUEST}", f"REPORT RequestId: {REQUEST}\tDuration: 1 ms"
        )
        raise AssertionError("read on")

    assert len(list(invocation(endless(), REQUEST))) == 4


class ManyPages:
    """Of CloudWatch's client, what reads a log: pages of one line each, the oldest first."""

    meta = SimpleNamespace(method_to_api_mapping={})

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked_from_ms: list[int] = []

    def filter_log_events(self, **asked: Any) -> dict[str, Any]:
        self.asked_from_ms.append(asked["startTime"])
        page = int(asked.get("nextToken", "0"))
        event = {"message": f"line {page}", "timestamp": 1_000_000 + page}
        more = {"nextToken": str(page + 1)} if page + 1 < self.count else {}
        return {"events": [event] if page % 2 else [], **more}  # pages may be empty


def test_the_newest_lines_of_a_long_log_are_kept_and_old_ones_read_once() -> None:
    pages = ManyPages(100)
    services = AwsServices(Address(), 1, None)
    services._client._made["logs"] = AwsClient(pages)
    services._groups["f"] = "/aws/lambda/f"
    log = FunctionLog(services, "f")
    lines = log.since(10.0)
    assert (len(lines), lines[-1].text, lines[-1].at_s) == (50, "line 99", 1000.099)
    assert pages.asked_from_ms == [10_000] * 100
    log.since(10.0)
    assert pages.asked_from_ms[100] == int((1000.099 - LATE_S) * 1000)


JOBS = ["j" + digit * 25 for digit in "12"]


def written(stream: str, at_ms: int, *messages: str) -> list[LogEvent]:
    return [
        LogEvent(message=message, at_ms=at_ms + n, stream=stream)
        for n, message in enumerate(messages)
    ]


def begins(request: str, job: str) -> tuple[str, str]:
    said = f"[INFO]\t2026-11-22T10:00:00.000Z\t{request}\t{job}, attempt 1"
    return f"START RequestId: {request} Version: $LATEST", said


def named(owners: JobsByRequest, events: list[LogEvent]) -> list[tuple[str, str | None]]:
    return [(event.message[:5], job) for event, job in owners.named(events)]


def test_every_line_of_a_function_knows_its_job() -> None:
    """Two environments write at once, each one invocation after the other."""
    one = [
        *written("a", 10, "init", *begins(REQUEST, JOBS[0]), "hello", f"END RequestId: {REQUEST}"),
        *written("a", 20, f"REPORT RequestId: {REQUEST}\tDuration: 1 ms"),
        *written("a", 30, f"START RequestId: {'c' * 36} Version: $LATEST", "probe"),
    ]
    other = written("b", 11, *begins(OTHER, JOBS[1]), "hello")
    events = sorted([*one, *other], key=lambda event: event.at_ms)
    owners = JobsByRequest()
    assert named(owners, events) == [
        ("init", None),
        ("START", JOBS[0]),
        ("START", JOBS[1]),
        ("[INFO", JOBS[0]),
        ("[INFO", JOBS[1]),
        ("hello", JOBS[0]),
        ("hello", JOBS[1]),
        ("END R", JOBS[0]),
        ("REPOR", JOBS[0]),
        ("START", None),
        ("probe", None),
    ]
    late = written("a", 13, "late")  # the next look begins after the invocation did
    assert named(owners, late) == [("late", JOBS[0])]
    assert named(owners, written("b", 90, "more")) == [("more", JOBS[1])]


def test_only_the_runners_line_names_the_job_of_a_request() -> None:
    forged = f"[INFO]\tx\t{REQUEST}\t{JOBS[1]}, attempt 1"
    events = written("a", 1, *begins(REQUEST, JOBS[0]), forged, "hello")
    assert [job for _, job in JobsByRequest().named(events)] == [JOBS[0]] * 4


def test_the_memory_of_a_long_log_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblog, "REQUESTS_MAX", 3)
    monkeypatch.setattr(joblog, "STARTS_MAX", 2)
    owners = JobsByRequest()
    for number in range(10):
        request = f"{number:036d}"
        owners.named(written("a", number * 10, *begins(request, JOBS[0])))
    assert (len(owners._jobs), len(owners._began["a"])) == (3, 2)


def as_json(request: str, job: str) -> list[str]:
    """An invocation in a log with `logging: {format: JSON}`."""
    at = "2026-11-22T10:00:00Z"
    lines: list[dict[str, object]] = [
        {"time": at, "type": "platform.start", "record": {"requestId": request, "version": "1"}},
        {"timestamp": at, "level": "INFO", "requestId": request, "message": f"{job}, attempt 1"},
        {"timestamp": at, "level": "WARN", "requestId": request, "message": "slow"},
        {
            "time": at,
            "type": "platform.report",
            "record": {"requestId": request, "metrics": {"durationMs": 3}},
        },
    ]
    return [*(json.dumps(one) for one in lines[:3]), '{"own": 1}', "{own", json.dumps(lines[3])]


def test_a_log_in_json_is_read_as_one_in_text() -> None:
    events = written("a", 1, *as_json(REQUEST, JOBS[0]), *as_json(OTHER, JOBS[1]))
    assert named(JobsByRequest(), events[:6]) == [
        ("START", JOBS[0]),
        ("[INFO", JOBS[0]),
        ("[WARN", JOBS[0]),
        ('{"own', JOBS[0]),
        ("{own", JOBS[0]),
        ("REPOR", JOBS[0]),
    ]
    assert [event.message.split("\t")[-1] for event in invocation(events, OTHER)] == [
        f"START RequestId: {OTHER}",
        f"{JOBS[1]}, attempt 1",
        "slow",
        '{"own": 1}',
        "{own",
        "durationMs: 3",
    ]
