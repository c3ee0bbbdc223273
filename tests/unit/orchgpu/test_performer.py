"""An error of a port fails one call of one job, never the replica."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from contract.keys import staging_key
from contract.states import Reason
from corekit.aio.clock import SystemClock
from corekit.aio.vloop import run_virtual
from corekit.budget import Budget
from corekit.values import Value
from gpu_scheduler.model import Step
from gpu_scheduler.protocol import answers, ops
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from orchgpu.core import actions as do
from orchgpu.core import events as on
from orchgpu.replica.actions.performer import Performer
from simulator.faults.memory_cloud import MemoryStore
from tests.unit.orchgpu.jobs import FUNCTION, JOB, outcome, record


class Choking:
    """A store whose library cannot take what it is given."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    async def get(self, *names: Any, **options: Any) -> Any:
        raise self._error


def performer(store: Any, scheduler: Any = None, *, strict: bool = False) -> Performer:
    nothing: Any = None
    return Performer(
        queue=nothing,
        store=store,
        functions=nothing,
        orders=nothing,
        scheduler=scheduler,
        timers=nothing,
        render=nothing,
        clock=SystemClock(),
        budget=Budget(),
        advance=nothing,
        strict=strict,
    )


def memory_store() -> MemoryStore:
    bodies = MemoryBodies()
    cloud = Cloud(bodies=bodies)
    cloud.create_bucket(0.0, FUNCTION.intermediate_bucket)
    return MemoryStore(cloud, bodies, SystemClock())


READ = do.ReadResult(job="j1", bucket="mid")


@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        TypeError("no"),
        KeyError("no"),
        OverflowError("no"),
        UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed"),
    ],
)
def test_an_error_of_a_library_fails_one_call(error: Exception) -> None:
    event = asyncio.run(outcome(performer(Choking(error)), READ))
    assert isinstance(event, on.CallFailed)
    assert not event.retryable
    assert event.action is READ
    assert type(error).__name__ in event.message


class Opening:
    """A scheduler whose record moves on with each look at it; remembers what was released."""

    def __init__(self, *steps: Step) -> None:
        self._steps = list(steps)
        self.released: list[str] = []

    async def ask(self, op: ops.Op[Any]) -> Value:
        if isinstance(op, ops.Release):
            self.released.append(f"{op.lease} {op.reason}")
            return answers.Done()
        assert isinstance(op, ops.RecordOf)
        step = self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]
        return answers.RecordAnswer(record=record(step, lease="lease-1"))


class Taking:
    """A store that takes everything."""

    async def put(self, *_names: Any, **_options: Any) -> None:
        return


@pytest.mark.parametrize(
    ("steps", "released"),
    [
        ((Step.STAGED,), ["lease-1 NOT_STARTED"]),
        ((Step.STAGED, Step.RUNNING), []),  # another delivery of the event opened it meanwhile
        ((Step.RUNNING,), []),
    ],
)
def test_a_delivery_that_failed_ends_no_lease_that_another_one_opened(
    steps: tuple[Step, ...], released: list[str]
) -> None:
    scheduler: Any = Opening(*steps)
    made = performer(Taking(), scheduler)
    failure = do.RecordFunctionFailure(
        job=JOB, function=FUNCTION, attempt=1, reason=Reason.FUNCTION_ERROR, detail="LeaseNotOpen"
    )
    event = run_virtual(outcome(made, failure))
    assert isinstance(event, on.FunctionFailureRecorded)
    assert scheduler.released == released


@pytest.mark.parametrize(
    ("step", "released"), [(Step.STAGED, ["lease-1 NOT_STARTED"]), (Step.RUNNING, [])]
)
def test_a_start_that_lambda_dropped_explains_no_attempt_that_the_other_start_opened(
    step: Step, released: list[str]
) -> None:
    """An attempt is started by Invoke and by its event; the second may wait until it is too old."""
    store = memory_store()
    scheduler: Any = Opening(step)
    made = performer(store, scheduler)
    dropped = do.RecordFunctionFailure(
        job=JOB, function=FUNCTION, attempt=1, reason=Reason.NOT_STARTED, detail="too old"
    )
    assert isinstance(run_virtual(outcome(made, dropped)), on.FunctionFailureRecorded)
    reports = run_virtual(store.etags(FUNCTION.intermediate_bucket, "attempts/"))
    assert (scheduler.released, bool(reports)) == (released, bool(released))


def test_a_broken_assertion_fails_one_job_or_a_whole_simulation() -> None:
    broken = AssertionError("a broken invariant")
    event = asyncio.run(outcome(performer(Choking(broken)), READ))
    assert isinstance(event, on.CallFailed)
    assert event.message == "AssertionError: a broken invariant"
    with pytest.raises(AssertionError):
        asyncio.run(outcome(performer(Choking(broken), strict=True), READ))


@pytest.mark.parametrize(("fence", "left"), [(7, ["2.8.zip"]), (None, [])])
def test_envelopes_are_removed_one_by_one_or_all_of_a_job(
    fence: int | None, left: list[str]
) -> None:
    store = memory_store()
    ours = performer(store)
    bucket, others = FUNCTION.intermediate_bucket, staging_key(FUNCTION.name, f"{JOB}x", 1, 3)
    first, second = (staging_key(FUNCTION.name, JOB, n, n + 6) for n in (1, 2))

    async def story() -> list[str]:
        for key in (first, second, others):
            await store.put(bucket, key, b"secret")
        remove = do.RemoveEnvelope(job=JOB, attempt=1, function=FUNCTION, fence=fence)
        await outcome(ours, remove)
        found = [*await store.etags(bucket, "staging/")]
        assert others in found
        return found

    names = [key.rpartition("/")[2] for key in asyncio.run(story()) if key != others]
    assert names == left


def test_every_action_has_its_method() -> None:
    assert set(do.Action.__subclasses__()) == vars(Performer)[
        "_begin"
    ].dispatcher.registry.keys() - {object}
