"""Attempts at an HTTP service: ordered until a container takes the event, and by an adopter."""

from __future__ import annotations

import pytest

from contract.states import Reason
from corekit.values import replace
from gpu_scheduler.model import EndReason, Request, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.execution import Place
from orchgpu.core.function import HostRun
from tests.unit.orchgpu.jobs import FUNCTION, JOB, Bench, granted, record
from tests.unit.orchgpu.test_machine_times import end_not_started, later, open_next

RUN = HostRun(package_bucket="state", package_key="p.zip", programs=("function-runner",))
AT_SERVICE = replace(FUNCTION, host=replace(RUN, service="http://fn"))
WITHOUT = replace(AT_SERVICE, request=Request(count=0))


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.machine.set_functions({"search": AT_SERVICE})
    return made.read()


def test_its_request_is_that_of_a_function_in_lambda(bench: Bench) -> None:
    opening = bench.one(do.OpenAttempt)
    assert (opening.payload["place"], opening.request) == ("service", FUNCTION.request)


def test_a_staged_attempt_is_ordered_and_again_when_no_container_took_it(bench: Bench) -> None:
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    assert bench.one(do.StageEnvelope).place is Place.SERVICE
    bench.on(on.EnvelopeStaged, attempt=1)
    order = bench.one(do.OrderRun)
    assert bench.kinds() == ["RecordStaged", "OrderRun"]
    bench.on(on.StagedRecorded, attempt=1)
    message = "http://fn answered 503: 'no pod'"
    bench.on(on.CallFailed, action=order, retryable=True, message=message)
    assert bench.one(do.RepeatLater).action == order
    bench.on(on.RepeatDue, action=order)
    assert bench.kinds() == ["OrderRun"]
    bench.ended(EndReason.NOT_STARTED, "no session")
    bench.unresolved(None)  # no record of Lambda's is waited for
    failed = bench.one(do.RecordAttemptFailure)
    assert (failed.reason, failed.detail) == (Reason.NOT_STARTED, f"no session; {message}")


@pytest.mark.parametrize(("exhausted", "ends"), [(True, False), (False, True)])
def test_a_service_that_has_a_run_fails_no_job_however_long(
    bench: Bench, *, exhausted: bool, ends: bool
) -> None:
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    bench.staged()
    for n, at_s in ((1, 10.0), (2, 5000.0)):
        order = do.OrderRun(job=JOB, attempt=n, function=AT_SERVICE, granted=granted(n))
        failed = on.CallFailed(
            **later(at_s),
            job=JOB,
            action=order,
            retryable=True,
            message="busy",
            exhausted=exhausted,
        )
        bench.tell(failed)
        end_not_started(bench, n, at_s=at_s)
        if n == 1:
            open_next(bench, n, at_s=at_s)
    assert (bench.kinds() == ["WriteResult"]) is ends
    if not ends:
        assert bench.one(do.RecordAttemptFailure).detail == "no session in time; busy"


def test_a_late_answer_is_not_that_of_the_next_attempt(bench: Bench) -> None:
    bench.on(on.AttemptGranted, attempt=1, granted=granted(), record=record())
    bench.staged()
    first = do.OrderRun(job=JOB, attempt=1, function=AT_SERVICE, granted=granted())
    end_not_started(bench, 1, at_s=10.0)
    open_next(bench, 1, at_s=20.0)
    bench.on(on.CallFailed, action=first, retryable=True, message="no answer in 120 s")
    end_not_started(bench, 2, at_s=200.0)
    assert bench.one(do.RecordAttemptFailure).detail == "no session in time"


def test_an_adopter_orders_an_attempt_without_a_device_once() -> None:
    first, bench = Bench(), Bench()
    for one in (first, bench):
        one.machine.set_functions({"search": WITHOUT})
    block = first.read().one(do.OpenAttempt).payload
    bench.adopted(record(Step.STAGED, with_device=False, owner=None, block=block))
    for orders in (["OrderRun"], []):
        bench.unresolved(None)
        assert bench.kinds() == orders
        bench.on(on.TimerFired, timer=do.Timer.CHECK)
