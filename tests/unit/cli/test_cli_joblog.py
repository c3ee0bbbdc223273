"""Lines from several places as one stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchgpu.cli.joblog import (
    LATE_S,
    FunctionLog,
    Line,
    Programs,
    Stream,
    invocation,
    read_line,
)


def line(at_s: float, text: str) -> Line:
    return Line(at_s=at_s, where="function", text=text)


def test_each_line_is_told_once_by_time_whoever_tells_it() -> None:
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


def test_what_a_program_wrote_is_told_for_people() -> None:
    raw = {
        "time": "1970-01-01T00:01:40.500Z", "level": "warning", "logger": "x", "message": "m",
        "event": "e", "job": "j1", "own_ms": 3,
    }  # fmt: skip
    told = read_line("orchestrator", json.dumps(raw))
    assert told == Line(at_s=100.5, where="orchestrator", text="warning: m own_ms=3")


@pytest.mark.parametrize(
    "raw", ["", "Traceback", "[]", "{}", '{"time": "x", "message": ""}', "[" * 9999]
)
def test_what_is_no_line_of_ours_has_no_time(raw: str) -> None:
    assert read_line("x", raw) is None


def test_lines_of_programs_are_those_that_name_the_job_or_its_lease(tmp_path: Path) -> None:
    def said(text: str) -> str:
        return json.dumps({"time": "1970-01-01T00:00:01Z", "message": text}) + "\n"

    words = ["j1"]
    file = tmp_path / "gpu-a.log"
    file.write_text(said("about j1") + said("about lease-7") + "not j1 json\n" + said("j1")[:-1])
    programs = Programs(tmp_path, lambda: words)
    assert [told.text for told in programs()] == ["about j1"]
    words.append("lease-7")
    with file.open("a") as log:
        log.write("\n")
    assert [told.text for told in programs()] == ["about j1", "about lease-7", "j1"]


REQUEST, OTHER = "a" * 36, "b" * 36


def events(*messages: str) -> list[dict[str, Any]]:
    return [{"message": message, "timestamp": n} for n, message in enumerate(messages)]


def test_an_invocation_is_what_stands_between_its_start_and_its_report() -> None:
    written = events(
        f"START RequestId: {OTHER} Version: $LATEST", "other", f"END RequestId: {OTHER}",
        f"REPORT RequestId: {OTHER}\tDuration: 1 ms",
        f"START RequestId: {REQUEST} Version: $LATEST", "mine", f"END RequestId: {REQUEST}",
        f"REPORT RequestId: {REQUEST}\tDuration: 1 ms", "between",
    )  # fmt: skip
    assert [event["timestamp"] for event in invocation(written, REQUEST)] == [4, 5, 6, 7]


def test_a_stream_is_read_no_further_than_the_end_of_the_request() -> None:
    def endless() -> Iterator[dict[str, Any]]:
        yield from events(f"START RequestId: {REQUEST} Version: $LATEST", "mine")
        yield from events(
            f"END RequestId: {REQUEST}", f"REPORT RequestId: {REQUEST}\tDuration: 1 ms"
        )
        raise AssertionError("read on")

    assert len(list(invocation(endless(), REQUEST))) == 4


class ManyPages:
    """Of CloudWatch's client, what reads a log: pages of one line each, the oldest first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked_from_ms: list[int] = []

    def filter_log_events(self, **asked: Any) -> dict[str, Any]:
        self.asked_from_ms.append(asked["startTime"])
        page = int(asked.get("nextToken", "0"))
        event = {"message": f"line {page}", "timestamp": 1_000_000 + page}
        more = {"nextToken": str(page + 1)} if page + 1 < self.count else {}
        return {"events": [event] if page % 2 else [], **more}  # pages may be empty


def test_the_newest_lines_of_a_long_log_are_told_and_the_old_ones_asked_for_once() -> None:
    pages = ManyPages(100)
    log = FunctionLog(pages, "f")
    told = log.since(10.0)
    assert (len(told), told[-1].text, told[-1].at_s) == (50, "line 99", 1000.099)
    assert pages.asked_from_ms == [10_000] * 100
    log.since(10.0)
    assert pages.asked_from_ms[100] == int((1000.099 - LATE_S) * 1000)
