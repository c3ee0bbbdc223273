"""Measures of jobs by HARDLESS' names: pure functions of their moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchgpu.jobs.measures import MOMENTS, latencies, moments_of
from simulator.workloads.rates import (
    count_over_time,
    out_of_order,
    rfast,
    rfast_curve,
    rfast_max,
)

STEPS = {"RECEIVED": 100.5, "RUNNING": 101.0, "COMMITTED": 104.0, "ENDED": 104.5}
COMPUTED = {"EStart": 102.0, "EEnd": 103.5}


def test_latencies_are_differences_of_moments() -> None:
    moments = moments_of(100.0, STEPS, COMPUTED)
    assert [moments[name] for name in MOMENTS] == [100.0, 100.5, 102.0, 103.5, 104.0, 104.5]
    assert latencies(moments) == {"RLat": 4.5, "DLat": 2.0, "ELat": 1.5}
    assert out_of_order(moments) == ()


def test_moments_that_did_not_happen_are_missing() -> None:
    moments = moments_of(100.0, {"RECEIVED": 101.0}, {})
    assert latencies(moments) == {"RLat": None, "DLat": None, "ELat": None}
    assert out_of_order(moments) == ()
    late = moments_of(100.0, STEPS, {"EStart": 102.0, "EEnd": 101.0})
    assert out_of_order(late) == ("EEnd",)


def test_rfast_counts_the_successes_of_ten_seconds() -> None:
    ends = [float(second) for second in range(1, 31)]
    assert rfast(ends, 10.0) == 1.0
    assert rfast(ends, 35.0) == 0.5
    assert rfast(ends, 0.0) == 0.0
    assert rfast_max([1.0, 2.0, 2.5, 14.0]) == pytest.approx(0.3)
    assert rfast_max([]) == 0.0
    assert rfast_curve(ends, 0.0, 12.0) == [(10.0, 1.0), (11.0, 1.0), (12.0, 1.0)]
    assert rfast_curve(ends, 0.0, 9.0) == []


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.floats(0.5, 20))
def test_no_moment_has_a_higher_rfast_than_the_maximum(ends: list[float], window_s: float) -> None:
    highest = rfast_max(ends, window_s)
    assert 0 < highest <= len(ends) / window_s
    curve = rfast_curve(ends, 0.0, 120.0, window_s=window_s)
    assert all(rate <= highest for _, rate in curve)


def test_open_intervals_are_counted_over_time() -> None:
    assert count_over_time([1.0, 2.0], [3.0, 3.0]) == [(1.0, 1), (2.0, 2), (3.0, 0)]
    assert count_over_time([1.0, 3.0], [3.0]) == [(1.0, 1), (3.0, 1)]
    assert count_over_time([], []) == []
