"""The timing budget, units and ids."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.aio.environment import SCALE_VARIABLE, budget_from_environment
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import AttemptId, IdSource, JobId, attempt_id, split_attempt
from corekit.units import (
    WHOLE_PERMILLE,
    format_bytes,
    format_duration,
    format_percent,
    parse_duration_s,
    parse_memory_mib,
    parse_percent,
    percent_of,
    permille_of,
)


@given(st.floats(min_value=0.001, max_value=100))
def test_every_scale_keeps_the_inequalities(factor: float) -> None:
    assert Budget().scaled(factor).check()


def test_a_standby_grants_again_within_five_seconds() -> None:
    """Less the work: reads and puts of the log, hellos, the full state of a host."""
    assert Budget().granting_again_s <= 4.75


def test_scaling_leaves_counts_alone() -> None:
    scaled = Budget().scaled(1 / 20)
    assert scaled.visibility_s == pytest.approx(6.0)
    assert scaled.strikes_max == 3
    assert scaled.inline_input_bytes_max == 8 * 2**20


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        ("visibility_beat_s", 40.0, "visibility_beat_s <= visibility_s / 4"),
        ("host_lost_s", 5.0, "host_stale_s <= host_lost_s"),
        ("reserved_ttl_s", 121.0, "reserved_ttl_s <= visibility_s"),
        (
            "failover_connect_s",
            2.0,
            "leader_beat_s + standby_poll_s + failover_connect_s <= takeover_s",
        ),
        ("retry_base_s", 0.0, "every time and count is positive"),
    ],
)
def test_a_contradiction_is_named(field: str, value: float, named: str) -> None:
    changes: dict[str, Any] = {field: value}
    with pytest.raises(AppError) as caught:
        dataclasses.replace(Budget(), **changes).check()
    assert named in caught.value.message


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "101", "nan"])
def test_a_bad_time_scale_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SCALE_VARIABLE, text)
    with pytest.raises(AppError, match=SCALE_VARIABLE):
        budget_from_environment()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), (90, 90), ("1.5m", 90), ("250ms", 0.25), ("2 h", 7200), (0, 0)],
)
def test_durations(text: str | float, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5 parsecs", "-3", -3, float("nan"), True, "1e3", "٤٠٠"])
def test_bad_durations(text: str | float) -> None:
    with pytest.raises(AppError):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("text", "mib"), [("4GiB", 4096), (4096, 4096), ("4096", 4096), ("1 GB", 954), ("16gi", 16384)]
)
def test_memory(text: str | int, mib: int) -> None:
    assert parse_memory_mib(text) == mib


@pytest.mark.parametrize("text", ["", "x", "-1", -1, True, "4 floppies", "٤٠٠", "４GiB"])
def test_bad_memory(text: str | int) -> None:
    with pytest.raises(AppError):
        parse_memory_mib(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.004, "4 ms"), (0.84, "0.84 s"), (12.3, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_bytes_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 3277, 3 * 2**30)] == [
        "0 B",
        "1023 B",
        "3.2 KiB",
        "3.0 GiB",
    ]


def test_one_kind_of_id_never_changes_another() -> None:
    alone, mixed = IdSource(7), IdSource(7)
    expected = [alone.new("lease") for _ in range(3)]
    got = []
    for _ in range(3):
        mixed.new("session")
        got.append(mixed.new("lease"))
    assert got == expected
    assert len(set(got)) == 3


@pytest.mark.parametrize("job", ["j1", "tenant:of:somewhere"])
def test_an_attempt_id_names_its_job_and_number(job: str) -> None:
    assert split_attempt(attempt_id(JobId(job), 12)) == (job, 12)


@pytest.mark.parametrize("text", ["", "j1", ":1", "j1:", "j1:x"])
def test_an_id_without_job_or_number_is_not_an_attempt(text: str) -> None:
    with pytest.raises(ValueError):
        split_attempt(AttemptId(text))


def test_every_percentage_with_one_decimal_is_an_integer_of_permille() -> None:
    for permille in range(WHOLE_PERMILLE + 1):
        percent = percent_of(permille)
        assert permille_of(percent) == permille == 10 * percent
        assert isinstance(percent, int) is (permille % 10 == 0)
        assert parse_percent(format_percent(percent)) == percent


@pytest.mark.parametrize(
    ("text", "percent", "shown"),
    [
        ("25", 25, "25 %"),
        ("12.5", 12.5, "12.5 %"),
        (" 12.0 % ", 12, "12 %"),
        ("0.1%", 0.1, "0.1 %"),
    ],
)
def test_percentages(text: str, percent: float, shown: str) -> None:
    assert parse_percent(text) == percent
    assert format_percent(parse_percent(text)) == shown


@pytest.mark.parametrize("text", ["", "%", "12.55", "-1", "1e1", "nan", "12,5", "\u0661"])
def test_what_is_not_a_percentage_is_refused(text: str) -> None:
    with pytest.raises(AppError, match="is not a percentage; write a number such as 25 or"):
        parse_percent(text)
