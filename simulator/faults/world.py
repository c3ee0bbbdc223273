"""One run of the whole system from one seed: build, inject faults, wait for its end, check."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from contract.keys import job_id, result_key
from contract.result import Result
from contract.states import Reason
from corekit.aio.clock import LoopClock
from corekit.aio.supervise import Nursery
from corekit.budget import Budget
from corekit.errors import AppError
from corekit.ids import IdSource, JobId
from corekit.tracing.span import Tracer
from gpu_scheduler.core.state.state import State
from gpu_scheduler.model import Device, DeviceKind, Request, Sharing
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.function import InvokeConfig
from local_cloud.model.functions.functions import FunctionSettings
from local_cloud.model.s3.body import Content, MemoryBodies
from local_cloud.model.s3.notifications import Rule
from local_cloud.model.s3.object_version import ObjectVersion
from local_cloud.model.sqs.settings import QueueSettings
from orchgpu.core.function import Function, HostRun
from orchgpu.core.job import UNCOUNTED
from orchgpu.core.machine import OrchestratorMachine
from orchgpu.replica.loops import Replica
from simulator.faults.checkers import Checker, Violation
from simulator.faults.fleet import SimFleet
from simulator.faults.fleet_scenario import FleetScenario
from simulator.faults.floor_checker import SETTLED_S, stayed, unmet
from simulator.faults.function import SimLambda, render
from simulator.faults.host import SimHost, sim_devices
from simulator.faults.injector import PLAIN, WORK, Injector
from simulator.faults.memory_cloud import Arrivals, Faults, MemoryQueue, MemoryStarter, MemoryStore
from simulator.faults.promises import ask_for_promises
from simulator.faults.provider import SimProvider
from simulator.faults.requester import SimRequester
from simulator.faults.runs import PLAIN_STEPS, SimRuns
from simulator.faults.runs_on_hosts import MemoryCredentials, MemoryRuns, OnHosts, RunTable
from simulator.faults.scenario import Scenario
from simulator.faults.scheduler import SimScheduler
from simulator.faults.services import Deployed, Verdict, settled
from simulator.workloads.fleet import declared_devices

#: A function whose requests preempt.
URGENT = "urgent"
ATTEMPTS_MAX = 3  #: of a job
QUIET_AFTER_S = 6 * 3600.0  #: after the last fault every job must be over within this


@dataclass(slots=True)
class Running:
    """One orchestrator process."""

    nursery: Nursery
    requester: SimRequester
    replica: Replica


@dataclass
class World:
    """Everything of one run."""

    seed: int
    scenario: Scenario
    budget: Budget
    clock: LoopClock
    checker: Checker
    nursery: Nursery
    folder: Path  #: of files of this run
    injector: ClassVar[type[Injector]] = Injector
    cloud: Cloud = field(init=False)
    bodies: MemoryBodies = field(default_factory=MemoryBodies)
    runs: SimRuns = field(init=False)
    replicas: list[Running] = field(default_factory=list)
    uploads: dict[str, str] = field(default_factory=dict)  #: job id → its function
    tracer: Tracer | None = None  #: of all replicas

    def __post_init__(self) -> None:
        self.cloud = Cloud(
            ids=IdSource(f"{self.seed}/cloud"),
            bodies=self.bodies,
            strict_policies=False,
            weather=self.scenario.weather,
        )
        self.arrivals = Arrivals(self.cloud)
        self.runs = SimRuns(self.cloud, self.bodies, self.clock, self.checker, self.scenario.runs)
        self.scheduler = SimScheduler(
            self.budget,
            self.clock,
            self.checker,
            str(self.seed),
            self.scenario.parameters,
            self._capacity(),
        )
        self.hosts: dict[str, SimHost] = {}  #: with those that a fleet has ended
        for _ in range(self.scenario.hosts):
            devices, memory_mib = self.scenario.devices_per_host, self.scenario.device_memory_mib
            self._new_host(f"host-{len(self.hosts)}", devices, memory_mib)
        self.lasting = tuple(self.hosts.values())
        self.fleet = None if self.scenario.fleet is None else self._new_fleet(self.scenario.fleet)
        self.started = 0

    def _capacity(self) -> tuple[Device, ...]:
        """The devices that the scheduler is to expect."""
        scenario = self.scenario
        if scenario.fleet is not None:
            return tuple(d for one in scenario.fleet.offers.offers for d in declared_devices(one))
        declared = sim_devices("declared", 1, scenario.device_memory_mib)
        return declared if scenario.declares else ()

    def _new_host(self, name: str, devices: int, memory_mib: int) -> SimHost:
        advance = bool((self.seed + len(self.hosts)) % 5)
        host = self.hosts[name] = SimHost(
            name,
            devices,
            memory_mib,
            self.scheduler,
            self.clock,
            self.budget,
            self.checker,
            advance=advance,
            keeps_warm=bool(self.scenario.warm_min),
        )
        return host

    def _new_fleet(self, scenario: FleetScenario) -> SimFleet:
        stream = self.stream("provider")
        provider = SimProvider(
            scenario, self.clock, self.checker, self.nursery, stream, self._new_host
        )
        return SimFleet(
            provider, self.folder / "offers.yaml", self.budget, self.nursery, self._new_requester
        )

    def _new_requester(self, session: str) -> SimRequester:
        return SimRequester(
            self.scheduler,
            session,
            self.budget,
            self.stream(session),
            delay_s_max=self.scenario.wire_delay_s_max,
            loss_rate=self.scenario.wire_loss_rate,
        )

    def living(self) -> tuple[SimHost, ...]:
        """The hosts that are there."""
        machines = () if self.fleet is None else self.fleet.provider.living()
        return (*self.lasting, *(one.host for one in machines if one.host is not None))

    def stream(self, purpose: str) -> random.Random:
        return random.Random(f"{self.seed}/{purpose}")

    # ------------------------------------------------------------------ building

    def deploy(self) -> tuple[Function, ...]:
        """Create the resources of `orchgpu deploy` in the model, for all functions."""
        return tuple(self._deploy(name) for name in self._names)

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(name for name, count in self._counts.items() if count)

    @property
    def _counts(self) -> dict[str, int]:
        """The number of jobs of each function."""
        scenario = self.scenario
        return {WORK: scenario.jobs, URGENT: scenario.urgent_jobs, PLAIN: scenario.plain_jobs}

    @property
    def _jobs(self) -> int:
        return sum(self._counts.values())

    def _deploy(self, name: str) -> Function:
        now_s = self.clock.wall_s()
        settings = QueueSettings(visibility_s=self.budget.visibility_s)
        for suffix in ("jobs", "dlq", "done"):
            self.cloud.queues.create(now_s, f"{name}-{suffix}", {})
            self.cloud.queues.get(f"{name}-{suffix}").settings = settings
        for bucket in ("in", "mid"):
            self.cloud.create_bucket(now_s, f"{name}-{bucket}")
        settled(lambda: self.cloud.set_versioning(now_s, f"{name}-in", "Enabled"))
        lambda_function = settled(
            lambda: self.cloud.functions.create(now_s, FunctionSettings(name=name))
        )
        done = self.cloud.queues.get(f"{name}-done").arn
        lambda_function.invocations.config = InvokeConfig(
            retries_max=0, event_age_s_max=self.budget.event_age_s, on_failure=done
        )
        created = ("s3:ObjectCreated:*",)
        run = Rule(id="run", arn=lambda_function.arn, events=created, prefix="staging/", suffix="")
        results = Rule(id="done", arn=done, events=created, prefix="results/", suffix="")
        attempts = Rule(id="att", arn=done, events=created, prefix="attempts/", suffix=".json")
        runs = [] if self._is_on_host(name) else [run]
        between = [*runs, results, *([attempts] if name in (PLAIN, *PLAIN_STEPS) else [])]
        for bucket, rules in (("in", self._input_rules(name)), ("mid", between)):
            self._configure(f"{name}-{bucket}", rules)
        return self._function(name)

    def _is_on_host(self, name: str) -> bool:
        """The hosts of devices run the function of a fifth of the seeds."""
        return name == WORK and self.seed % 5 == 2

    def _configure(self, bucket: str, rules: list[Rule]) -> None:
        now_s = self.clock.wall_s()
        settled(lambda: self.cloud.configure_notifications(now_s, bucket, rules))

    def _function(self, name: str) -> Function:
        urgent, on_host = name == URGENT, self._is_on_host(name)
        return Function(
            name=name,
            execution="host" if on_host else "lambda",
            host=HostRun(package_bucket="state", package_key="p.zip") if on_host else None,
            revision="1",
            attempts_max=ATTEMPTS_MAX,
            queue_url=f"sim/{name}-jobs",
            dead_letter_url=f"sim/{name}-dlq",
            completion_url=f"sim/{name}-done",
            input_bucket=f"{name}-in",
            deployed_at_s=self.clock.wall_s(),
            intermediate_bucket=f"{name}-mid",
            start="invoke" if self.seed % 4 else "event",
            timeout_s=self.scenario.behaviour(self.stream("timeout")).timeout_s,
            warm_min=self.scenario.warm_min if name in (WORK, URGENT) else 0,
            request=Request(count=0)
            if name in (PLAIN, *PLAIN_STEPS)
            else Request(
                kinds=(DeviceKind.CPU,),
                memory_mib=self.scenario.request_mib,
                sharing=Sharing.EXCLUSIVE if self.scenario.exclusive else Sharing.SHARED,
                priority=5 if urgent else 0,
                preempts=urgent,
                preemptible=self.scenario.preemptible and not urgent,
                workload=name,
                advance=None if urgent else self.scenario.advance,
            ),
        )

    def on_hosts(self, session: str) -> OnHosts:
        """The ports of one orchestrator for runs on hosts."""
        faults = self.faults(session + "/hosts")
        credentials = MemoryCredentials(self.clock, faults)
        return {"runs": MemoryRuns(self.ordered, faults), "credentials": credentials}

    def faults(self, purpose: str) -> Faults:
        scenario = self.scenario
        return Faults(
            rate=scenario.cloud_fault_rate,
            delay_s_max=scenario.cloud_delay_s_max,
            stream=self.stream(purpose),
        )

    async def start_replica(self, functions: Deployed) -> None:
        """Start one orchestrator: the real loops, performer and machine."""
        self.started += 1
        session = f"replica-{self.started}"
        requester = self._new_requester(session)
        queue = MemoryQueue(self.cloud, self.arrivals, self.clock, self.faults(session + "/sqs"))
        store = MemoryStore(self.cloud, self.bodies, self.clock, self.faults(session + "/s3"))
        starter = MemoryStarter(self.cloud, self.clock, self.faults(session + "/lambda"))
        nursery = Nursery(session, strict=True)
        await nursery.__aenter__()
        ids = IdSource(f"{self.seed}/{session}")
        machine = OrchestratorMachine(budget=self.budget, session=session, ids=ids)
        replica = Replica(
            machine=machine,
            queue=queue,
            store=store,
            functions=starter,
            **self.on_hosts(session),
            scheduler=requester,
            registry=functions,
            render=render,
            clock=self.clock,
            budget=self.budget,
            nursery=nursery,
            jitter=ids.stream("reconcile"),
            tracer=self.tracer,
        )
        nursery.start_eternal(requester.beat(), "beat")
        nursery.start(self._start(replica), "start")
        self.replicas.append(Running(nursery, requester, replica))

    async def _start(self, replica: Replica) -> None:
        """Repeat the start as `StartupRetry` does, with pauses that are not random."""
        while True:
            try:
                return await replica.start()
            except AppError as error:
                if not error.retryable:
                    raise
            await asyncio.sleep(1.0)

    async def kill_replica(self, index: int) -> None:
        """`kill -9`: nothing is handed back or reported."""
        running = self.replicas.pop(index)
        self.checker.jobs.ended.add(running.requester.session)
        running.requester.disconnect()
        await running.nursery.close()

    async def stop_replica(self, index: int) -> None:
        """SIGTERM: a drain, which leaves no strike where the scheduler hears it."""
        running = self.replicas.pop(index)
        requester = running.requester
        is_heard, before = requester.is_heard, requester.disturbances
        await running.replica.drain()
        if not (is_heard and requester.is_heard and requester.disturbances == before):
            self.checker.jobs.ended.add(requester.session)
        requester.disconnect()
        await running.nursery.close()

    async def close(self) -> None:
        """End what is left of a run that failed."""
        for replica in self.replicas:
            await replica.nursery.close()

    # ------------------------------------------------------------------ running

    async def run(self) -> Verdict:
        functions, flows = self.runs.deploy(self._deploy, self.budget.visibility_s)
        deployed = Deployed((*self.deploy(), *functions), flows)
        self.scheduler.start()
        for host in self.lasting:
            self.nursery.start_eternal(host.report(), "report")
            self.nursery.start_eternal(host.apply_pushes(), "apply_pushes")
        store = MemoryStore(self.cloud, self.bodies, self.clock)
        behaviour = self.scenario.behaviour(self.stream("fates"))
        lambdas = SimLambda(
            self.cloud, store, self.hosts, self.clock, behaviour, self.checker, self.nursery
        )
        lambdas.writes = self.runs.written
        self.ordered = RunTable(self.hosts, self.nursery, lambdas.run_on_host)
        if self.fleet is not None:
            self.fleet.start()
        for _ in range(self.scenario.replicas):
            await self.start_replica(deployed)
        for name in self._names:
            self.nursery.start(self._upload(name, self._counts[name]), f"uploads of {name}")
        uploads = self.runs.upload(self.stream("runs"), self.scenario.upload_pause_s_max)
        self.nursery.start(uploads, "uploads of runs")
        self.nursery.start(self.injector(self, deployed).run(), "faults")
        promises = self.stream("promises")
        asked = ask_for_promises(self.scheduler, self.scenario, self.uploads, promises)
        self.nursery.start(asked, "promises")
        await self._until_quiet()
        floors = [one.floor for one in (await deployed.functions()).values() if one.warm_min]
        await self._settled(lambda state: unmet(state, filter(None, floors), self.living()))
        outcomes = self._check(lambdas)
        await self.runs.check(store, lambdas.successes)
        if self.fleet is not None:
            await self.fleet.check_end()
        for _ in list(self.replicas):
            await self.kill_replica(0)
        await self._settled(lambda state: stayed(state, self.living()))
        return Verdict(
            seed=self.seed,
            trace=self.checker.trace,
            jobs=len(self.uploads),
            preempted=self.checker.preemptions.ended.total(),
            outcomes=outcomes,
            decisions=self.checker.decisions,
            virtual_s=self.clock.monotonic_s(),
            runs=dict(self.runs.outcomes),
            ahead=dict(self.checker.advance.counts),
            floors=dict(self.checker.floors.counts),
            machines={} if self.fleet is None else dict(self.fleet.provider.counts),
        )

    async def _settled(self, left: Callable[[State], list[str]]) -> None:
        """Wait until the warm floors are as they are to be, once nothing else happens."""
        until_s = self.clock.monotonic_s() + SETTLED_S
        while found := left(self.scheduler.machine.state):
            if self.checker.violation is not None:
                raise self.checker.violation
            if self.clock.monotonic_s() > until_s:
                raise Violation(f"warm floors after {SETTLED_S:.0f} s: {found}")
            await asyncio.sleep(1.0)

    async def _upload(self, name: str, count: int) -> None:
        suffix = "" if name == WORK else f" of {name}"
        stream, losses = self.stream(f"uploads{suffix}"), self.stream(f"lost events{suffix}")
        for number in range(count):
            await asyncio.sleep(stream.uniform(0.0, self.scenario.upload_pause_s_max))
            key = f"input {number}+%.fasta"
            content = self.bodies.add(b"x" * stream.randrange(100))
            lost = losses.random() < self.scenario.lost_event_rate
            made = self._put(name, key, content, lost=lost)
            self.uploads[job_id(f"{name}-in", key, made.version_id, name)] = name
            if stream.random() < self.scenario.duplicate_event_rate:
                self._repeat_event(name)

    def _put(self, name: str, key: str, content: Content, *, lost: bool) -> ObjectVersion:
        """Upload one input; its event is lost while the bucket has no notification rule."""
        now_s, bucket = self.clock.wall_s(), f"{name}-in"
        if not lost:
            return self._upload_once(now_s, bucket, key, content)
        self.checker.note("lost event", key)
        self.cloud.restore_rules(bucket, [])
        made = self._upload_once(now_s, bucket, key, content)
        self.cloud.restore_rules(bucket, self._input_rules(name))
        return made

    def _upload_once(self, now_s: float, bucket: str, key: str, content: Content) -> ObjectVersion:
        """The user's upload, repeated by the client when S3 refuses it or its answer is lost."""
        return settled(lambda: self.cloud.put_object(now_s, bucket, key, content))

    def _input_rules(self, name: str) -> list[Rule]:
        arn, created = self.cloud.queues.get(f"{name}-jobs").arn, ("s3:ObjectCreated:*",)
        return [Rule(id="in", arn=arn, events=created, prefix="", suffix="")]

    def _repeat_event(self, name: str) -> None:
        queue = self.cloud.queues.get(f"{name}-jobs")
        messages = queue.messages()
        if messages:
            queue.send(self.clock.wall_s(), messages[-1].body)
            self.arrivals.arrived(queue)

    async def _until_quiet(self) -> None:
        deadline_s = self.scenario.faults_end_s + QUIET_AFTER_S
        while self.clock.monotonic_s() < deadline_s:
            await asyncio.sleep(10.0)
            if self.fleet is not None:
                self.fleet.provider.check_cost()
            if self.checker.violation is not None:
                raise self.checker.violation
            if self.clock.monotonic_s() > self.scenario.faults_end_s and self._quiet():
                return
        raise Violation(f"not quiet after {deadline_s:.0f} s: {self._left()}")

    def _quiet(self) -> bool:
        return self.scheduler.up and len(self.uploads) == self._jobs and not self._left()

    def _left(self) -> dict[str, int]:
        """Counts of unfinished work."""
        now_s = self.clock.wall_s()
        queues = (*(f"{name}-jobs" for name in self._names), *self.runs.queues)
        counts = [self.cloud.queues.get(name).counts(now_s) for name in queues]
        state = self.scheduler.machine.state if self.scheduler.up else None
        left = {
            "messages": sum(one.visible + one.in_flight for one in counts),
            "leases": len(state.leases) if state else 1,
            "records": sum(r.outcome is None for r in state.records.values()) if state else 1,
            "uploads": self._jobs - len(self.uploads),
            "jobs": sum(self._stored(job) is None for job in self.uploads),
            "runs": self.runs.left(),
        }
        return {name: count for name, count in left.items() if count}

    def _stored(self, job: str) -> ObjectVersion | None:
        """The result of a job."""
        return self.cloud.bucket(f"{self.uploads[job]}-mid").current(result_key(job))

    # ------------------------------------------------------------------ checking

    def _check(self, functions: SimLambda) -> dict[str, int]:
        """Check: one result for every upload, a dead letter for every failure, no second commit,
        and no failure for the attempts that were preempted."""
        outcomes: dict[str, int] = {}
        queues = [self.cloud.queues.get(f"{name}-dlq") for name in self._names]
        bodies = [message.body for queue in queues for message in queue.messages()]
        for job in self.uploads:
            stored = self._stored(job)
            if stored is None:
                raise Violation(f"{job} is over without a result")
            result = Result.from_json(self.bodies.read(stored.segments))
            record = self.scheduler.machine.state.records.get(JobId(job))
            if record is not None and record.outcome != result.state:
                raise Violation(f"{job} is {result.state}, but {record.outcome} in its record")
            outcomes[result.state] = outcomes.get(result.state, 0) + 1
            commits = functions.successes.get(job, 0)
            if commits > 1 or (commits == 1) != (result.state == "SUCCEEDED"):
                raise Violation(f"{job} is {result.state} after {commits} commits")
            if result.state in ("FAILED", "REJECTED") and not any(job in b for b in bodies):
                raise Violation(f"{job} failed without a dead letter")
            self._check_attempts(JobId(job), result)
        return outcomes

    def _check_attempts(self, job: JobId, result: Result) -> None:
        """Check that no preempted attempt counts: a job fails after three others at the earliest.

        Raises Violation.
        """
        uncounted = (*UNCOUNTED, Reason.POISON)
        if result.state != "FAILED" or result.reason in uncounted:
            return
        preempted = self.checker.preemptions.ended[job]
        if result.attempt - preempted < ATTEMPTS_MAX:
            attempts = f"{result.attempt} attempts, of which {preempted} were preempted"
            raise Violation(f"{job} is FAILED ({result.reason}) after {attempts}")
