"""A cloud with one run in it, without calls or time: objects, two kinds of queues, and functions.

A replica can die between any two writes; messages come twice, in any order, late, or again because
their receiver died. The world asserts on its way what must hold at every moment.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from contract.result import Result
from contract.states import JobState, Reason
from corekit.values import replace
from gpu_scheduler.promises import Slo
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.core.promises import promise_name
from orchgpu.core.routing import InputEvent, classify
from orchgpu.core.runs.actions import Admit, CloseJobs, EndRun, ResendLost, RunAction, StartStep
from orchgpu.core.runs.facts import Facts, Read, list_prefix
from orchgpu.core.runs.machine import list_body, next_actions
from orchgpu.core.runs.messages import Advance
from orchgpu.core.runs.records import Admission, Cancel, Frozen, InputFile, Inputs, Retry, RunResult
from orchgpu.core.runs.state import Run, state_of
from orchgpu.core.runs.workflow import Feed, Workflow, WorkflowStep

BUCKET = "work"
RUN = "r" + "0" * 25
INPUT = InputEvent(
    bucket=BUCKET,
    key="in/film.mp4",
    version_id="v0",
    etag="e0",
    size=3,
    event_name="ObjectCreated:Put",
    event_time="2026-01-01T00:00:00.000Z",
)


def workflow(
    *steps: WorkflowStep,
    deadline_s: float | None = None,
    max_cost_usd: float | None = None,
    slo: Slo | None = None,
) -> Workflow:
    return Workflow(
        name="films",
        revision="1",
        queue_url="http://sqs/films",
        dead_letter_url="http://sqs/films-dead",
        bucket=BUCKET,
        input_bucket=BUCKET,
        input_prefix="in",
        steps=steps,
        deadline_s=deadline_s,
        max_cost_usd=max_cost_usd,
        slo=slo,
    )


def step(
    name: str,
    *feeders: str,
    each: bool = False,
    suffixes: tuple[str, ...] = (),
    when: str = "",
) -> WorkflowStep:
    """A step that takes what its feeders wrote below a folder of their name."""
    feeds = tuple(
        Feed(step=one, bucket=BUCKET, prefix=one, suffixes=suffixes, when=when) for one in feeders
    )
    return WorkflowStep(name=name, feeds=feeds, each=each)


def frozen(of: Workflow) -> Frozen:
    return Frozen(run=RUN, workflow=of, input=INPUT, stored_at_s=100.0, frozen_at_s=101.0)


def passes(feed: Feed, result: Result) -> bool:
    """Whether a feed with a condition about `document.sure` takes the files of a result."""
    sure = (result.document or {}).get("sure")
    return {"": True, SURE: sure is True, UNSURE: sure is False}[feed.when]


#: The conditions that `passes` knows.
SURE, UNSURE = "document.sure", "document.sure == `false`"


class Died(Exception):
    """The replica was killed."""


@dataclass
class Function:
    """What the jobs of a step do: names of the files by the number of the job's try."""

    writes: Callable[[str, int], list[str]]  #: job, attempt → names
    fails: Callable[[str, int], bool] = lambda _job, _try: False
    cost_usd: float | None = None  #: of each job, unless it has less
    #: The document that it writes for its result.
    document: Callable[[str], dict[str, object] | None] = lambda _job: None


@dataclass
class World:
    of: Workflow
    functions: Mapping[str, Function]
    stream: random.Random = field(default_factory=lambda: random.Random(0))
    now_s: float = 1000.0
    results: dict[str, tuple[Result, str]] = field(default_factory=dict)
    lists: dict[str, tuple[Inputs, str]] = field(default_factory=dict)
    started: set[tuple[int, str]] = field(default_factory=set)
    cancel: Cancel | None = None
    retries: list[Retry] = field(default_factory=list)
    ended: tuple[RunResult, str] | None = None
    admissions: dict[int, Admission] = field(default_factory=dict)
    refuses: Callable[[int], Outcome] = lambda _n: Outcome.GRANTED  #: by the retries before
    promises: set[str] = field(default_factory=set)  #: live ones, in the scheduler
    jobs: list[str] = field(default_factory=list)  #: messages of the steps' queues
    advances: list[Advance] = field(default_factory=list)
    ran: Counter[str] = field(default_factory=Counter)  #: commits of SUCCEEDED by job
    tries: Counter[str] = field(default_factory=Counter)
    lives: int | None = None  #: writes until the replica dies; None = it lives
    number: int = 0
    checks: bool = True  #: of the inputs of each job; False: there are too many jobs for that

    # ------------------------------------------------------------------ a replica

    def write(self) -> str:
        """Before each write: perhaps the replica dies. Returns a fresh etag."""
        if self.lives is not None:
            if self.lives == 0:
                self.lives = None
                raise Died
            self.lives -= 1
        self.number += 1
        self.now_s += 0.001
        return f"etag-{self.number}"

    def facts(self, hint: Advance | None = None) -> Facts:
        """All facts that a fold of now needs."""
        facts = Facts(
            frozen=frozen(self.of),
            wall_s=self.now_s,
            cancel=self.cancel,
            retries=tuple(self.retries),
            admission=self.admissions.get(len(self.retries)),
            ended=self.ended[0] if self.ended else None,
            ended_etag=self.ended[1] if self.ended else "",
            started=frozenset(self.started),
            hints=frozenset({hint.job} if hint and hint.failed else ()),
        )
        while wanted := state_of(facts).wanted:
            reads, listed = dict(facts.reads), dict(facts.listed)
            for _, job in wanted.jobs:
                result, etag = self.results.get(job, (None, ""))
                reads[job] = Read(result=result, etag=etag)
            for name in wanted.lists:
                prefix = list_prefix(RUN, name).removeprefix("results/")
                listed[name] = {
                    job: etag for job, (_, etag) in self.results.items() if job.startswith(prefix)
                }
            facts = replace(facts, reads=reads, listed=listed)
        return facts

    def state(self) -> Run:
        return state_of(self.facts())

    def fold(self, hint: Advance | None = None, *, patrol: bool = False) -> None:
        """As a replica does with a message. Raises Died."""
        for _ in range(100):
            facts = self.facts(hint)
            actions = next_actions(facts, state_of(facts), patrol=patrol)
            patrol = False
            if not actions:
                return
            for action in actions:
                self.perform(action)
        raise AssertionError("the run makes actions without end")

    def perform(self, action: RunAction) -> None:
        match action:
            case Admit():
                self.admit(action)
            case StartStep():
                self.start(action)
            case ResendLost():
                self.start(action.start)
            case CloseJobs():
                for job in action.jobs:
                    etag = self.write()
                    standing = self.results.get(job.job)
                    if (standing[1] if standing else None) == job.replace_etag:
                        cancelled = self.result(job.job, JobState.CANCELLED, reason=action.reason)
                        self.results[job.job] = (cancelled, etag)
            case EndRun():
                self.promises.discard(action.promise)
                etag = self.write()
                if (self.ended[1] if self.ended else None) == action.replace_etag:
                    self.ended = (action.result, etag)

    def admit(self, action: Admit) -> None:
        """Ask, perhaps die, and store: the first answer counts."""
        name, outcome = promise_name(RUN, action.retries), self.refuses(action.retries)
        assert not self.promises - {name}, "an earlier promise of the run is still booked"
        if outcome is Outcome.GRANTED:
            self.promises.add(name)
        self.write()
        admission = Admission(outcome=outcome, why=f"it is {outcome}", at_s=self.now_s)
        if not self.admissions.setdefault(action.retries, admission).granted:
            self.promises.discard(name)

    def start(self, action: StartStep) -> None:
        promised = self.of.slo is None or promise_name(RUN, action.retries) in self.promises
        assert promised, f"step {action.step} begins without a promise"
        bodies = action.bodies
        if action.inputs is not None:
            etag = self.write()
            standing = self.lists.get(action.step)
            if standing is None or standing[0].retry < action.inputs.retry:
                self.lists[action.step] = (action.inputs, etag)
            etag = self.lists[action.step][1]
            bodies = (list_body(action, bucket=BUCKET, etag=etag, version=None, size=1),)
        for body in bodies:
            self.write()
            self.jobs.append(body)
        self.write()
        self.started.add((action.retries, action.step))

    # ------------------------------------------------------------------ functions

    def result(
        self,
        job: str,
        state: JobState,
        files: tuple[InputFile, ...] = (),
        reason: Reason = Reason.NONE,
    ) -> Result:
        self.now_s += 0.001
        return Result(
            job_id=job,
            state=state.value,
            reason=reason.value,
            attempt=1,
            nonce="",
            exit_code=0,
            files=[
                {"bucket": f.bucket, "key": f.key, "size": f.size, "sha256": "", "etag": f.etag}
                for f in files
            ],
            times={},
            log_tail="",
            ended_at_s=self.now_s,
        )

    def run_job(self, body: str, *, dies: bool = False) -> None:
        """A message of a step's queue is received, and the job runs unless it has ended.

        `dies`: the orchestrator dies before it advances the run.
        """
        name = next(one.name for one in self.of.steps if f'"step": "{one.name}"' in body)
        taker = replace(self.of, name=name)
        source = classify(body, taker)
        assert isinstance(source, InputEvent), source
        assert source.step is not None
        job = source.step.job
        standing = self.results.get(job)
        old = standing is not None and (
            source.dead_at_s is not None and standing[0].ended_at_s <= source.dead_at_s
        )
        if standing is None or old:
            self._runs(name, job, source)
        if dies:
            self.jobs.append(body)  # it comes again
            return
        state = self.results[job][0].state
        self.advances.append(Advance(run=RUN, step=name, job=job, state=state))

    def _runs(self, name: str, job: str, source: InputEvent) -> None:
        assert not self.over, "a job of a run that has ended begins"
        files = self._inputs(name, source)
        if self.checks:
            self._check_inputs(name, source, files)
        self.tries[job] += 1
        function, n = self.functions[name], self.tries[job]
        etag = self.write()
        if source.max_cost_usd is not None and (function.cost_usd or 0.0) > source.max_cost_usd:
            capped = self.result(job, JobState.FAILED, reason=Reason.MAX_COST)
            self.results[job] = (replace(capped, cost_usd=source.max_cost_usd), etag)
            return
        if function.fails(job, n):
            failed = self.result(job, JobState.FAILED, reason=Reason.EXIT_NONZERO)
            self.results[job] = (failed, etag)
            return
        written = tuple(
            InputFile(step=name, bucket=BUCKET, key=f"{name}/{one}", etag=f"{job}-{n}", size=1)
            for one in function.writes(job, n)
        )
        made = replace(self.result(job, JobState.SUCCEEDED, written), cost_usd=function.cost_usd)
        self.results[job] = (replace(made, document=function.document(job)), etag)
        self.ran[job] += 1

    def _inputs(self, name: str, source: InputEvent) -> list[tuple[str, str]]:
        if source.lists_files:
            inputs, etag = self.lists[name]
            assert source.etag == etag, "the job is pinned to the list of its own files"
            return [(file.key, file.pin) for file in inputs.files]
        return [(source.key, source.version_id or source.etag)]

    def _check_inputs(self, name: str, source: InputEvent, files: list[tuple[str, str]]) -> None:
        """The files of a job are those of the results that count now, and all that feed it are."""
        of = next(one for one in self.of.steps if one.name == name)
        if not of.feeds:
            assert files == [(INPUT.key, INPUT.version_id)]
            return
        state = self.state()
        expected = set()
        for feed in of.feeds:
            feeder = state.steps[feed.step]
            assert feeder.state.terminal, f"{name} begins before {feed.step} has ended"
            expected |= {
                (str(file["key"]), str(file["etag"]))
                for one in feeder.jobs
                if one.result is not None
                for file in one.result.files
                if feed.takes(str(file["bucket"]), str(file["key"])) and passes(feed, one.result)
            }
        assert len(files) == len(set(files))
        assert set(files) <= expected if of.each else set(files) == expected

    @property
    def over(self) -> bool:
        return self.ended is not None and self.ended[0].retries >= len(self.retries)

    # ------------------------------------------------------------------ weather

    def chance(self, share: float) -> bool:
        return self.stream.random() < share

    def any_step(self) -> None:
        """One message is received, anywhere, with anything that may go wrong."""
        dying = self.stream.randrange(0, 12) if self.chance(0.3) else None
        if self.jobs and self.chance(0.5):
            body = self.jobs.pop(self.stream.randrange(len(self.jobs)))
            if self.chance(0.15):
                self.jobs.append(body)  # delivered twice
            self.run_job(body, dies=self.chance(0.15))
            return
        hint = None
        if self.advances and self.chance(0.7):
            hint = self.advances.pop(self.stream.randrange(len(self.advances)))
            if self.chance(0.15):
                self.advances.append(hint)
        self.lives = dying
        try:
            self.fold(hint, patrol=hint is None and self.chance(0.3))
        except Died:
            if hint is not None:
                self.advances.append(hint)
        self.lives = None

    def settle(self) -> None:
        """Let all messages be received, and the input's message last, until nothing happens."""
        for _ in range(10_000):
            if self.jobs:
                self.run_job(self.jobs.pop(0))
            elif self.advances:
                self.fold(self.advances.pop(0))
            else:
                self.fold()
                if not self.jobs and not self.advances:
                    return
        raise AssertionError("the run does not come to rest")
