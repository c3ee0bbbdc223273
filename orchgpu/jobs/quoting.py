"""The expected end and cost of a run before it starts: questions to the scheduler; nothing starts.

The scheduler plans the steps on its devices, around what is booked there, as for a promise
(`docs/explanation/promises.md`), and books nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contract.record import JsonObject
from corekit.decode import encode
from corekit.errors import EXIT_STATUS, AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.promises import STEPS_MAX, Estimate, PromisedStep, Slo
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import AdmitAnswer, Outcome
from orchgpu.core.function import Function
from orchgpu.core.prices import Prices
from orchgpu.core.promises import promised_steps
from orchgpu.core.runs.workflow import Workflow

#: Answers and exit statuses of a quote: as those of a promise.
STATUS: Mapping[Outcome, int] = {
    Outcome.GRANTED: 0,
    Outcome.BUSY: EXIT_STATUS[ErrorCode.EXHAUSTED],
    Outcome.IMPOSSIBLE: EXIT_STATUS[ErrorCode.IMPOSSIBLE],
}
#: Stands for the id of the run, or of the job, in a question about none.
_RUN = "quote"


class Subject(Value):
    """The subject of a quote: a function or workflow, with the functions of its steps."""

    of: Function | Workflow
    functions: Mapping[str, Function]

    @property
    def slo(self) -> Slo | None:
        return self.of.slo

    @property
    def max_cost_usd(self) -> float | None:
        return self.of.max_cost_usd

    @property
    def maps(self) -> tuple[str, ...]:
        """Steps with a job for each file: their number is known when they start."""
        steps = self.of.steps if isinstance(self.of, Workflow) else ()
        return tuple(step.name for step in steps if step.each and step.feeds)


class Quote(Value):
    """The answer for one input, and for several at once."""

    subject: Subject
    prices: Prices
    inputs: int
    steps: tuple[PromisedStep, ...]
    answer: AdmitAnswer
    #: All inputs at once, without an objective; None = one input, or more steps than a plan has.
    at_once: AdmitAnswer | None = None

    @property
    def status(self) -> int:
        return STATUS.get(self.answer.outcome, 1)

    @property
    def one_by_one(self) -> tuple[Estimate, ...]:
        """All inputs, each after the end of the one before it."""
        return tuple(
            replace(
                one,
                end_in_s=one.end_in_s * self.inputs,
                cost_usd=None if one.cost_usd is None else one.cost_usd * self.inputs,
            )
            for one in self.answer.estimates
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the figures, beside learned or stated times."""
        maps = self.subject.maps
        assumed = [
            f"{', '.join(maps)}: one job; there is one for each file, known when the step starts"
        ] * bool(maps)
        if self.inputs > 1:
            assumed.append("every input takes as long as any other")
        prices = self.prices
        text = (
            f"prices ({prices.as_of}): {prices.lambda_usd_per_gb_s:.10f} USD per GB-second,"
            f" {prices.device_usd_per_hour:g} USD per device hour; a shared device counts whole"
        )
        return (*assumed, text)

    def as_json(self) -> JsonObject:
        at_once = None if self.at_once is None else encode(self.at_once.estimates)
        several = {"at_once": at_once, "one_by_one": encode(self.one_by_one)}
        return {
            "name": self.subject.of.name,
            "inputs": self.inputs,
            "slo": encode(self.subject.slo),
            "max_cost_usd": self.subject.max_cost_usd,
            **encode(self.answer),
            "steps": [
                {
                    "name": step.name,
                    "after": list(step.after),
                    "booking": encode(_booked(self, step)),
                }
                for step in self.steps
            ],
            "all_inputs": several if self.inputs > 1 else None,
            "assumptions": list(self.assumptions),
        }


def _booked(quote: Quote, step: PromisedStep) -> object:
    return next((one for one in quote.answer.steps if one.name == step.name), None)


async def quoted(
    client: SchedulerClient, subject: Subject, *, inputs: int = 1, prices: Prices | None = None
) -> Quote:
    """Ask for one input; for several also for all at once, if one plan has room for them.

    Raises CONFLICT where the scheduler's policy plans nothing, INVALID for a step that cannot be
    planned, NOT_FOUND for one that is not deployed.
    """
    prices = prices or Prices()
    one_each = _with_one_job_a_step(subject.of)
    steps = promised_steps(one_each, subject.functions, prices, run=_RUN)
    answer = await _ask(client, steps, subject.slo)
    at_once = None
    if answer.outcome is Outcome.GRANTED and 1 < inputs <= STEPS_MAX // len(steps):
        at_once = await _ask(client, _copies(steps, inputs), None)
    return Quote(
        subject=subject,
        prices=prices,
        inputs=inputs,
        steps=steps,
        answer=answer,
        at_once=at_once,
    )


async def _ask(
    client: SchedulerClient, steps: Sequence[PromisedStep], slo: Slo | None
) -> AdmitAnswer:
    try:
        return await client.ask(ops.Admit(run=_RUN, steps=tuple(steps), slo=slo, quote=True))
    except AppError as error:
        if error.code is not ErrorCode.CONFLICT:
            raise
        text = f"no quote: {error.message} (`ssgm set policy slo`)"
        raise AppError(ErrorCode.CONFLICT, text) from None


def _with_one_job_a_step(of: Function | Workflow) -> Function | Workflow:
    if isinstance(of, Function):
        return of
    return replace(of, steps=tuple(replace(step, each=False) for step in of.steps))


def _copies(steps: Sequence[PromisedStep], count: int) -> list[PromisedStep]:
    """The steps of so many runs that begin together, as one graph."""
    return [
        replace(
            step,
            name=f"{step.name}.{n}",
            job=f"{step.job}.{n}",
            after=tuple(f"{name}.{n}" for name in step.after),
        )
        for n in range(count)
        for step in steps
    ]
