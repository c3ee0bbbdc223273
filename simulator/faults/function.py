"""Lambda with our runner in it, as a model: takes events, claims the lease, computes, commits."""

from __future__ import annotations

import asyncio
import io
import json
import math
import random
import zipfile
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import unquote_plus

from contract.claim import Claim
from contract.envelope import ENV_NAME, JOB_NAME, Job
from contract.keys import claim_key, parse_staging_key, report_key, result_key
from contract.record import JsonObject
from contract.result import Report, Result
from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from corekit.ids import LeaseId
from corekit.values import Value
from gpu_scheduler.model import EndReason, GrantedLease
from local_cloud.model.cloud import Cloud
from local_cloud.model.functions.function import Invocation, Outcome
from local_cloud.model.functions.functions import LambdaFunction
from simulator.faults.checkers import Checker
from simulator.faults.host import InstalledLease, Refused, SimHost
from simulator.faults.memory_cloud import MemoryStore

T = TypeVar("T")


class Fate(StrEnum):
    """The outcome of one run of the user's code."""

    SUCCEEDS = "succeeds"
    FAILS = "fails"  #: a non-zero exit: the runner reports it
    CRASHES = "crashes"  #: the whole function dies in the middle, or while it waits
    NEVER_STARTS = "never starts"  #: Lambda fails before the runner's first line
    HANGS = "hangs"  #: until Lambda's own timeout
    SLOW_COMMIT = "slow commit"  #: stops for long between its end and its result


class Behaviour(Value):
    """The behaviour of functions: probabilities of fates, at most 1 in all; the rest succeeds."""

    fates: tuple[tuple[Fate, float], ...] = ()
    work_s_max: float = 20.0
    timeout_s: float = 60.0
    duplicate_rate: float = 0.0  #: events that Lambda delivers twice
    stream: random.Random

    def draw(self) -> Fate:
        at = self.stream.random()
        for fate, share in self.fates:
            if at < share:
                return fate
            at -= share
        return Fate.SUCCEEDS

    def draw_stop_s(self) -> float:
        """The time for which a script works on after SIGTERM: some ignore it."""
        return self.stream.choice((0.0, self.stream.uniform(0.0, 5.0), math.inf))


class SimLambda:
    """Runs the due invocations of the cloud model's queues."""

    def __init__(
        self,
        cloud: Cloud,
        store: MemoryStore,
        hosts: dict[str, SimHost],
        clock: Clock,
        behaviour: Behaviour,
        checker: Checker,
        nursery: Nursery,
    ) -> None:
        self._cloud = cloud
        self._store = store
        self._hosts = hosts
        self._clock = clock
        self._behaviour = behaviour
        self._checker = checker
        self._nursery = nursery
        self._runs = 0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self.successes: dict[str, int] = {}  #: job → commits that won
        #: Stores the output files of a job, and names them for its result.
        self.writes: Callable[[MemoryStore, Job], Awaitable[list[JsonObject]]] | None = None
        cloud.on_invocation = self._due

    def _due(self, function: LambdaFunction) -> None:
        starting, records = function.invocations.start_due(self._clock.wall_s())
        for record in records:
            self._cloud.deliver(self._clock.wall_s(), record)
        for invocation in starting:
            self._nursery.start(self._run(function, invocation), "invocation")
            if self._behaviour.stream.random() < self._behaviour.duplicate_rate:
                self._nursery.start(self._duplicate(invocation), "duplicate")
        self._look_again(function)

    def _look_again(self, function: LambdaFunction) -> None:
        """Start the next event when it is due."""
        due_s = function.invocations.next_due_at_s()
        timer = self._timers.pop(function.name, None)
        if timer is not None:
            timer.cancel()
        if due_s is not None:
            pause_s = max(0.0, due_s - self._clock.wall_s()) + 0.001
            loop = asyncio.get_running_loop()
            self._timers[function.name] = loop.call_later(pause_s, self._due, function)

    async def _duplicate(self, invocation: Invocation) -> None:
        await asyncio.sleep(self._behaviour.stream.uniform(0.0, 30.0))
        await self._invoke(invocation.payload, f"{invocation.request_id} again")

    async def _run(self, function: LambdaFunction, invocation: Invocation) -> None:
        await asyncio.sleep(self._behaviour.stream.uniform(0.01, 1.0))  # event to first line
        error = await self._invoke(invocation.payload, invocation.request_id)
        outcome = Outcome(payload=json.dumps(error or {}), error="Unhandled" if error else "")
        for record in function.invocations.ended(
            self._clock.wall_s(), invocation.request_id, outcome
        ):
            self._cloud.deliver(self._clock.wall_s(), record)
        self._look_again(function)

    async def run_on_host(self, event: str) -> None:
        """The same runner, as a host starts it."""
        await asyncio.sleep(self._behaviour.stream.uniform(0.01, 1.0))
        await self._invoke(event, "on a host")

    async def _invoke(self, payload: str, request: str) -> dict[str, str] | None:
        """None when the function returned; else Lambda's error object."""
        fate = self._behaviour.draw()
        entry = json.loads(payload)["Records"][0]["s3"]
        bucket, key = entry["bucket"]["name"], unquote_plus(entry["object"]["key"])
        if fate is Fate.NEVER_STARTS:
            return {"errorType": "Runtime.ImportModuleError", "errorMessage": "no module"}
        self._runs += 1
        nonce = f"nonce-{self._runs}"
        staging = parse_staging_key(key)
        if staging is not None and staging.fence == 0:
            return await self._invoke_without_device(bucket, key, request, fate)
        try:
            job, lease, host = await self._envelope(bucket, key)
            dies = fate is Fate.CRASHES and self._runs % 2 == 0
            installed = await self._hosts[host].open(lease, nonce, dies=dies)
        except Refused as refused:
            if refused.code == "CLAIMED":
                return None  # a duplicate delivery
            return {"errorType": "Refused", "errorMessage": refused.code}
        except AppError as error:
            return {"errorType": "AppError", "errorMessage": str(error)}
        return await self._work(job, self._hosts[host], installed, nonce, fate)

    async def _envelope(self, bucket: str, key: str) -> tuple[Job, LeaseId, str]:
        stored = await repeated(lambda: self._store.get(bucket, key, bytes_max=1 << 24))
        with zipfile.ZipFile(io.BytesIO(stored.body or b"")) as archive:
            job = Job.from_json(archive.read(JOB_NAME))
            connection = json.loads(archive.read(ENV_NAME))["connection"]
        return job, LeaseId(connection["lease"]), connection["hosts"][0]["host"]

    async def _invoke_without_device(
        self, bucket: str, key: str, request: str, fate: Fate
    ) -> dict[str, str] | None:
        try:
            stored = await repeated(lambda: self._store.get(bucket, key, bytes_max=1 << 24))
            with zipfile.ZipFile(io.BytesIO(stored.body or b"")) as archive:
                job = Job.from_json(archive.read(JOB_NAME))
            if not await self._claim(job, request):
                return None  # a duplicate delivery, or the attempt was closed
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None  # withdrawn
            return {"errorType": "AppError", "errorMessage": str(error)}
        self._checker.started(job.job_id, job.attempt)
        stream, behaviour = self._behaviour.stream, self._behaviour
        started_s, work_s = self._clock.wall_s(), stream.uniform(0.1, behaviour.work_s_max)
        commit_s = stream.uniform(1.0, 60.0) if fate is Fate.SLOW_COMMIT else 0.0
        if fate is Fate.HANGS or work_s + commit_s > behaviour.timeout_s:
            await asyncio.sleep(behaviour.timeout_s)
            return {"errorType": "Sandbox.Timedout", "errorMessage": "Task timed out"}
        await asyncio.sleep(work_s)
        if fate is Fate.CRASHES:
            return {"errorType": "Runtime.ExitError", "errorMessage": "exited"}
        times = {"EStart": started_s, "EEnd": self._clock.wall_s()}
        if fate is Fate.FAILS:
            await self._report(job, request, times)
            return None
        await asyncio.sleep(commit_s)
        await self._commit(job, request, times)
        return None

    async def _claim(self, job: Job, request: str) -> bool:
        """Whether this start has the attempt. A claim whose answer was lost is read back."""
        now_s = self._clock.wall_s()
        claim = Claim(
            job_id=job.job_id,
            attempt=job.attempt,
            request=request,
            claimed_at_s=now_s,
            ends_at_s=now_s + self._behaviour.timeout_s,
        )
        bucket, key = job.intermediate_bucket, claim_key(job.job_id, job.attempt)
        try:
            await repeated(lambda: self._store.put(bucket, key, claim.to_json(), if_absent=True))
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise
            stored = await repeated(lambda: self._store.get(bucket, key, bytes_max=1 << 20))
            return stored.body == claim.to_json()
        return True

    async def _work(
        self, job: Job, host: SimHost, installed: InstalledLease, nonce: str, fate: Fate
    ) -> dict[str, str] | None:
        started_s = self._clock.wall_s()
        stream = self._behaviour.stream
        work_s = (
            self._behaviour.timeout_s
            if fate is Fate.HANGS
            else stream.uniform(0.1, self._behaviour.work_s_max)
        )
        lost, grace_s = await self._until_noticed(installed, work_s)
        if grace_s is not None and not lost:
            return await self._stop(job, host, installed, nonce, grace_s, started_s)
        if lost or fate in (Fate.CRASHES, Fate.HANGS):
            host.close(installed, EndReason.SESSION_LOST, "the connection broke")
            if fate is Fate.HANGS:
                return {"errorType": "Sandbox.Timedout", "errorMessage": "Task timed out"}
            return {"errorType": "Runtime.ExitError", "errorMessage": "exited"}
        host.release(installed)
        times = {"EStart": started_s, "EEnd": self._clock.wall_s()}
        if fate is Fate.FAILS:
            await self._report(job, nonce, times)
            host.close(installed, EndReason.DONE, "the code failed")
            return None
        if fate is Fate.SLOW_COMMIT and await self._until_lost(
            installed, stream.uniform(1.0, 60.0)
        ):
            return None  # a runner without a session commits nothing
        await self._commit(job, nonce, times)
        host.close(installed, EndReason.DONE)
        return None

    async def _stop(
        self,
        job: Job,
        host: SimHost,
        installed: InstalledLease,
        nonce: str,
        grace_s: float,
        started_s: float,
    ) -> dict[str, str] | None:
        """Send SIGTERM to the script of a preempted lease; it ends or is killed after its grace."""
        if await self._until_lost(installed, min(grace_s, self._behaviour.draw_stop_s())):
            return {"errorType": "Runtime.ExitError", "errorMessage": "exited"}
        host.release(installed)
        times = {"EStart": started_s, "EEnd": self._clock.wall_s()}
        await self._report(job, nonce, times, reason="PREEMPTED", exit_code=None)
        host.close(installed, EndReason.DONE, "stopped for a request of higher priority")
        return None

    @staticmethod
    async def _until_noticed(
        installed: InstalledLease, pause_s: float
    ) -> tuple[bool, float | None]:
        """Wait; returns early with whether the session is lost, and the grace of a notice."""
        lost = asyncio.ensure_future(installed.lost.wait())
        waits: set[asyncio.Future[Any]] = {lost, installed.notice}
        await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        lost.cancel()
        notice = installed.notice
        return installed.lost.is_set(), notice.result() if notice.done() else None

    @staticmethod
    async def _until_lost(installed: InstalledLease, pause_s: float) -> bool:
        try:
            async with asyncio.timeout(pause_s):
                await installed.lost.wait()
        except TimeoutError:
            return False
        return True

    async def _report(
        self,
        job: Job,
        nonce: str,
        times: dict[str, float],
        reason: str = "EXIT_NONZERO",
        exit_code: int | None = 1,
    ) -> None:
        report = Report(
            job_id=job.job_id,
            attempt=job.attempt,
            nonce=nonce,
            reason=reason,
            exit_code=exit_code,
            detail="as simulated",
            log_tail="",
            times=times,
        )
        key = report_key(job.job_id, job.attempt)
        await repeated(lambda: self._store.put(job.intermediate_bucket, key, report.to_json()))

    async def _stands(self, job: Job, nonce: str) -> bool:
        """Whether the stored result is that of this run: the answer to its write was lost."""
        key = result_key(job.job_id)
        stored = await repeated(
            lambda: self._store.get(job.intermediate_bucket, key, bytes_max=1 << 20)
        )
        return Result.from_json(stored.body or b"").nonce == nonce

    async def _commit(self, job: Job, nonce: str, times: dict[str, float]) -> None:
        files = [] if self.writes is None else await self.writes(self._store, job)
        result = Result(
            job_id=job.job_id,
            state="SUCCEEDED",
            reason="NONE",
            attempt=job.attempt,
            nonce=nonce,
            exit_code=0,
            files=files,
            times=times,
            log_tail="",
            ended_at_s=self._clock.wall_s(),
        )
        try:
            await repeated(
                lambda: self._store.put(
                    job.intermediate_bucket,
                    result_key(job.job_id),
                    result.to_json(),
                    if_absent=job.replace_etag is None,
                    if_match=job.replace_etag,
                )
            )
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:
                raise
            if not await self._stands(job, nonce):
                return
        self.successes[job.job_id] = self.successes.get(job.job_id, 0) + 1
        self._checker.note("commit", job.job_id, job.attempt)


_TEMPORARY = (ErrorCode.UNAVAILABLE, ErrorCode.EXHAUSTED)
_PAUSES_S = (0.2, 0.4, 0.8, 1.6, 3.2)


async def repeated(call: Callable[[], Awaitable[T]]) -> T:
    """The value of a call, repeated after temporary errors as AWS's clients do."""
    for pause_s in _PAUSES_S:
        try:
            return await call()
        except AppError as error:
            if error.code not in _TEMPORARY:
                raise
        await asyncio.sleep(pause_s)
    return await call()


def render(_middleware: str, granted: GrantedLease) -> dict[str, object]:
    """The part of an envelope's environment that the model needs."""
    hosts = [{"host": host} for host in sorted(granted.gateways)]
    return {"connection": {"lease": granted.lease.id, "hosts": hosts}, "variables": {}}
