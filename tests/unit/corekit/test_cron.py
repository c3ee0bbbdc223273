"""Cron expressions: what is translated, what is refused, and times around changes of clocks."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.cron import aws_cron, aws_times
from corekit.errors import AppError

MADRID = ZoneInfo("Europe/Madrid")


@pytest.mark.parametrize(
    ("five", "aws"),
    [
        ("0 3 * * 1", "cron(0 3 ? * MON *)"),
        ("*/5 * * * *", "cron(0/5 * * * ? *)"),
        ("0 9-17 * * 1-5", "cron(0 9-17 ? * MON-FRI *)"),
        ("15,45 */2 1 1,6 *", "cron(15,45 0/2 1 1,6 ? *)"),
        ("0 0 * * 7", "cron(0 0 ? * SUN *)"),
        ("0 0 * * sun,wed-fri", "cron(0 0 ? * SUN,WED-FRI *)"),
        ("7/10 0 */2 jan *", "cron(7/10 0 1/2 1 ? *)"),
        ("0 0 1-31 * 1", "cron(0 0 * * ? *)"),  # cron runs on either of two days
        ("0 0 * * 0-7", "cron(0 0 * * ? *)"),
        ("0 0 */2 * 0-6", "cron(0 0 1/2 * ? *)"),
    ],
)
def test_five_fields_in_eventbridges_form(five: str, aws: str) -> None:
    assert aws_cron(five) == aws


@pytest.mark.parametrize(
    ("five", "why"),
    [
        ("0 0 1 * 1", "EventBridge takes one of the two"),
        ("0 0 */2 * 1", "EventBridge takes one of the two"),
        ("* * * *", "five fields"),
        ("0 0 * * ? *", "five fields"),
        ("@daily", "five fields"),
        ("61 * * * *", "Bad minute"),
        ("0 0 30 2 *", "Bad day-of-month"),
        ("0 0 L * *", "`L` and `#`"),
        ("0 0 * * 1#2", "`L` and `#`"),
    ],
)
def test_what_eventbridge_cannot_express_is_refused(five: str, why: str) -> None:
    with pytest.raises(AppError, match=why):
        aws_cron(five)


def local(expression: str, begin: datetime, count: int = 3, *, back: bool = False) -> list[str]:
    begin_s = begin.replace(tzinfo=MADRID).timestamp()
    times = islice(aws_times(expression, "Europe/Madrid", begin_s, back=back), count)
    return [datetime.fromtimestamp(at_s, MADRID).strftime("%d %H:%M %z") for at_s in times]


CLOCKS = [
    # 2026-03-29: 02:00 to 03:00 does not exist
    ("cron(30 2 * * ? *)", datetime(2026, 3, 28, 12), ["30 02:30 +0200", "31 02:30 +0200"]),
    ("cron(0 3 * * ? *)", datetime(2026, 3, 28, 12), ["29 03:00 +0200", "30 03:00 +0200"]),
    ("cron(0/30 * * * ? *)", datetime(2026, 3, 29, 1, 15), ["29 01:30 +0100", "29 03:00 +0200"]),
    # 2026-10-25: 02:00 to 03:00 comes twice
    ("cron(30 2 * * ? *)", datetime(2026, 10, 24, 12), ["25 02:30 +0200", "26 02:30 +0100"]),
    ("cron(0/30 * * * ? *)", datetime(2026, 10, 25, 2, 15), ["25 02:30 +0200", "25 03:00 +0100"]),
    (
        "cron(0/30 * * * ? *)",
        datetime(2026, 10, 25, 2, 15, fold=1),
        ["25 03:00 +0100", "25 03:30 +0100"],
    ),
]


@pytest.mark.parametrize(("expression", "begin", "wanted"), CLOCKS)
def test_times_around_a_change_of_clocks(
    expression: str, begin: datetime, wanted: list[str]
) -> None:
    assert local(expression, begin, len(wanted)) == wanted


def test_times_before_a_moment_are_the_same_ones() -> None:
    assert local("cron(30 2 * * ? *)", datetime(2026, 3, 30, 2), 2, back=True) == [
        "28 02:30 +0100",
        "27 02:30 +0100",
    ]


def test_weekdays_have_eventbridges_numbers() -> None:
    monday = datetime(2026, 11, 23, tzinfo=UTC).timestamp()
    for weekday in ("2", "MON", "2#4"):
        found = next(aws_times(f"cron(0 0 ? * {weekday} *)", "UTC", monday - 1))
        assert found == monday


@pytest.mark.parametrize(
    "wrong",
    ["0 0 * * *", "cron(0 0 * * * *)", "cron(0 0 ? * ? *)", "cron(0 0 * * ? 2027)", "cron(x)"],
)
def test_another_form_is_refused(wrong: str) -> None:
    with pytest.raises(AppError, match="is not cron"):
        next(aws_times(wrong, "UTC", 0.0))


@pytest.mark.parametrize("zone", ["Europe/Nowhere", "../etc", "", "Europe"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(AppError, match="not a time zone"):
        next(aws_times("cron(0 0 * * ? *)", zone, 0.0))


def _items(first: int, last: int) -> st.SearchStrategy[str]:
    value = st.integers(first, last)
    two = st.lists(value, min_size=2, max_size=2, unique=True)
    span = two.map(lambda ends: f"{min(ends)}-{max(ends)}")
    step = st.tuples(st.just("*"), st.integers(1, last)).map(lambda both: f"{both[0]}/{both[1]}")
    some = st.lists(st.one_of(value.map(str), span), min_size=1, max_size=3).map(",".join)
    return st.one_of(st.just("*"), some, step)


@st.composite
def five_fields(draw: st.DrawFn) -> str:
    day, weekday = draw(
        st.one_of(
            st.tuples(_items(1, 28), st.just("*")),
            st.tuples(st.just("*"), _items(0, 6)),
        )
    )
    fields = [draw(_items(0, 59)), draw(_items(0, 23)), day, draw(_items(1, 12)), weekday]
    return " ".join(fields)


@given(five=five_fields(), begin_s=st.integers(0, 2_000_000_000))
def test_a_translation_has_the_times_of_a_second_reader(five: str, begin_s: int) -> None:
    croniter = pytest.importorskip("croniter", reason="the test extra has it").croniter
    begin = datetime.fromtimestamp(begin_s, UTC)
    ours = list(islice(aws_times(aws_cron(five), "UTC", begin_s), 3))
    theirs = croniter(five, begin)
    assert ours == [theirs.get_next(float) for _ in range(3)]
