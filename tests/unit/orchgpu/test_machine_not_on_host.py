"""Attempts on hosts that lack a data set or program, and the provenance of results."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from contract.provenance import RELEASE
from contract.states import Reason
from corekit.values import replace
from gpu_scheduler.model import EndReason, LeaseState, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from tests.unit.orchgpu.jobs import (
    FUNCTION,
    JOB,
    NOW,
    VERSION,
    Bench,
    granted,
    record,
    report,
)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def end_without(bench: Bench, n: int, **lacks: list[str]) -> None:
    """Attempt `n` failed on a host that lacks this data or these programs."""
    ended = on.LeaseChanged(
        **NOW, job=JOB, attempt=n, state=LeaseState.ENDED, reason=EndReason.DONE, detail=""
    )
    bench.tell(ended)
    bench.on(on.ResultRead, result=None)
    failed = dataclasses.replace(report(attempt=n), reason="NOT_ON_HOST", lacks=lacks)
    bench.on(on.ReportRead, attempt=n, report=failed)


def next_attempt(bench: Bench, n: int) -> do.OpenAttempt:
    """The failure of attempt `n` is recorded, and its pause is over."""
    between = record(Step.RECEIVED, attempt=n, lease=None)
    bench.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
    bench.retried()
    return bench.one(do.OpenAttempt)


def grant(bench: Bench, n: int) -> None:
    again = on.AttemptGranted(
        **NOW, job=JOB, attempt=n, record=record(attempt=n), granted=granted(n)
    )
    bench.tell(again)


def test_what_a_host_lacked_is_a_requirement_of_the_next_request(bench: Bench) -> None:
    bench.running()
    end_without(bench, 1, data=["nr"])
    failed = bench.one(do.RecordAttemptFailure)
    assert (failed.reason, failed.pause_s) == (Reason.NOT_ON_HOST, 0.0)
    opened = next_attempt(bench, 1)
    assert (opened.request.data, opened.request.programs) == (("nr",), ())
    assert (opened.attempt, opened.payload["first_attempt"]) == (2, 2)  # not counted
    grant(bench, 2)
    end_without(bench, 2, programs=["blast"])
    opened = next_attempt(bench, 2)
    assert (opened.request.data, opened.request.programs) == (("nr",), ("blast",))
    assert opened.payload["lacked"] == {"data": ["nr"], "programs": ["blast"]}
    assert opened.payload["first_attempt"] == 3


def test_an_adopter_asks_for_what_hosts_lacked(bench: Bench) -> None:
    before = Bench()
    before.running()
    end_without(before, 1, data=["nr"])
    block = next_attempt(before, 1).payload
    between = record(Step.RECEIVED, owner=None, block=block, attempt=2, lease=None)
    bench.adopted(between)
    bench.on(on.ResultRead, result=None)
    assert bench.one(do.OpenAttempt).request.data == ("nr",)


@pytest.mark.parametrize(
    "lacks",
    [
        {},
        {"data": ["declared"]},  # the host reported it, and its worker has not got it
        {"data": ["not a name"]},
        {"programs": [f"p{n}" for n in range(5)]},  # more than a script needs
        {"data": "nr"},
        {"data": [1]},
    ],
)
def test_what_would_not_help_counts_as_a_failure(lacks: Any) -> None:
    bench = Bench()
    function = replace(FUNCTION, request=replace(FUNCTION.request, data=("declared",)))
    bench.machine.set_functions({"search": function})
    bench.running()
    end_without(bench, 1, **lacks)
    assert bench.one(do.RecordAttemptFailure).reason is Reason.EXIT_NONZERO
    assert next_attempt(bench, 1).payload["first_attempt"] == 1


def test_the_same_name_twice_counts_from_then_on(bench: Bench) -> None:
    """No loop without an end: each attempt that does not count adds a name, four at most."""
    bench.running()
    counted = []
    for n in range(1, 8):
        end_without(bench, n, data=["nr"])
        if bench.kinds() == ["WriteResult"]:
            break
        counted.append(bench.one(do.RecordAttemptFailure).reason)
        next_attempt(bench, n)
        grant(bench, n + 1)
    assert counted == [Reason.NOT_ON_HOST, Reason.EXIT_NONZERO, Reason.EXIT_NONZERO]


def test_a_result_of_the_orchestrator_has_the_provenance_that_it_knows(bench: Bench) -> None:
    bench.running()
    bench.ended(EndReason.DONE)
    bench.on(on.ResultRead, result=None)
    failed = dataclasses.replace(report(), reason="SECRET_ERROR", provenance={})
    bench.on(on.ReportRead, attempt=1, report=failed)
    found = bench.one(do.WriteResult).result.provenance
    assert found["function"]["name"] == "search"
    assert found["input"]["version"] == VERSION
    assert found["devices"] == [{"host": "gpu-a", "kind": "cpu", "model": "EPYC"}]
    assert found["versions"] == {"orchgpu": RELEASE}


def test_a_failed_result_has_the_provenance_of_its_last_report(bench: Bench) -> None:
    bench.running()
    bench.ended(EndReason.DONE)
    bench.on(on.ResultRead, result=None)
    seen = {"data": {"nr": "0"}, "of a newer version": 1}
    failed = dataclasses.replace(report(), reason="SECRET_ERROR", provenance=seen)
    bench.on(on.ReportRead, attempt=1, report=failed)
    assert bench.one(do.WriteResult).result.provenance == seen
