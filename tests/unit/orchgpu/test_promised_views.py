"""Promises as users see them: what became of the objectives of a job or run."""

from __future__ import annotations

import pytest

from contract.states import Reason
from gpu_scheduler.model import Step
from gpu_scheduler.promises import Slo
from orchgpu.cli.jobs.report import ending_status
from orchgpu.core.promised import promised, slo_in
from orchgpu.jobs.summary import summary_of
from tests.unit.orchgpu.jobs import record

SLO = Slo(latency_s=10.0)
#: Seconds, state, reason → what is shown.
CASES = [
    (3.0, "RUNNING", "NONE", "slo promised: 3.0 s of 10 s"),
    (12.0, "RUNNING", "NONE", "slo missed LATE: 12.0 s of 10 s"),
    (9.9, "SUCCEEDED", "NONE", "slo kept: 9.9 s of 10 s"),
    (10.5, "SUCCEEDED", "NONE", "slo missed LATE: 10.5 s of 10 s"),
    (4.0, "FAILED", "EXIT_NONZERO", "slo missed FAILED: 4.0 s of 10 s"),
    (4.0, "DEADLINE", "DEADLINE", "slo missed DEADLINE: 4.0 s of 10 s"),
    (4.0, "CANCELLED", "CANCELLED_BY_USER", "slo waived: 4.0 s of 10 s"),
    (0.1, "REJECTED", "SLO_BUSY", "slo refused: 0.1 s of 10 s"),
    (0.1, "REJECTED", "SLO_IMPOSSIBLE", "slo refused: 0.1 s of 10 s"),
]


@pytest.mark.parametrize(("seconds", "state", "reason", "shown"), CASES)
def test_a_promise_is_kept_or_missed_with_its_cause(
    seconds: float, state: str, reason: str, shown: str
) -> None:
    assert promised(SLO, seconds, state, reason).sentence == shown


def test_an_objective_of_cost_alone_has_no_time() -> None:
    assert promised(Slo(cost_usd=1.0), 99.0, "SUCCEEDED", "NONE").sentence == "slo kept"


#: Seconds, state, cost → what is shown of 10 s for at most 0.5 USD.
COSTS = [
    (3.0, "RUNNING", 0.25, "slo promised: 3.0 s of 10 s, 0.25 of 0.5 USD"),
    (3.0, "RUNNING", 0.75, "slo missed COST: 3.0 s of 10 s, 0.75 of 0.5 USD"),
    (9.0, "SUCCEEDED", 0.5, "slo kept: 9.0 s of 10 s, 0.5 of 0.5 USD"),
    (9.0, "SUCCEEDED", None, "slo kept: 9.0 s of 10 s"),
    (9.0, "SUCCEEDED", 0.51, "slo missed COST: 9.0 s of 10 s, 0.51 of 0.5 USD"),
    (9.0, "FAILED", 0.51, "slo missed COST: 9.0 s of 10 s, 0.51 of 0.5 USD"),
    (11.0, "SUCCEEDED", 0.51, "slo missed LATE: 11.0 s of 10 s, 0.51 of 0.5 USD"),
    (9.0, "CANCELLED", 0.51, "slo waived: 9.0 s of 10 s, 0.51 of 0.5 USD"),
]


@pytest.mark.parametrize(("seconds", "state", "cost_usd", "shown"), COSTS)
def test_what_was_paid_is_compared_with_the_objective_of_cost(
    seconds: float, state: str, cost_usd: float | None, shown: str
) -> None:
    slo = Slo(latency_s=10.0, cost_usd=0.5)
    assert promised(slo, seconds, state, "NONE", cost_usd).sentence == shown


@pytest.mark.parametrize(
    ("cost_usd", "word"),
    [(0.5, "slo missed COST"), (0.01, "slo kept"), ("0.5", "slo kept"), (True, "slo kept")],
)
def test_a_record_shows_the_cost_of_its_ended_job(cost_usd: object, word: str) -> None:
    block = {"slo": {"latency_s": None, "cost_usd": 0.1}, "cost_usd": cost_usd}
    ended = record(Step.ENDED, outcome="SUCCEEDED", reason="NONE", block=block, updated_s=20.0)
    found = summary_of(ended).promised
    assert found is not None
    assert found.word == word


def test_a_record_with_objectives_shows_them() -> None:
    block = {"slo": {"latency_s": 5.0, "cost_usd": None}}
    ended = record(Step.ENDED, outcome="SUCCEEDED", reason="NONE", block=block, updated_s=20.0)
    found = summary_of(ended).promised
    assert found is not None
    assert found.slo == Slo(latency_s=5.0)
    assert summary_of(record(Step.ENDED, outcome="SUCCEEDED")).promised is None


@pytest.mark.parametrize("block", [{}, {"slo": 3}, {"slo": {}}, {"slo": {"latency_s": -1}}])
def test_a_block_without_objectives_has_none(block: dict[str, object]) -> None:
    assert slo_in(block) is None


def test_the_status_of_refusals_is_that_of_the_scheduler() -> None:
    busy, never, failed = Reason.SLO_BUSY, Reason.SLO_IMPOSSIBLE, Reason.EXIT_NONZERO
    assert ending_status([]) == 0
    assert ending_status([busy]) == 6
    assert ending_status([busy, never]) == 7
    assert ending_status([busy, failed]) == 1
