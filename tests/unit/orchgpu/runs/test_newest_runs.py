"""Keys that name runs, the newest first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contract.run import RUN_ID, run_id, run_key, run_prefix
from orchgpu.core.runs.newest import newest_key, newest_prefix, newest_run

times = st.floats(min_value=0, max_value=1e11)
runs = st.integers(min_value=0).map(lambda n: run_id("b", f"{n}", "v", "film"))


@given(runs, times, runs, times)
def test_the_keys_of_newer_runs_come_first(
    one: str, at_s: float, other: str, later_s: float
) -> None:
    first, second = newest_key("film", one, at_s), newest_key("film", other, later_s)
    assert (newest_run(first), newest_run(second)) == (one, other)
    assert first.startswith(newest_prefix("film"))
    assert not first.startswith(newest_prefix("fil"))
    if later_s > at_s + 0.001:
        assert second < first


def test_other_keys_name_no_run() -> None:
    run = run_id("b", "k", "v", "film")
    assert newest_run(run_key(run)) is None
    assert not RUN_ID.fullmatch("newest"), "no run's prefix is the index's"
    assert not newest_key("film", run, 1.0).startswith(run_prefix(run))
