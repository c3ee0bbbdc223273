"""The cost that a result states: of all attempts of a job with a cap."""

from __future__ import annotations

import pytest

from contract.envelope import Job
from contract.states import Reason
from lambda_functions.gpu_runner.job import cost_usd
from lambda_functions.gpu_runner.limits import TimeLimits
from tests.unit.gpu_runner.test_gpu_runner_envelope import JOB

COST = {"paid_usd": 0.5, "usd_per_s": 0.25, "since_s": 100.0}


@pytest.mark.parametrize(
    ("cost", "now_s", "expected"),
    [(None, 200.0, None), (COST, 104.0, 1.5), (COST, 99.0, 0.5), ({**COST, "since_s": 0}, 1, 0.75)],
)
def test_a_result_states_the_cost_of_a_job_with_a_cap(
    cost: dict[str, float] | None, now_s: float, expected: float | None
) -> None:
    assert cost_usd(cost, now_s) == expected


@pytest.mark.parametrize(
    ("booked_at_s", "waiting_usd_per_s", "expected"),
    [
        (None, 0.05, 0.5 + 4 * 0.25),
        (103.0, 0.05, 0.5 + 3 * 0.05 + 0.25),
        (103.0, None, 0.5 + 4 * 0.25),  # of an older orchestrator
        (99.0, 0.05, 0.5 + 4 * 0.25),
        (109.0, 0.05, 0.5 + 4 * 0.05),
    ],
)
def test_a_wait_for_the_device_costs_the_functions_seconds(
    booked_at_s: float | None, waiting_usd_per_s: float | None, expected: float
) -> None:
    cost = COST if waiting_usd_per_s is None else {**COST, "waiting_usd_per_s": waiting_usd_per_s}
    assert cost_usd(cost, 104.0, booked_at_s) == pytest.approx(expected)


def test_the_cap_of_a_job_ends_its_script_and_a_later_end_does_not() -> None:
    limits = TimeLimits.within(60.0)
    near = limits.capped({**COST, "cap_usd": 1.5}, 102.0)  # 2 s are left
    assert near.reason is Reason.MAX_COST
    assert limits.script_s - near.script_s > 40.0
    assert (near.end_s, near.grace_s) == (limits.end_s, limits.grace_s)
    assert limits.capped({**COST, "cap_usd": 100.0}, 102.0) is limits
    past = limits.capped({**COST, "cap_usd": 0.1}, 102.0)
    assert past.script_left_s == 0.0


@pytest.mark.parametrize("cost", [None, COST, {**COST, "cap_usd": 1.0, "usd_per_s": 0.0}])
def test_a_job_without_a_cap_has_its_own_time(cost: dict[str, float] | None) -> None:
    limits = TimeLimits.within(60.0)
    assert limits.capped(cost, 102.0) is limits


def test_an_envelope_of_an_older_orchestrator_has_no_cost() -> None:
    text = JOB.to_json().replace(b',"cost":null', b"")
    assert b"cost" not in text
    assert Job.from_json(text).cost is None
