"""Runs of a workflow in a simulated world: a fan-out with a device for each part, and its join."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from contract.envelope import Job
from contract.record import JsonObject
from contract.result import Result
from contract.run import inputs_key, run_id, run_result_key
from contract.states import JobState, RunState
from corekit.aio.clock import Clock
from corekit.decode import decode_json, decode_json_known
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from local_cloud.model.cloud import Cloud
from local_cloud.model.s3.body import MemoryBodies
from local_cloud.model.s3.notifications import Rule
from local_cloud.model.sqs.settings import QueueSettings
from orchgpu.core.function import Function
from orchgpu.core.runs.records import Inputs, RunResult
from orchgpu.core.runs.workflow import Feed, Workflow, WorkflowStep
from orchgpu.ports import StoredObject
from simulator.faults.checkers import Checker, Violation
from simulator.faults.function import repeated
from simulator.faults.memory_cloud import MemoryStore
from simulator.faults.services import settled

#: Steps: the first writes the parts, the second has a job and a device for each.
CUT, PART, JOIN = STEPS = ("cut", "part", "join")
#: Steps without a device.
PLAIN_STEPS = (CUT, JOIN)
FLOW, FILES = "flow", "flow-files"
PARTS = 4
_BYTES_MAX = 1 << 22


@dataclass
class SimRuns:
    """The workflow of a world, and its runs."""

    cloud: Cloud
    bodies: MemoryBodies
    clock: Clock
    checker: Checker
    count: int  #: of runs
    names: dict[str, None] = field(default_factory=dict)  #: of the runs that were asked for
    outcomes: Counter[str] = field(default_factory=Counter)  #: states of ended runs

    @property
    def steps(self) -> tuple[str, ...]:
        """The functions to deploy; none where there are no runs."""
        return STEPS if self.count else ()

    @property
    def queues(self) -> tuple[str, ...]:
        """Job queues and the queue of the workflow, whose messages must be gone at the end."""
        return (*(f"{name}-jobs" for name in self.steps), *([f"{FLOW}-runs"] if self.count else []))

    def deploy(
        self, deploy: Callable[[str], Function], visibility_s: float
    ) -> tuple[tuple[Function, ...], tuple[Workflow, ...]]:
        """The functions and the workflow, with their resources; `deploy` makes one function."""
        if not self.count:
            return (), ()
        now_s = self.clock.wall_s()
        for queue in (f"{FLOW}-runs", f"{FLOW}-runs-dlq"):
            self.cloud.queues.create(now_s, queue, {})
            self.cloud.queues.get(queue).settings = QueueSettings(visibility_s=visibility_s)
        self.cloud.create_bucket(now_s, FILES)
        # an upload reached by the reconciler of a function would be a job outside of the run
        functions = tuple(replace(deploy(name), deployed_at_s=0.0) for name in STEPS)
        arn, created = self.cloud.queues.get(f"{FLOW}-runs").arn, ("s3:ObjectCreated:*",)
        for name in STEPS:
            rules = [Rule(id="in", arn=arn, events=created, prefix="", suffix="")]
            self._configure(f"{name}-in", rules if name == CUT else [])
        return functions, (self._workflow(),)

    def _configure(self, bucket: str, rules: list[Rule]) -> None:
        now_s = self.clock.wall_s()
        settled(lambda: self.cloud.configure_notifications(now_s, bucket, rules))

    def _workflow(self) -> Workflow:
        def feed(step: str) -> tuple[Feed, ...]:
            return (Feed(step=step, bucket=FILES, prefix=step),)

        return Workflow(
            name=FLOW,
            revision="1",
            queue_url=f"sim/{FLOW}-runs",
            dead_letter_url=f"sim/{FLOW}-runs-dlq",
            bucket=f"{CUT}-mid",
            input_bucket=f"{CUT}-in",
            steps=(
                WorkflowStep(name=CUT),
                WorkflowStep(name=PART, feeds=feed(CUT), each=True),
                WorkflowStep(name=JOIN, feeds=feed(PART)),
            ),
            deployed_at_s=self.clock.wall_s(),
        )

    async def upload(self, stream: random.Random, pause_s_max: float) -> None:
        """The inputs of all runs, one after the other."""
        for number in range(self.count):
            await asyncio.sleep(stream.uniform(0.0, pause_s_max))
            key, now_s = f"film {number}", self.clock.wall_s()
            content = self.bodies.add(b"film")
            made = settled(partial(self.cloud.put_object, now_s, f"{CUT}-in", key, content))
            self.names[run_id(f"{CUT}-in", key, made.version_id, FLOW)] = None

    async def written(self, store: MemoryStore, job: Job) -> list[JsonObject]:
        """The output files of a step's job; none for another job."""
        if job.function not in self.steps:
            return []
        names = [f"{job.job_id}-{n}" for n in range(PARTS if job.function == CUT else 1)]
        return [await self._file(store, f"{job.function}/{name}") for name in names]

    async def _file(self, store: MemoryStore, key: str) -> JsonObject:
        await repeated(lambda: store.put(FILES, key, key.encode()))
        found = await repeated(lambda: store.head(FILES, key))
        return {"bucket": FILES, "key": key, "size": found.size, "etag": found.etag, "sha256": ""}

    # ------------------------------------------------------------------ the end

    def left(self) -> int:
        """Runs that were not asked for yet, or have not ended."""
        bucket = self.cloud.bucket(f"{CUT}-mid") if self.count else None
        ended = [run for run in self.names if bucket and bucket.current(run_result_key(run))]
        return self.count - len(ended)

    async def check(self, store: MemoryStore, successes: dict[str, int]) -> None:
        """One end for each run, every part once in it, and no second commit. Raises Violation."""
        states = await self._check_jobs(store, successes)
        for run in self.names:
            found = await self._get(store, f"{CUT}-mid", run_result_key(run))
            result = decode_json(RunResult, found.body or b"") if found else None
            if result is None or not result.state.terminal:
                raise Violation(f"{run} is over without a result")
            self.outcomes[result.state.value] += 1
            self.checker.note("run", run, result.state)
            if result.state is RunState.SUCCEEDED:
                await self._check_table(store, run, result)
            elif not states - {JobState.SUCCEEDED}:
                raise Violation(f"{run} is {result.state}, but every job succeeded")

    async def _check_table(self, store: MemoryStore, run: str, result: RunResult) -> None:
        jobs = {step.name: step.jobs for step in result.steps}
        stored = await self._get(store, f"{CUT}-mid", inputs_key(run, JOIN))
        inputs = decode_json_known(Inputs, stored.body or b"")[0] if stored else None
        keys = [] if inputs is None else [file.key for file in inputs.files]
        if jobs != {CUT: 1, PART: PARTS, JOIN: 1} or not len(keys) == len(set(keys)) == PARTS:
            raise Violation(f"{run}: its steps had {jobs} jobs, its join the files {keys}")
        if len(result.files) != 1:
            raise Violation(f"{run} left {len(result.files)} files")

    async def _check_jobs(self, store: MemoryStore, successes: dict[str, int]) -> set[str]:
        states = set()
        for step in self.steps:
            bucket = f"{step}-mid"
            for key in await repeated(partial(store.etags, bucket, "results/")):
                stored = await self._get(store, bucket, key)
                result = Result.from_json((stored and stored.body) or b"")
                states.add(result.state)
                commits = successes.get(result.job_id, 0)
                if commits > 1 or (commits == 1) != (result.state == JobState.SUCCEEDED):
                    raise Violation(f"{result.job_id} is {result.state} after {commits} commits")
        return states

    async def _get(self, store: MemoryStore, bucket: str, key: str) -> StoredObject | None:
        try:
            return await repeated(lambda: store.get(bucket, key, bytes_max=_BYTES_MAX))
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
