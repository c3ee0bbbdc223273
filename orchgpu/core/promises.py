"""The steps of a promise: what the scheduler is asked for a run, or for one job. Pure.

One function of the deployed records and the prices, for admissions and quotes alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from contract.run import step_job_id
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.promises import ANY_DEVICE, PromisedStep
from orchgpu.core.function import Function
from orchgpu.core.prices import Prices
from orchgpu.core.runs.workflow import Workflow


def promised_steps(
    of: Workflow | Function,
    functions: Mapping[str, Function],
    prices: Prices,
    *,
    run: str,
    done: Set[str] = frozenset(),
) -> tuple[PromisedStep, ...]:
    """The steps of a run of a workflow, or the only one of a function's job.

    `functions`: those that are deployed, by name. `run`: the id of the run, or of the job; any
    name where nothing is booked. `done`: steps that have ended already; they are left out.
    Raises INVALID for what cannot be promised, NOT_FOUND for a step that is not deployed.
    """
    if isinstance(of, Function):
        return (_step(of, prices, job=run),)
    return tuple(_steps(of, functions, prices, run, done))


def promise_name(run: str, tries: int) -> str:
    """The name of the promise of a run or job, after so many tries before: each is a new one."""
    return f"{run}.{tries}" if tries else run


def _steps(
    of: Workflow, functions: Mapping[str, Function], prices: Prices, run: str, done: Set[str]
) -> Iterator[PromisedStep]:
    for step in of.steps:
        if step.name in done:
            continue
        if step.each and step.feeds:
            raise invalid(f"step {step.name}: `each: true`, so the number of its jobs is unknown")
        function = functions.get(step.name)
        if function is None:
            raise AppError(ErrorCode.NOT_FOUND, f"function {step.name} is not deployed")
        after = tuple(dict.fromkeys(one.step for one in step.feeds if one.step not in done))
        yield _step(function, prices, job=step_job_id(run, step.name), after=after)


def _step(
    function: Function, prices: Prices, *, job: str, after: tuple[str, ...] = ()
) -> PromisedStep:
    usd_per_s = prices.job_usd_per_s(function.memory_mib, function.request.count)
    return PromisedStep(
        name=function.name,
        job=job,
        request=function.request,
        after=after,
        times=function.times,
        way_s=function.way_s,
        usd_per_s={ANY_DEVICE: usd_per_s},
    )
