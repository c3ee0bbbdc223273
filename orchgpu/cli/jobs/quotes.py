"""The output of a quote, for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from corekit.cli.screen import echo, echo_json, echo_table
from corekit.cli.table import Column
from corekit.cli.text import printable
from gpu_scheduler.promises import Estimate, PlannedStep, PromisedStep
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.cloud_services import Address
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.quoting import Quote, Subject, quoted
from orchgpu.jobs.scheduler import ask, scheduler_address

STEPS = (
    Column(name="STEP"),
    Column(name="DEVICE", shrink_order=1, width_min=8),
    Column(name="START"),
    Column(name="END"),
    Column(name="WORKER", drop_order=1),
    Column(name="AFTER", shrink_order=2, width_min=8, drop_order=2),
)
#: Placements of the frontier that are shown; JSON has all.
_FRONTIER_SHOWN = 8
_WORDS = {
    Outcome.GRANTED: "possible now",
    Outcome.BUSY: "busy",
    Outcome.IMPOSSIBLE: "impossible",
}


def quote(
    subject: Subject, inputs: int, scheduler: str | None, cloud: Address, *, as_json: bool
) -> int:
    """Ask the scheduler, print its answer; the exit status. Raises as `quoted` does."""
    address = scheduler_address(scheduler, cloud)
    found = ask(address, lambda client: quoted(client, subject, inputs=inputs))
    if as_json:
        echo_json(found.as_json())
    else:
        _echo(found)
    return found.status


def deployed_subject(cloud: JobCloud, of: Function | Workflow) -> Subject:
    """A deployed function, or a workflow with the functions of its steps."""
    names = [step.name for step in of.steps] if isinstance(of, Workflow) else [of.name]
    return Subject(of=of, functions={name: cloud.function(name) for name in names})


def _echo(found: Quote) -> None:
    answer = found.answer
    echo(f"{printable(found.subject.of.name)}: {_WORDS.get(answer.outcome, answer.outcome.value)}")
    if answer.outcome is not Outcome.GRANTED:
        echo(printable(answer.why))
    if answer.steps:
        _echo_steps(found)
    for line in _estimates("one input" if found.inputs > 1 else "", answer.estimates):
        echo(line)
    if found.inputs > 1:
        _echo_all(found)
    if answer.critical:
        echo(f"limited by: {' → '.join(map(printable, answer.critical))}")
    if answer.outcome is not Outcome.GRANTED:
        _echo_frontier(found)
    for line in (*_cap(found), *_unknown(found), *found.assumptions):
        echo(f"note: {line}", err=True)


def _echo_steps(found: Quote) -> None:
    planned = {one.name: one for one in found.answer.steps}
    echo_table(STEPS, [_row(step, planned.get(step.name)) for step in found.steps])
    echo()


def _row(step: PromisedStep, planned: PlannedStep | None) -> Sequence[str]:
    after = ", ".join(step.after) or "the input"
    if planned is None:
        return (step.name, "none", "-", "-", "-", after)
    device = f"{planned.model or planned.kind} on {planned.host}"
    times = (f"{planned.start_in_s:.1f} s", f"{planned.end_in_s:.1f} s")
    return (step.name, device, *times, "warm" if planned.warm else "new", after)


def _estimates(what: str, estimates: Sequence[Estimate]) -> Iterator[str]:
    for one in estimates:
        cost = "" if one.cost_usd is None else f", {one.cost_usd:.4g} USD"
        head = f"{what}: " if what else ""
        yield f"{head}{100 * one.quantile:g} % end within {one.end_in_s:.1f} s{cost}"


def _echo_all(found: Quote) -> None:
    for line in _estimates(f"{found.inputs} inputs, one after the other", found.one_by_one):
        echo(line)
    if found.at_once is not None:
        what = f"{found.inputs} inputs at once"
        for line in _estimates(what, found.at_once.estimates):
            echo(line)
    elif found.answer.outcome is Outcome.GRANTED:
        echo(f"{found.inputs} inputs at once: more steps than one plan has; quote fewer inputs")


def _echo_frontier(found: Quote) -> None:
    frontier = found.answer.frontier
    if not frontier:
        return
    echo("on free devices:")
    for one in frontier[:_FRONTIER_SHOWN]:
        echo(f"  {one.latency_s:.1f} s for {one.cost_usd:.4g} USD")
    if len(frontier) > _FRONTIER_SHOWN:
        echo(f"  and {len(frontier) - _FRONTIER_SHOWN} more (--json has all)")


def _cap(found: Quote) -> Iterator[str]:
    cap = found.subject.max_cost_usd
    costs = [one.cost_usd for one in found.answer.estimates if one.cost_usd is not None]
    if cap is not None and costs and max(costs) > cap:
        yield f"max_cost is {cap:g} USD: jobs or runs that cost more are ended"


def _unknown(found: Quote) -> Iterator[str]:
    if found.answer.outcome is Outcome.IMPOSSIBLE and not found.answer.estimates:
        yield (
            "times are learned from the first runs of a workload; before them, state them at the"
            " function, as in `gpu: {times: {'*': {execution: 2s, loading: 5s}}}`"
        )
