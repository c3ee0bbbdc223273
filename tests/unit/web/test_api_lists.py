"""Lists and streams of the API: cursors over a list that changes, positions among lines."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.http_jobs import type_of
from corekit.errors import AppError, ErrorCode
from orchgpu.jobs.joblog import Line
from orchgpu.jobs.summary import JobSummary, summary_of
from orchgpu.web.api.jobs import Position
from orchgpu.web.api.state import AtOnce
from orchgpu.web.model.jobs import JobQuery, Jobs
from tests.unit.web.console_things import record


def job(number: int, received_s: int, tenant: str) -> JobSummary:
    name = f"j{number}"
    return summary_of(record(name, function="f", received_s=received_s, tenant=tenant))


change = st.tuples(st.integers(0, 30), st.integers(0, 9), st.sampled_from(["lab", "other"]))


@example([(0, 0, "lab"), (2, 1, "lab")], [[(1, 1, "lab")], [(1, 0, "other"), (1, 0, "lab")]], 1)
@given(st.lists(change, max_size=30), st.lists(st.lists(change, max_size=4)), st.integers(1, 4))
def test_pages_repeat_no_job_and_miss_none_while_others_come_and_go(
    first: list[tuple[int, int, str]], meanwhile: list[list[tuple[int, int, str]]], limit: int
) -> None:
    found, kept = Jobs(), dict[str, JobSummary]()
    for given_ in first:
        found.put(one := job(*given_))
        if one.tenant == "lab":
            kept[one.job] = found.get(one.job) or one
        else:
            kept.pop(one.job, None)
    listed, after, changes = list[JobSummary](), None, iter(meanwhile)
    gone = set[int]()  # a job arrives once
    while True:
        page = found.page(
            JobQuery(limit=limit, after=after), lambda one: one if one.tenant == "lab" else None
        )
        listed += [one for one in page.items if isinstance(one, JobSummary)]
        after = page.next
        if after is None:
            break
        for number, received_s, tenant in next(changes, ()):
            if f"j{number}" in kept:  # its state changes, and its place does not
                found.put(job(number, received_s, "lab"))
            elif tenant == "lab" and number not in gone:
                found.put(job(number, received_s, tenant))
            else:
                found.forget(f"j{number}")
                gone.add(number)
    names = [one.job for one in listed]
    assert len(names) == len(set(names))
    assert set(kept) <= set(names)
    assert listed == sorted(listed, key=lambda one: one.order, reverse=True)


lines = st.lists(st.integers(0, 5), max_size=12)


def _lines(times: list[int]) -> list[Line]:
    return [Line(at_s=float(at), where="function", text=str(n)) for n, at in enumerate(times)]


@given(lines, lines, st.integers(0, 12))
def test_a_stream_that_breaks_off_continues_with_the_next_line(
    before: list[int], late: list[int], read: int
) -> None:
    sent = sorted(_lines(before), key=lambda one: one.at_s)
    at = Position()
    for line in sent[:read]:
        at = at.after(line)
    assert Position.parse(at.text) == at
    assert at.left(sent) == sent[read:]
    more = sorted([*sent, *_lines(late)], key=lambda one: one.at_s)
    left = at.left(more)
    came_before = any(time < at.at_s for time in late)
    assert (left is None) is came_before
    if left is not None:
        assert sent[:read] + left == more, "nothing twice, nothing missed"


@given(lines)
def test_a_line_that_came_late_counts_to_those_before(times: list[int]) -> None:
    at = Position()
    for line in _lines(times):  # in the order of their writing
        at = at.after(line)
    assert at.left(sorted(_lines(times), key=lambda one: one.at_s)) == []


@pytest.mark.parametrize("text", [None, "", "x", "1_2", "1_x_3", "1.5_2_3_end"])
def test_another_text_is_no_position(text: str | None) -> None:
    expected = Position(at_s=1.5, before=2, rank=3) if text == "1.5_2_3_end" else Position()
    assert Position.parse(text) == expected


def test_requests_of_one_party_leave_room_for_another() -> None:
    at_once = AtOnce(1, 2, "requests wait")
    with at_once.one("a"), at_once.one("b"):
        for party in ("a", "c"):
            with pytest.raises(AppError) as refused, at_once.one(party):
                pass
            assert refused.value.code is ErrorCode.EXHAUSTED
    with at_once.one("a"):
        pass


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("a/b.png", "image/png"),
        ("b.json", "application/json"),
        ("c.tar.gz", "application/octet-stream"),
        ("noending", "application/octet-stream"),
    ],
)
def test_the_type_of_an_output_is_that_of_its_ending(key: str, kind: str) -> None:
    assert type_of(key) == kind
