"""Answers about workloads: the learned times, and what a request with a workload may expect."""

from __future__ import annotations

from heapq import nsmallest

from corekit.ids import DeviceId
from corekit.units import format_duration
from corekit.values import replace
from gpu_scheduler.core import events as on
from gpu_scheduler.core.placement.eviction import resident_key, taken
from gpu_scheduler.core.state.learned_times import Times, WorkloadOn
from gpu_scheduler.core.state.state import State
from gpu_scheduler.core.transaction import Transaction
from gpu_scheduler.model import Request
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.verdicts import ExpectedRun, Explanation
from gpu_scheduler.warm import workload_key

#: The quantiles that are shown: the median, and what few executions exceed.
MEDIAN, HIGH = 0.5, 0.95
#: The most device models of one explanation.
MODELS_MAX = 16


def workloads(tx: Transaction, event: on.Asked[ops.Workloads]) -> answers.WorkloadsAnswer:
    """A page of the learned times by id."""
    op = event.op
    wanted = (one for one in tx.state.learned_times.items() if one[0].id > op.after)
    page = nsmallest(op.limit + 1, wanted, key=lambda one: one[0].id)
    views = tuple(_view(tx.state, key, times) for key, times in page[: op.limit])
    return answers.WorkloadsAnswer(workloads=views, more=len(page) > op.limit)


def _view(state: State, key: WorkloadOn, times: Times) -> answers.WorkloadView:
    return answers.WorkloadView(
        id=key.id,
        tenant=key.tenant,
        workload=key.workload,
        expected=_expected(key.model, times),
        cold_starts=times.cold_starts,
        warm_starts=times.warm_starts,
        residents=_residents_of(state, key),
    )


def _residents_of(state: State, key: WorkloadOn) -> int:
    residents = state.inventory.residents
    published = workload_key(key.tenant, key.workload)
    index = residents.with_workload(published)
    groups = () if index is None else index.groups.values()
    here = (group.devices for group in groups if group.device_class.model == key.model)
    return sum(
        resident.workload == published
        for devices in here
        for device in devices
        for resident in residents.of(device).values()
    )


# ---------------------------------------------------------------------- explanations


def with_expected_runs(
    explanation: Explanation,
    request: Request,
    state: State,
    warm_start: bool | None,
) -> Explanation:
    """Add what the workload of a request may expect; without a workload there is nothing to add."""
    if request.workload is None:
        return explanation
    groups = (group for groups in state.inventory.index.ranked(request) for group in groups)
    models = dict.fromkeys(group.device_class.model for group in groups)
    found = state.learned_times.on_models(request.tenant, request.workload, models)
    runs = tuple(_expected(model, times) for model, times in found)[:MODELS_MAX]
    sentence = f"{explanation.sentence}; {_sentence(runs, warm_start)}"
    return replace(explanation, warm_start=warm_start, runs=runs, sentence=sentence)


def starts_warm(request: Request, state: State, devices: tuple[DeviceId, ...]) -> bool | None:
    """True when a grant of these devices would use a resident on each; None = no workload."""
    if resident_key(request) is None:
        return None
    return all(taken(request, state.inventory, device).used is not None for device in devices)


def _expected(model: str, times: Times) -> ExpectedRun:
    return ExpectedRun(
        model=model,
        runs=times.runs,
        execution_p50_s=times.execution_s(MEDIAN),
        execution_p95_s=times.execution_s(HIGH),
        loading_p50_s=times.loading_s(MEDIAN),
        loading_p95_s=times.loading_s(HIGH),
    )


def _sentence(runs: tuple[ExpectedRun, ...], warm_start: bool | None) -> str:
    """`warm start, expected to run for 4 s on T4 (95 %: 6 s)`; without the name of the workload,
    which not every reader may see."""
    starts = {True: ["warm start"], False: ["cold start"], None: []}[warm_start]
    times = " or ".join(_run_text(run, cold=warm_start is False) for run in runs)
    expects = [f"expected to run for {times}"] if runs else ["its run time is not learned yet"]
    return ", ".join([*starts, *expects])


def _run_text(run: ExpectedRun, *, cold: bool) -> str:
    loads = cold and run.loading_p50_s is not None
    after = f" after {_time_text(run.loading_p50_s)} of loading" if loads else ""
    times = f"{_time_text(run.execution_p50_s)} on {run.model}"
    return f"{times} (95 %: {_time_text(run.execution_p95_s)}){after}"


def _time_text(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else format_duration(seconds)
