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
from tests.unit.orchgpu.jobs import FUNCTION, Bench, granted, record

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
