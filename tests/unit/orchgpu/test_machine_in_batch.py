"""Attempts in AWS Batch: the order, what Batch shows of its runs, deadlines, ends, adoption."""

from __future__ import annotations

from typing import Any

import pytest

from contract.claim import Claim
from contract.states import Reason
from contract.timing import CAP_SLACK_S
from corekit.budget import Budget
from corekit.values import replace
from gpu_scheduler.model import Request, Step
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.core.batch import BatchRun
from orchgpu.core.execution import Place
from orchgpu.core.function import BatchPlace, HostRun
from tests.unit.orchgpu.jobs import FUNCTION, JOB, NOW, Bench, record, report, result

PLACE = BatchPlace(queue="gpus", definition="fold", start_s=1800.0)
RUN = HostRun(
    package_bucket="state",
    package_key="packages/p.zip",
    log_group="/aws/batch/job",
    batch=PLACE,
)
IN_BATCH = replace(FUNCTION, request=Request(count=0), execution="host", host=RUN)
BUDGET = Budget()
WALL_S = NOW["wall_s"]
QUEUED = BatchRun(id="b1", state="RUNNABLE")
RUNNING = BatchRun(id="b1", state="RUNNING", ran=True)
LOST = BatchRun(id="b1", state="FAILED", why=("Host EC2 (instance i-1) terminated.",), ran=True)
NEVER = BatchRun(id="b1", state="FAILED", why=("CannotPullContainerError: no such image",))


def claim(request: str = "b1", ends_in_s: float = 60.0) -> Claim:
    ends_at_s = WALL_S + ends_in_s
    return Claim(job_id=JOB, attempt=1, request=request, claimed_at_s=WALL_S, ends_at_s=ends_at_s)


def armed(bench: Bench, timer: do.Timer) -> list[float]:
    found = [a for a in bench.actions if isinstance(a, do.ArmTimer)]
    return [action.in_s for action in found if action.timer is timer]


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.machine.set_functions({"search": IN_BATCH})
    return made.read()


@pytest.fixture
def watched(bench: Bench) -> Bench:
    bench.on(on.AttemptOpened, attempt=1, record=record(Step.RECEIVED, with_device=False))
    assert bench.one(do.StageEnvelope).place is Place.BATCH
    bench.on(on.EnvelopeStaged, attempt=1)
    bench.on(on.StagedRecorded, attempt=1)
    return bench


def looked(bench: Bench, *runs: BatchRun, at_s: float = NOW["at_s"]) -> None:
    """A look that finds neither a result nor a report, and these runs."""
    bench.on(on.TimerFired, timer=do.Timer.CHECK)
    found(bench, *runs, at_s=at_s)


def found(bench: Bench, *runs: BatchRun, at_s: float = NOW["at_s"]) -> None:
    bench.one(do.ReadResult)
    bench.on(on.ResultRead, result=None)
    bench.one(do.ReadReport)
    bench.on(on.ReportRead, attempt=1, report=None)
    bench.one(do.ReadRuns)
    bench.on(on.RunsRead, attempt=1, runs=runs, at_s=at_s)


def failed(bench: Bench) -> tuple[Reason, str]:
    """The failure, once the last look has found nothing."""
    bench.one(do.ReadResult)
    bench.unresolved(None)
    recorded = bench.one(do.RecordAttemptFailure)
    return recorded.reason, recorded.detail


# ---------------------------------------------------------------------- order and start


def test_a_staged_attempt_is_ordered_without_a_lease(bench: Bench) -> None:
    opening = bench.one(do.OpenAttempt)
    assert (opening.request.count, opening.payload["place"]) == (0, "batch")
    bench.on(on.AttemptOpened, attempt=1, record=record(Step.RECEIVED, with_device=False))
    bench.on(on.EnvelopeStaged, attempt=1)
    assert bench.kinds() == ["RecordStaged", "OrderRun"]
    assert bench.one(do.OrderRun).granted is None


def test_its_start_has_the_declared_time(watched: Bench) -> None:
    assert armed(watched, do.Timer.DEADLINE) == [1800.0]
    watched.on(on.RunOrdered, attempt=1, again_in_s=None)
    assert watched.actions == ()


def test_a_queue_is_waited_for(watched: Bench) -> None:
    for run in (QUEUED, RUNNING):
        looked(watched, run)
        assert watched.kinds() == [], "only the next check"
        assert len(armed(watched, do.Timer.CHECK)) == 1


def test_a_wait_in_batchs_queue_is_no_late_start(watched: Bench) -> None:
    for state in ("SUBMITTED", "PENDING", "RUNNABLE"):
        looked(watched, replace(QUEUED, state=state))
        assert armed(watched, do.Timer.DEADLINE) == [1800.0], "again"
    for run in (replace(QUEUED, state="STARTING"), RUNNING):
        looked(watched, run)
        assert armed(watched, do.Timer.DEADLINE) == [], "from the queue, as long as declared"


def test_a_queue_is_waited_for_while_the_message_can_be_kept(watched: Bench) -> None:
    latest_s = NOW["at_s"] + BUDGET.job_receipt_s_max - IN_BATCH.timeout_s - CAP_SLACK_S
    for at_s, in_s in ((latest_s - 5.0, 5.0), (latest_s + 5.0, 0.0)):
        looked(watched, QUEUED, at_s=at_s)
        assert armed(watched, do.Timer.DEADLINE) == [pytest.approx(in_s)]
    watched.on(on.TimerFired, timer=do.Timer.DEADLINE)
    watched.one(do.CloseAttempt)
    watched.on(on.AttemptClosed, attempt=1, claim=claim(""))
    _, detail = failed(watched)
    assert "in Batch's queue until its message could be kept no longer; Batch: job b1" in detail


def test_the_last_words_of_batch_are_in_the_reason_of_a_late_start(watched: Bench) -> None:
    looked(watched, replace(QUEUED, state="STARTING", why=("MISCONFIGURATION:X",)))
    watched.on(on.TimerFired, timer=do.Timer.CHECK)
    watched.on(on.ResultRead, result=None)
    watched.on(on.ReportRead, attempt=1, report=None)
    watched.on(on.RunsRead, attempt=1, runs=None)  # it did not answer
    watched.on(on.TimerFired, timer=do.Timer.DEADLINE)
    watched.on(on.AttemptClosed, attempt=1, claim=claim(""))
    assert failed(watched)[1] == (
        "the function did not start within 1800 s of its envelope"
        "; Batch: job b1 is STARTING: MISCONFIGURATION:X"
    )


def test_lambda_is_not_blamed_for_a_run_of_batchs(watched: Bench) -> None:
    looked(watched, RUNNING)
    watched.on(on.TimerFired, timer=do.Timer.DEADLINE)
    watched.on(on.AttemptClosed, attempt=1, claim=claim("b1", ends_in_s=-31.0))
    assert failed(watched)[1] == "the function's time is over, without a result or a report"


def test_a_duplicate_in_the_queue_prolongs_no_run(watched: Bench) -> None:
    watched.on(on.AttemptStarted, attempt=1, claim=claim(ends_in_s=600.0))
    looked(watched, replace(QUEUED, id="b2"), RUNNING)
    assert armed(watched, do.Timer.DEADLINE) == []


def test_a_start_that_is_late_is_refused_and_ended(watched: Bench) -> None:
    watched.on(on.TimerFired, timer=do.Timer.DEADLINE)
    watched.one(do.CloseAttempt)
    watched.on(on.AttemptClosed, attempt=1, claim=claim(""))
    reason, detail = failed(watched)
    assert reason is Reason.NOT_STARTED
    assert detail == "the function did not start within 1800 s of its envelope"
    between = record(Step.RECEIVED, lease=None)
    watched.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
    assert watched.one(do.EndRuns).attempt == 1
    watched.retried()
    assert watched.one(do.OpenAttempt).payload["first_attempt"] == 2, "it does not count"


def test_an_answer_that_is_lost_is_asked_for_again(watched: Bench) -> None:
    order = do.OrderRun(job=JOB, attempt=1, function=IN_BATCH, granted=None)
    watched.on(on.CallFailed, action=order, retryable=True, message="no answer")
    assert watched.one(do.RepeatLater).action == order
    watched.on(on.TimerFired, timer=do.Timer.CHECK)  # during a look, too
    watched.on(on.RepeatDue, action=order)
    assert watched.kinds() == ["OrderRun"]


def test_a_look_does_not_repeat_this_replicas_order(watched: Bench) -> None:
    looked(watched)
    assert watched.kinds() == []


def test_an_order_that_batch_refuses_is_repeated_until_its_time_is_over(watched: Bench) -> None:
    order = do.OrderRun(job=JOB, attempt=1, function=IN_BATCH, granted=None)
    for _ in range(9):
        watched.on(on.CallFailed, action=order, retryable=False, message="no such queue")
        assert watched.one(do.RepeatLater).action == order
    assert watched.one(do.RepeatLater).in_s >= 5.0, "with a back-off"
    watched.on(on.TimerFired, timer=do.Timer.DEADLINE)
    watched.on(on.AttemptClosed, attempt=1, claim=claim(""))
    reason, detail = failed(watched)
    assert (reason, "; Batch: no such queue" in detail) == (Reason.NOT_STARTED, True), detail


# ---------------------------------------------------------------------- ends


def test_a_result_ends_all_its_runs_but_the_one_that_committed_it(watched: Bench) -> None:
    watched.on(on.ResultNoticed)
    watched.on(on.ResultRead, result=result(nonce="b1"))
    watched.on(on.Finished)
    assert watched.kinds() == ["RemoveEnvelope", "EndRuns", "DeleteMessages"]
    ending = watched.one(do.EndRuns)
    assert (ending.queue, ending.keep) == ("gpus", "b1")


def test_a_cancel_ends_its_runs(watched: Bench) -> None:
    watched.on(on.ResultNoticed)
    watched.on(on.ResultRead, result=result("CANCELLED", nonce=""))
    watched.on(on.Finished)
    assert watched.kinds() == ["RemoveEnvelope", "EndRuns", "DeleteMessages"]
    assert watched.one(do.EndRuns).keep == ""


def test_a_report_explains_the_end_as_ever(watched: Bench) -> None:
    watched.on(on.ReportNoticed, attempt=1)
    watched.unresolved(report())
    assert watched.one(do.RecordAttemptFailure).reason is Reason.EXIT_NONZERO
    between = record(Step.RECEIVED, lease=None)
    watched.on(on.AttemptFailureRecorded, record=between, pause_s=0.0)
    assert "EndRuns" not in watched.kinds()


@pytest.mark.parametrize(
    ("run", "request_", "reason", "words"),
    [
        (NEVER, "", Reason.NOT_STARTED, "CannotPullContainerError"),
        (replace(NEVER, ran=True), "", Reason.FUNCTION_CRASHED, "never claimed the attempt"),
        (replace(NEVER, ran=True), "", Reason.FUNCTION_CRASHED, "its output is in /aws/batch/job"),
        (LOST, "", Reason.HOST_LOST, "never claimed the attempt"),
        (LOST, "b1", Reason.HOST_LOST, "Host EC2"),
        (replace(LOST, why=("exit status 137",)), "b1", Reason.FUNCTION_CRASHED, "status 137"),
        (replace(LOST, why=("x", "OutOfMemoryError: k")), "b1", Reason.OUT_OF_MEMORY, "Memory"),
        (replace(LOST, state="SUCCEEDED", why=()), "b1", Reason.FUNCTION_CRASHED, "no reason"),
    ],
)
def test_runs_that_are_over_end_the_attempt(
    watched: Bench, run: BatchRun, request_: str, reason: Reason, words: str
) -> None:
    looked(watched, run)
    watched.one(do.CloseAttempt)
    watched.on(on.AttemptClosed, attempt=1, claim=claim(request_))
    assert (reason, True) == ((ended := failed(watched))[0], words in ended[1]), ended


def test_a_result_that_came_meanwhile_counts(watched: Bench) -> None:
    looked(watched, replace(RUNNING, state="SUCCEEDED"))
    watched.on(on.AttemptClosed, attempt=1, claim=claim())
    watched.on(on.ResultRead, result=result())
    watched.one(do.FinishJob)


def test_of_two_runs_the_one_with_the_claim_counts(watched: Bench) -> None:
    other = BatchRun(id="b2", state="SUCCEEDED", ran=True)
    looked(watched, other, RUNNING)
    assert watched.kinds() == []
    looked(watched, other)  # the one with the claim is not listed yet
    watched.on(on.AttemptClosed, attempt=1, claim=claim("b1"))
    assert watched.kinds() == [], "no look at once: it would find the same"
    assert len(armed(watched, do.Timer.CHECK)) == 1
    assert armed(watched, do.Timer.DEADLINE) == [pytest.approx(90.0)]


def test_a_batch_that_does_not_answer_hides_no_result(watched: Bench) -> None:
    watched.on(on.TimerFired, timer=do.Timer.CHECK)
    watched.on(on.ResultRead, result=None)
    watched.on(on.ReportRead, attempt=1, report=None)
    watched.on(on.RunsRead, attempt=1, runs=None)
    assert watched.kinds() == []
    watched.on(on.ResultNoticed)
    watched.on(on.ResultRead, result=result())
    watched.one(do.FinishJob)


def test_a_claim_extends_its_time_to_the_runs_end(watched: Bench) -> None:
    watched.on(on.AttemptStarted, attempt=1, claim=claim(ends_in_s=600.0))
    assert armed(watched, do.Timer.DEADLINE) == [pytest.approx(630.0)]


# ---------------------------------------------------------------------- adoption


def left(step: Step, **changes: Any) -> Any:
    made = Bench()
    made.machine.set_functions({"search": IN_BATCH})
    block = dict(made.read().one(do.OpenAttempt).payload)
    return record(step, owner=None, block=block, with_device=False, **changes)


@pytest.fixture
def adopter() -> Bench:
    made = Bench()
    made.machine.set_functions({"search": IN_BATCH})
    made.adopted(left(Step.STAGED))
    return made


def test_an_adopter_orders_what_was_never_ordered(adopter: Bench) -> None:
    found(adopter)
    order = adopter.one(do.OrderRun)
    assert (order.attempt, order.granted, order.form) == (1, None, "zip")
    looked(adopter)
    assert adopter.kinds() == [], "once"


def test_an_adopter_finds_the_run_of_the_last_owner(adopter: Bench) -> None:
    found(adopter, QUEUED)
    assert adopter.kinds() == []


@pytest.mark.parametrize(
    "deployed", [replace(PLACE, queue="others"), None], ids=["another queue", "without Batch"]
)
def test_an_adopter_looks_where_the_attempt_was_ordered(deployed: BatchPlace | None) -> None:
    made = Bench()
    host = None if deployed is None else replace(RUN, batch=deployed)
    made.machine.set_functions({"search": replace(IN_BATCH, host=host)})
    made.adopted(left(Step.STAGED))
    made.on(on.ResultRead, result=None)
    made.on(on.ReportRead, attempt=1, report=None)
    assert made.one(do.ReadRuns).queue == "gpus"
    made.on(on.RunsRead, attempt=1, runs=())
    assert made.one(do.OrderRun).queue == "gpus"


def test_an_adopter_that_comes_late_waits_for_batchs_answer_and_orders_nothing() -> None:
    made = Bench()
    made.machine.set_functions({"search": IN_BATCH})
    made.adopted(left(Step.STAGED, times={Step.STAGED.value: WALL_S - 1801.0}))
    assert armed(made, do.Timer.DEADLINE) == [1800.0]
    found(made)
    assert made.kinds() == []
    looked(made, QUEUED)
    assert armed(made, do.Timer.DEADLINE) == [1800.0]


def test_an_owner_that_died_while_packing_has_ordered_nothing() -> None:
    made = Bench()
    made.machine.set_functions({"search": IN_BATCH})
    kept = left(Step.RECEIVED)
    assert kept.packing
    made.adopted(kept)
    assert made.one(do.StageEnvelope).place is Place.BATCH
    made.on(on.EnvelopeStaged, attempt=1)
    assert made.kinds() == ["RecordStaged", "OrderRun"]
