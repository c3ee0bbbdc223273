"""Measures of spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchgpu.history.measures import divided_s, merged, per_step_s, quantile, steps, total_s

SPANS = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 20)).map(
        lambda one: (float(one[0]), float(one[0] + one[1]))
    ),
    max_size=8,
)


def test_overlapping_spans_are_one() -> None:
    assert merged([(3, 4), (0, 2), (1, 3), (5, 5)]) == [(0, 4)]
    assert merged([(0, 1), (2, 3)]) == [(0, 1), (2, 3)]


def test_leases_that_hold_a_device_together_share_its_time() -> None:
    assert divided_s({"a": (0, 10), "b": (5, 10), "c": (20, 21)}) == {"a": 7.5, "b": 2.5, "c": 1}
    assert divided_s({"a": (0, 1), "b": (1, 2), "empty": (1, 1)}) == {"a": 1, "b": 1, "empty": 0}


@given(SPANS)
def test_the_parts_of_a_device_add_up_to_its_used_time(spans: list[tuple[float, float]]) -> None:
    parts = divided_s({str(number): span for number, span in enumerate(spans)})
    assert sum(parts.values()) == pytest.approx(total_s(merged(spans)))


@given(SPANS, st.floats(0.5, 30))
def test_the_steps_add_up_to_the_whole(spans: list[tuple[float, float]], step_s: float) -> None:
    union = merged(spans)
    assert sum(per_step_s(union, steps(0, 71, step_s))) == pytest.approx(total_s(union))


@pytest.mark.parametrize(
    ("values", "part", "found"),
    [([], 0.5, None), ([3.0], 0.95, 3.0), ([1, 2, 3, 4], 0.5, 2), ([4, 3, 2, 1], 0.95, 4)],
)
def test_quantiles(values: list[float], part: float, found: float | None) -> None:
    assert quantile(values, part) == found
