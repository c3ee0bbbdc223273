"""The steps of a promise: those of a run, or the one of a job."""

from __future__ import annotations

import pytest

from contract.run import step_job_id
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from gpu_scheduler.model import Request
from gpu_scheduler.promises import StepTimes
from orchgpu.core.function import Function
from orchgpu.core.prices import Prices
from orchgpu.core.promises import promised_steps
from tests.unit.orchgpu.jobs import FUNCTION
from tests.unit.orchgpu.runs.run_world import RUN, step, workflow

PRICES = Prices(lambda_usd_per_gb_s=0.001, device_usd_per_hour=36.0)


def function(name: str, *, devices: int = 1) -> Function:
    request = Request(count=devices, memory_mib=512, workload=name)
    return replace(FUNCTION, name=name, request=request, memory_mib=2048)


FUNCTIONS = {one.name: one for one in (function("cut", devices=0), function("read"))}


def test_a_run_has_a_promised_step_for_each_of_its_jobs() -> None:
    cut, read = promised_steps(
        workflow(step("cut"), step("read", "cut")), FUNCTIONS, PRICES, run=RUN
    )
    assert (cut.job, read.job) == (step_job_id(RUN, "cut"), step_job_id(RUN, "read"))
    assert (cut.after, read.after) == ((), ("cut",))
    assert cut.request.count == 0
    assert cut.usd_per_s == {"*": pytest.approx(0.002)}
    assert read.usd_per_s == {"*": pytest.approx(0.012)}


def test_steps_that_are_done_are_left_out() -> None:
    of = workflow(step("cut"), step("read", "cut"))
    (read,) = promised_steps(of, FUNCTIONS, PRICES, run=RUN, done={"cut"})
    assert (read.name, read.after) == ("read", ())


def test_a_job_is_one_step_with_the_stated_times_of_its_function() -> None:
    times = {"cpu": StepTimes(execution_s=3.0)}
    (one,) = promised_steps(replace(function("read"), times=times), {}, PRICES, run="j1")
    assert (one.name, one.job, one.times, one.way_s) == ("read", "j1", times, None)


def test_the_stated_way_of_a_function_is_that_of_its_step() -> None:
    stated = {**FUNCTIONS, "cut": replace(FUNCTIONS["cut"], way_s=2.5)}
    of = workflow(step("cut"), step("read", "cut"))
    assert [one.way_s for one in promised_steps(of, stated, PRICES, run=RUN)] == [2.5, None]


def test_what_cannot_be_promised_is_refused() -> None:
    each = workflow(step("cut"), step("read", "cut", each=True))
    with pytest.raises(AppError, match="number of its jobs") as refused:
        promised_steps(each, FUNCTIONS, PRICES, run=RUN)
    assert refused.value.code is ErrorCode.INVALID
    with pytest.raises(AppError) as gone:
        promised_steps(workflow(step("cut")), {}, PRICES, run=RUN)
    assert gone.value.code is ErrorCode.NOT_FOUND
    gang = replace(function("read", devices=2), slo=None)
    with pytest.raises(AppError, match="one device"):
        promised_steps(gang, {}, PRICES, run="j1")
