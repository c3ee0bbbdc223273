"""Jobs followed from upload to end: a push starts a check, a check reads record and result.

The scheduler's record has the state of a job, the result object its outcome. A job is over when
its record is ENDED, or when its result exists and the scheduler has no record of it.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from contract.result import Result
from contract.states import JobState, Reason
from corekit.errors import AppError, ErrorCode
from corekit.ids import JobId
from gpu_scheduler.model import Record, Step
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import LeasePush
from orchgpu.core.function import Function
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.live.feed import Change, Feed
from orchgpu.jobs.outputs import JobOutput, output_of
from orchgpu.jobs.summary import reason_of, state_of
from orchgpu.jobs.uploaded import Submitted
from orchgpu.jobs.waiting import reason_of_wait, waits

#: The longest pause between two checks; a push about a followed job ends it.
LOOK_EVERY_S = 0.3
#: Jobs that are checked together.
LOOKS_AT_ONCE = 16
#: An upload that no orchestrator received for this long: its triggers are checked.
UNRECEIVED_S = 10.0
#: Checks after which a result without a record counts as the end.
LOOKS_WITHOUT_RECORD = 10


@dataclass(slots=True, eq=False)
class Followed:
    """The known facts about one job whose end a caller waits for."""

    submitted: Submitted
    job_id: str
    state: str | None = None  #: a JobState; None until its message is received
    reason: str = "NONE"
    sentence: str = ""  #: the reason of its wait, for people
    device: str = ""  #: while it runs, for people
    record: Record | None = None
    result: Result | None = None
    looks_with_result: int = 0
    over: bool = False
    unreceived_s: float | None = None  #: of the loop's clock: then its triggers are checked
    error: AppError | None = None  #: of its last check

    @property
    def where(self) -> str:
        """The job's state, for people."""
        return self.state or "not received yet"

    @property
    def outputs(self) -> tuple[JobOutput, ...]:
        files = self.result.files if self.result is not None else ()
        return tuple(output_of(self.submitted.function, self.job_id, file) for file in files)

    @property
    def succeeded(self) -> bool:
        return self.state == JobState.SUCCEEDED


class Tally:
    """The states of many jobs, counted for a bar."""

    def __init__(self) -> None:
        self._over = 0
        self._states: dict[str, str] = {}

    def changed(self, job: Followed) -> tuple[int, str]:
        """The number of jobs that are over, and the number in each state."""
        self._over += job.over
        self._states[job.submitted.key] = job.where
        counts = Counter(self._states.values())
        words = [*(state.value for state in JobState), *sorted(counts)]
        states = "  ".join(f"{word} {counts.pop(word)}" for word in words if word in counts)
        return self._over, f"  {states}"


#: Called after every change of state or reason.
OnChange = Callable[[Followed], None]


@dataclass(slots=True)
class Follower:
    """Follows jobs until they are over; `add` and `jobs` change them at any time."""

    cloud: JobCloud
    feed: Feed | None  #: of the scheduler; None: only results show the end
    on_change: OnChange
    jobs: list[Followed]
    look_now: asyncio.Event = field(default_factory=asyncio.Event)
    looks: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKS_AT_ONCE))

    def take(self, change: Change) -> None:
        """Take a change: note the device, and check now."""
        if isinstance(change, LeasePush):
            for job in self.jobs:
                if change.holder in job.submitted.job_ids:
                    job.device = change.device
                    self.look_now.set()

    def add(self, submitted: Submitted) -> Followed:
        """Follow one more job, and check it now."""
        job = Followed(submitted=submitted, job_id=submitted.job_ids[0])
        self.jobs.append(job)
        self.look_now.set()
        return job

    async def run(self, check: Callable[[], None]) -> None:
        """Return when every job is over. `check` is called every time and may raise.

        Raises the error of a check, NOT_FOUND when the triggers of uploads are gone: no
        orchestrator would ever start.
        """
        while not all(job.over for job in self.jobs):
            check()
            await self.look()
            for job in self.jobs:
                if job.error is not None:
                    raise job.error
            await self.pause()

    async def look(self) -> None:
        """Check each job that is not over.

        An error of one job is its `error`; one of the connection to the scheduler is raised.
        """
        self.look_now.clear()
        if self.feed is not None:
            await self.feed.subscribe()
        await asyncio.gather(*(self._bounded(job) for job in self.jobs if not job.over))
        await self._check_triggers()

    async def pause(self) -> None:
        """Return when the next check is due: on news of a job, or after `LOOK_EVERY_S`."""
        try:
            async with asyncio.timeout(LOOK_EVERY_S):
                await self.look_now.wait()
        except TimeoutError:
            return

    async def _bounded(self, job: Followed) -> None:
        async with self.looks:
            try:
                await self._look(job)
                job.error = None
            except AppError as error:
                job.error = error

    async def _look(self, job: Followed) -> None:
        before = (job.state, job.reason, job.sentence)
        record = await self._record(job)
        if record is not None:
            job.record, job.job_id = record, record.holder
            job.state = state_of(record)
            job.reason = reason_of(record)
            why = await waits(self.feed.client, record) if self.feed is not None else None
            job.sentence = why.sentence if why is not None else ""
            if why is not None and job.reason == Reason.NONE:
                job.reason = reason_of_wait(why).value
        if record is None or record.step is Step.ENDED:
            await self._look_at_result(job)
        if before != (job.state, job.reason, job.sentence):
            self.on_change(job)

    async def _look_at_result(self, job: Followed) -> None:
        """Called when the record is ENDED or there is none (yet, or any more)."""
        ended = job.record is not None and job.record.step is Step.ENDED
        for name in (job.job_id,) if ended else job.submitted.job_ids:
            found = await asyncio.to_thread(self.cloud.result, job.submitted.function, name)
            if found is not None:
                job.result, job.job_id = found, name
        if job.result is not None:
            job.looks_with_result += 1
        job.over = ended or job.looks_with_result >= LOOKS_WITHOUT_RECORD
        if job.over and job.result is not None and not ended:
            job.state, job.reason = job.result.state, job.result.reason

    async def _check_triggers(self) -> None:
        """Check once for each job that is not received in time, by function."""
        now_s = asyncio.get_running_loop().time()
        lost: dict[str, list[Followed]] = {}
        for job in self.jobs:
            if job.unreceived_s is None:
                job.unreceived_s = now_s + UNRECEIVED_S
            elif now_s >= job.unreceived_s and job.state is None and not job.over:
                job.unreceived_s = math.inf
                lost.setdefault(job.submitted.function.name, []).append(job)
        for jobs in lost.values():
            await self._check_triggers_of(jobs)

    async def _check_triggers_of(self, jobs: Sequence[Followed]) -> None:
        """Of jobs of one function; a denial by the cloud is not an error."""
        try:
            why = await asyncio.to_thread(unreceived, self.cloud, jobs[0].submitted.function)
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                return
            if self.feed is not None:
                for job in jobs:
                    job.error = error
                return
            why = error.message
        else:
            if self.feed is None:
                return  # it may be running: only a scheduler shows that
        for job in jobs:
            job.sentence = why
            self.on_change(job)

    async def _record(self, job: Followed) -> Record | None:
        if self.feed is None:
            return None
        for name in job.submitted.job_ids:
            record = (await self.feed.client.ask(ops.RecordOf(holder=JobId(name)))).record
            if record is not None:
                return record
        return None


def unreceived(cloud: JobCloud, function: Function) -> str:
    """The probable reason that no orchestrator received an upload.

    Raises NOT_FOUND naming the deployed resources of the function that are gone.
    """
    missing = cloud.services.missing(function.name)
    if missing:
        raise AppError(
            ErrorCode.NOT_FOUND,
            f"no orchestrator is notified of uploads for {function.name}: gone since it was "
            f"deployed: {', '.join(missing)}; `orchgpu deploy` creates it again, then `orchgpu run "
            "--again` uploads the file again",
        )
    if count := cloud.not_received(function):
        return f"{count} messages in the queue, which no orchestrator has received yet"
    return "the queue has no message for it either; `orchgpu run --again` uploads the file again"


async def follow(
    cloud: JobCloud,
    scheduler: str | None,
    submitted: Sequence[Submitted],
    on_change: OnChange,
    *,
    within_s: float | None,
    check: Callable[[], None] = lambda: None,
) -> list[Followed]:
    """Follow to the end. Raises TIMEOUT after `within_s` naming the jobs that are not over."""
    jobs = [Followed(submitted=s, job_id=s.job_ids[0]) for s in submitted]
    follower = Follower(cloud=cloud, feed=None, on_change=on_change, jobs=jobs)
    try:
        async with asyncio.timeout(within_s):
            await _with_scheduler(follower, scheduler, check)
    except TimeoutError:
        left = ", ".join(f"{job.job_id} {job.where}" for job in jobs if not job.over)
        states = [{"job_id": job.job_id, "state": job.state} for job in jobs]
        message = f"not over after {within_s:g} s: {left}"
        raise AppError(ErrorCode.TIMEOUT, message, jobs=states) from None
    return jobs


async def _with_scheduler(
    follower: Follower, address: str | None, check: Callable[[], None]
) -> None:
    if address is None:
        await follower.run(check)
        return
    # without a deadline of ours: jobs are followed over a restart of the scheduler
    async with Feed(address, on_change=follower.take, records=False, deadline_s=None) as feed:
        follower.feed = feed
        await follower.run(check)
