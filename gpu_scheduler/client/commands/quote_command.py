"""`ssgm quote`: what a promise would say about a run, from a file or from request options."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import click
import yaml

from corekit.cli.screen import Coloured, echo, echo_table
from corekit.decode import decode
from corekit.errors import EXIT_STATUS, AppError, ErrorCode, invalid
from corekit.units import format_duration, parse_duration_s
from corekit.values import Meta, Value
from gpu_scheduler.client.commands.options import CommandContext, connected, requesting
from gpu_scheduler.client.commands.tables import QUOTED, TRADEOFFS
from gpu_scheduler.model import Request
from gpu_scheduler.promises import ANY_DEVICE, STEPS_MAX, PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import AdmitAnswer, Outcome

#: Name of the run in the request: a quote leaves nothing behind.
_RUN = "quote"
_STATUS = {
    Outcome.GRANTED: 0,
    Outcome.BUSY: EXIT_STATUS[ErrorCode.EXHAUSTED],
    Outcome.IMPOSSIBLE: EXIT_STATUS[ErrorCode.IMPOSSIBLE],
}


class QuotedRun(Value):
    """A file of `ssgm quote`: the steps of a run, and its objectives."""

    steps: Annotated[tuple[PromisedStep, ...], Meta(min_length=1, max_length=STEPS_MAX)]
    slo: Slo | None = None


@click.command(epilog="Example: ssgm quote run.yaml --latency 20s")
@click.argument("file", required=False, type=click.Path(path_type=Path), metavar="[FILE]")
@requesting
@click.option("--execution", metavar="TIME", help="Time of the step.  [default: as learned]")
@click.option("--latency", metavar="TIME", help="The run must end within this time.")
@click.option("--cost", type=float, metavar="USD", help="The run must cost no more than this.")
@connected
def quote(
    context: CommandContext,
    file: Path | None,
    request: Request,
    execution: str | None,
    latency: str | None,
    cost: float | None,
) -> int:
    """The expected end and cost of a run; nothing is booked.

    FILE, YAML or JSON, has `steps` as op `admit` takes them, and may have `slo`. Without it, the
    request options describe a run of one step, with --execution or the learned times of its
    workload. Exits with 0 if the run would be promised, 6 if devices are booked, 7 if no device can
    meet the objectives or times are not known.
    """
    if file is not None and (request != Request() or execution is not None):
        raise invalid("a file describes the steps: leave out the request options")
    asked = _single(request, execution) if file is None else read_run(file)
    slo = asked.slo
    if latency is not None or cost is not None:
        latency_s = None if latency is None else parse_duration_s(latency)
        slo = Slo(latency_s=latency_s, cost_usd=cost)
    op = ops.Admit(run=_RUN, steps=asked.steps, slo=slo, quote=True)
    found = context.ask(lambda client: client.ask(op))
    context.show(found, lambda: echo_quote(found))
    return _STATUS[found.outcome]


def _single(request: Request, execution: str | None) -> QuotedRun:
    times = {}
    if execution is not None:
        times = {ANY_DEVICE: StepTimes(execution_s=parse_duration_s(execution))}
    return QuotedRun(steps=(PromisedStep(name="step", job="step", request=request, times=times),))


def read_run(path: Path) -> QuotedRun:
    """The steps and objectives in a file. Raises INVALID with its place, NOT_FOUND without it.

    A step without `job` has its name; without `request`, any device.
    """
    try:
        text = path.read_text()
    except OSError as error:
        raise AppError(ErrorCode.NOT_FOUND, f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise invalid(f"{path}: not YAML or JSON: it is not UTF-8 text") from None
    try:
        value = yaml.safe_load(text)  # JSON is YAML
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise invalid(f"{path}: not YAML or JSON: {error}") from None
    listed = value.get("steps") if isinstance(value, Mapping) else None
    if not listed or not isinstance(listed, list):
        raise invalid(f"{path}: write `steps:` and a list below it")
    steps = [_completed(step) for step in listed]
    return decode(QuotedRun, {**value, "steps": steps}, str(path))


def _completed(step: Any) -> Any:
    if not isinstance(step, Mapping):
        return step
    return {"job": step.get("name"), "request": {}, **step}


def echo_quote(found: AdmitAnswer) -> None:
    """The answer, its estimates, what limits them, and the steps or the frontier."""
    echo(Coloured(found.outcome.value), f": {found.why}")
    for one in found.estimates:
        cost = "" if one.cost_usd is None else f", ${one.cost_usd:.3g}"
        likely = f"{100 * one.quantile:g} % of such runs end within"
        echo(f"{likely} {format_duration(one.end_in_s)}{cost}")
    if found.critical:
        echo(f"the end depends on: {' → '.join(found.critical)}")
    if found.steps:
        rows = [
            (
                one.name,
                f"{one.device} {one.kind} {one.model}",
                format_duration(one.start_in_s),
                format_duration(one.end_in_s),
                "yes" if one.warm else "no",
            )
            for one in found.steps
        ]
        echo_table(QUOTED, rows)
    elif found.frontier:
        echo_table(
            TRADEOFFS,
            [(format_duration(one.latency_s), f"${one.cost_usd:.3g}") for one in found.frontier],
        )


COMMANDS = (quote,)
