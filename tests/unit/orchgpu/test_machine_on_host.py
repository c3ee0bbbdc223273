"""Attempts that run on the host of their device: the order of the run, and its place."""

from __future__ import annotations

from typing import Any

import pytest

from contract.states import Reason
from corekit.values import replace
from gpu_scheduler.model import EndReason, Request, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.execution import HostFacts, Place, place_of
from orchgpu.core.function import Function, HostRun
from tests.unit.orchgpu.jobs import FUNCTION, JOB, NOW, Bench, granted, record, report

RUN = HostRun(package_bucket="state", package_key="packages/p.zip", programs=("function-runner",))
ON_HOST = replace(FUNCTION, execution="host", host=RUN)
AUTO = replace(FUNCTION, execution="auto", host=RUN, timeout_s=3600.0)
MIB = 2**20


def bench_of(function: Function, facts: HostFacts | None = None) -> Bench:
    bench = Bench()
    bench.machine.set_functions({"search": function})
    bench.machine.set_hosts({} if facts is None else {"search": facts})
    return bench


@pytest.fixture
def bench() -> Bench:
    return bench_of(ON_HOST)


def refused(bench: Bench, order: do.OrderRun, message: str, *, retryable: bool = True) -> None:
    bench.on(on.CallFailed, action=order, retryable=retryable, message=message)


# ---------------------------------------------------------------------- the order


def test_a_staged_attempt_is_ordered_of_its_host(bench: Bench) -> None:
    bench.read()
    opening = bench.one(do.OpenAttempt)
    assert opening.request.programs == ("function-runner",)
    assert (opening.payload["place"], opening.payload["place_why"]) == ("host", "it is declared so")
    bench.tell(on.AttemptGranted(**NOW, job=JOB, attempt=1, granted=granted(), record=record()))
    assert bench.one(do.StageEnvelope).place is Place.HOST
    bench.on(on.EnvelopeStaged, attempt=1)
    assert bench.kinds() == ["RecordStaged", "OrderRun"]
    order = bench.one(do.OrderRun)
    assert (order.function, order.granted) == (ON_HOST, granted())


def test_the_order_is_repeated_before_its_credentials_end(bench: Bench) -> None:
    bench.running()
    bench.on(on.RunOrdered, attempt=1, again_in_s=1800.0)
    armed = bench.one(do.ArmTimer)
    assert (armed.timer, armed.in_s) == (do.Timer.ORDER, 1800.0)
    bench.on(on.TimerFired, timer=do.Timer.ORDER)
    assert bench.kinds() == ["OrderRun"]
    bench.on(on.RunOrdered, attempt=1, again_in_s=None)
    assert bench.actions == ()


def test_an_order_that_fails_is_repeated_until_the_lease_ends(bench: Bench) -> None:
    bench.reserved()
    bench.on(on.EnvelopeStaged, attempt=1)
    order = bench.one(do.OrderRun)
    bench.on(on.StagedRecorded, attempt=1)
    for _ in range(12):
        refused(bench, order, "host gpu-a: DENIED: no roles", retryable=False)
        assert bench.one(do.RepeatLater).action == order
        bench.on(on.RepeatDue, action=order)
        assert bench.kinds() == ["OrderRun"]
    bench.ended(EndReason.NOT_STARTED, "no session")
    bench.on(on.RepeatDue, action=order)
    assert bench.actions == ()
    bench.unresolved(None)
    failed = bench.one(do.RecordAttemptFailure)
    assert failed.reason is Reason.NOT_STARTED
    assert failed.detail == "no session; its host: host gpu-a: DENIED: no roles"


def test_attempts_whose_order_came_too_late_do_not_count(bench: Bench) -> None:
    bench.running().ended(EndReason.NOT_STARTED)
    bench.unresolved(None)
    between = record(Step.RECEIVED, lease=None)
    bench.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
    bench.retried()
    assert bench.one(do.OpenAttempt).payload["first_attempt"] == 2


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (EndReason.SESSION_LOST, Reason.SESSION_LOST),
        (EndReason.CAP, Reason.CAP),
        (EndReason.DONE, Reason.SESSION_LOST),
        (EndReason.HOST_LOST, Reason.HOST_LOST),
        (EndReason.DEVICE_BAD, Reason.DEVICE_BAD),
    ],
)
def test_no_record_of_lambdas_is_waited_for(bench: Bench, end: EndReason, reason: Reason) -> None:
    bench.running().ended(end, "its run on the host ended (exit status 1): Killed")
    bench.unresolved(None)
    failed = bench.one(do.RecordAttemptFailure)
    assert (failed.reason, failed.detail[:32]) == (reason, "its run on the host ended (exit ")


def test_a_report_explains_the_end_as_ever(bench: Bench) -> None:
    bench.running().ended(EndReason.DONE)
    bench.unresolved(report())
    assert bench.one(do.RecordAttemptFailure).reason is Reason.EXIT_NONZERO


def test_data_that_no_host_can_have_ends_the_job_with_its_first_attempt(bench: Bench) -> None:
    why = "data set weights: s3://data/weights does not exist"
    bench.running().ended(EndReason.DATA_ERROR, why)
    bench.unresolved(None)
    written = bench.one(do.WriteResult).result
    assert (written.state, written.reason, written.attempt) == ("FAILED", "DATA_ERROR", 1)
    assert written.detail == why


# ---------------------------------------------------------------------- adoption


def left(step: Step, **block: Any) -> Any:
    kept = {**_block(), **block}
    return record(step, owner=None, block=kept)


def _block() -> dict[str, object]:
    bench = bench_of(ON_HOST)
    bench.read()
    return dict(bench.one(do.OpenAttempt).payload)


@pytest.mark.parametrize("step", [Step.STAGED, Step.RUNNING])
def test_an_adopter_repeats_the_order(bench: Bench, step: Step) -> None:
    found = left(step)
    bench.on(on.Orphaned, function="search", record=found)
    bench.on(on.Adopted, record=found, granted=granted())
    assert bench.kinds() == ["OrderRun"]


def test_an_adopters_order_names_the_envelope_that_was_stored() -> None:
    """A deploy meanwhile changes the form of later envelopes alone."""
    block = {**_block(), "place": "host", "form": "tar.gz"}  # of `auto`
    for step in (Step.STAGED, Step.RUNNING):
        bench = bench_of(ON_HOST)
        found = record(step, owner=None, block=block)
        bench.on(on.Orphaned, function="search", record=found)
        bench.on(on.Adopted, record=found, granted=granted())
        assert bench.one(do.OrderRun).form == "tar.gz"


def test_the_envelope_is_removed_whose_attempt_opened_before_a_deploy() -> None:
    bench = bench_of(AUTO)
    bench.running()
    bench.machine.set_functions({"search": replace(AUTO, envelope="tar.gz")})
    bench.ended(EndReason.DONE)
    bench.unresolved(report())
    between = record(Step.RECEIVED, lease=None)
    bench.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
    assert bench.one(do.RemoveEnvelope).form == "zip"


def test_an_adopter_of_a_run_in_lambda_orders_nothing(bench: Bench) -> None:
    found = left(Step.RUNNING, place="lambda")
    bench.on(on.Orphaned, function="search", record=found)
    bench.on(on.Adopted, record=found, granted=granted())
    assert bench.kinds() == []


# ---------------------------------------------------------------------- the place of `auto`


def place(function: Function = AUTO, facts: HostFacts | None = None, **job: Any) -> tuple[str, str]:
    values = {"size": 10, "ran_out": False, **job}
    choice = place_of(function, facts or HostFacts(), **values)
    return choice.place.value, choice.why


def test_the_place_of_each_case() -> None:
    absent = HostFacts(offered=False)
    assert place(FUNCTION) == ("lambda", "it is declared so")
    assert place(ON_HOST, absent) == ("host", "it is declared so")
    assert place() == ("lambda", "it fits Lambda")
    too_much = replace(AUTO, memory_mib=20480)
    why = "it needs 20480 MiB of memory, and Lambda has 10240 MiB"
    assert place(too_much) == place(too_much, absent) == ("host", why)
    why = "its input has 600 MiB, and Lambda's /tmp 512 MiB"
    assert place(size=600 * MIB) == place(facts=absent, size=600 * MIB) == ("host", why)
    slow = HostFacts(run_s=1200.0)
    assert place(facts=slow) == ("host", "its runs take 1200 s, and Lambda has 900 s")
    assert place(facts=HostFacts(run_s=700.0)) == ("lambda", "it fits Lambda")
    why = "an earlier attempt ran out of Lambda's 900 s"
    assert place(ran_out=True) == ("host", why)
    short = replace(AUTO, timeout_s=900.0)  # which a host would not exceed
    assert place(short, ran_out=True) == ("lambda", "it fits Lambda")
    assert place(facts=absent, ran_out=True) == (
        "lambda",
        f"no host offers to run it, although {why}",
    )


def test_a_host_runs_what_ran_out_of_lambdas_time() -> None:
    bench = bench_of(AUTO)
    bench.read()
    first = bench.one(do.OpenAttempt)
    assert (first.payload["place"], first.request.programs) == ("lambda", ())
    bench.tell(on.AttemptGranted(**NOW, job=JOB, attempt=1, granted=granted(), record=record()))
    bench.staged()
    assert "OrderRun" not in bench.kinds()
    bench.ended(EndReason.DONE)
    bench.unresolved(report("TIMEOUT"))
    between = record(Step.RECEIVED, lease=None)
    bench.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
    removed = bench.one(do.RemoveEnvelope)
    assert removed.form == "zip"
    bench.retried()
    second = bench.one(do.OpenAttempt)
    assert (second.payload["place"], second.payload["ran_out"]) == ("host", True)
    assert second.request.programs == ("function-runner",)


def test_an_adopter_between_attempts_knows_that_lambda_was_too_short() -> None:
    before = bench_of(AUTO)
    before.read()
    block = dict(before.one(do.OpenAttempt).payload)
    bench = bench_of(AUTO)
    bench.adopted(record(Step.RECEIVED, owner=None, block=block, lease=None, reason="TIMEOUT"))
    bench.on(on.ResultRead, result=None)
    assert bench.one(do.OpenAttempt).payload["place"] == "host"


def test_the_envelope_of_a_run_on_a_host_starts_no_lambda_function() -> None:
    """The suffix of `auto`'s notification is that of its envelopes for Lambda."""
    assert (AUTO.envelope_form(), AUTO.envelope_form(Place.HOST)) == ("zip", "tar.gz")
    packed = replace(AUTO, envelope="tar.gz")
    assert (packed.envelope_form(), packed.envelope_form(Place.HOST)) == ("tar.gz", "zip")
    assert ON_HOST.envelope_form(Place.HOST) == "zip"


def test_no_lease_of_a_run_on_a_host_is_taken_ahead() -> None:
    function = replace(ON_HOST, advance_s=30.0, memory_mib=512, request=Request(count=1))
    assert function.advance is not None
    bench = bench_of(function)
    bench.read()
    assert bench.one(do.OpenAttempt).request.advance is None
