"""`orchgpu.Executor`: a deployed function on values, by the interface of `concurrent.futures`.

import orchgpu

with orchgpu.Executor() as executor:
    for square in executor.map(matrix_square, matrices):  # declared with `values=True`
        print(square.trace())

A value becomes the uploaded input of one job, and the job's one output file the answer
(`contract.values` has the forms); `submit_file` sends a file and fetches those that come back. Code
never travels: a function runs where it was deployed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import hashlib
import logging
import math
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from contract.values import decode_value, encode_value
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.declaration import deployed_name
from orchgpu.jobs.cancelling import cancel_job
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.following import Followed, Follower
from orchgpu.jobs.live.feed import Feed
from orchgpu.jobs.outputs import read_output
from orchgpu.jobs.scheduler import answering_scheduler
from orchgpu.jobs.uploaded import Submitted
from orchgpu.mapping import result_of

logger = logging.getLogger("orchgpu.executor")

#: A value and an answer are whole in memory; larger data are files (`orchgpu.map`).
VALUE_BYTES_MAX = 2**30
#: Characters of a content's hash in the name of its object.
_HASH_CHARS = 32


class JobFailed(Exception):
    """A job that ended without success."""

    def __init__(self, job_id: str, state: str, reason: str, detail: str, log_tail: str) -> None:
        super().__init__(job_id, state, reason, detail, log_tail)
        self.job_id = job_id
        self.state = state  #: FAILED, REJECTED, CANCELLED (by another one than its future), …
        self.reason = reason  #: EXIT_NONZERO, …; docs/reference/exit-codes.md
        self.detail = detail  #: one sentence
        self.log_tail = log_tail  #: the last lines of the function's output, with its traceback

    def __str__(self) -> str:
        tail = f"\n{self.log_tail.rstrip()}" if self.log_tail else ""
        return f"{self.job_id} {self.state} ({self.reason}): {self.detail}{tail}"


class JobFuture(Future[Any]):
    """The answer of one job. It is cancelled until the job has ended, while it runs, too."""

    def __init__(self) -> None:
        super().__init__()
        self.on_cancel: Callable[[], None] = lambda: None
        self.job_id: str | None = None  #: None until the value is uploaded

    def cancel(self) -> bool:
        """End the job as `orchgpu cancel` does, if this executor made it.

        False when its answer or error is known.

        The future is cancelled at once; the job ends soon after (`Executor.shutdown` waits).
        """
        first = not self.cancelled()
        cancelled = super().cancel()
        if cancelled and first:
            self.on_cancel()
        return cancelled


@dataclass(slots=True, kw_only=True, eq=False)
class _Call:
    """One submitted value."""

    function: str
    file: str  #: name of the uploaded file
    content: bytes | Path  #: of the file; or itself, which is answered by files
    folder: Path | None = None  #: for the fetched files
    future: JobFuture = field(default_factory=JobFuture)


class Executor(concurrent.futures.Executor):
    """Runs deployed functions on values: JSON, bytes, arrays of NumPy; never pickled objects.

    One thread follows all jobs while there are any; the `with` block ends when they have ended.
    What was sent before to the same revision of the function has the answer of that job, unless it
    failed or its result has expired; `again` makes a new one always. Jobs continue when the program
    ends early.
    """

    def __init__(
        self,
        *,
        again: bool = False,
        at_once: int = 8,
        scheduler: str | None = None,
        endpoint_url: str | None = None,
        region: str | None = None,
    ) -> None:
        """`at_once`: transfers at a time; the last three as of `orchgpu run`.

        Raises UNAVAILABLE when a configured scheduler does not answer.
        """
        self._again, self._at_once = again, at_once
        self._cloud = JobCloud(endpoint_url, region, connections=max(4, at_once))
        self._address = answering_scheduler(scheduler, logger.info)
        self._lock = threading.Lock()  # of all below
        self._new: list[_Call] = []
        self._unsettled: set[JobFuture] = set()
        self._thread: threading.Thread | None = None  # the newest one
        self._serving = False  # the thread takes calls; without any it ends
        self._wake: Callable[[], None] = lambda: None
        self._closed = False
        self._broken: BaseException | None = None

    def submit(self, fn: str | Callable[..., Any], /, *args: Any, **kwargs: Any) -> JobFuture:
        """Start a job of a deployed function on one value; its answer or error is the future's.

        `fn`: a function with `@orchgpu.function`, or its name. Raises TypeError for other
        functions, for other than one positional value, and as `contract.values.encode_value`;
        RuntimeError after `shutdown`. The future raises JobFailed, or AppError for what prevented
        the job or its answer.
        """
        function = deployed_name(fn)
        if kwargs or len(args) != 1:
            raise TypeError(f"{function} takes one value: put several into a list or a dict")
        suffix, content = encode_value(args[0])
        if len(content) > VALUE_BYTES_MAX:
            raise ValueError(f"a value of {len(content)} bytes; at most {VALUE_BYTES_MAX}")
        name = f"{function}-{hashlib.sha256(content).hexdigest()[:_HASH_CHARS]}"
        if self._again:
            name += f"-{uuid.uuid4().hex[:12]}"
        return self._start(_Call(function=function, file=name + suffix, content=content))

    def submit_file(
        self,
        fn: str | Callable[..., Any],
        file: str | PathLike[str],
        *,
        output: str | PathLike[str] | None = None,
        name: str | None = None,
    ) -> JobFuture:
        """Start a job on one file; the future's answer is an `orchgpu.mapping.JobResult`.

        `output`: folder to fetch outputs into; `name`: of the uploaded object, by default the
        file's: different files must not have one name at a time. Errors are those of `submit`.
        """
        function, path = deployed_name(fn), Path(file)
        folder = None if output is None else Path(output)
        return self._start(
            _Call(function=function, file=name or path.name, content=path, folder=folder)
        )

    def _start(self, call: _Call) -> JobFuture:
        future = call.future
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if self._broken is not None:
                raise BrokenExecutor(f"jobs cannot be followed: {self._broken}") from self._broken
            future.on_cancel = self._cancelled
            self._new.append(call)
            self._unsettled.add(future)
            if not self._serving:
                self._serving = True
                self._thread = threading.Thread(
                    target=self._run, args=(self._thread,), name="orchgpu.Executor", daemon=True
                )
                self._thread.start()
            self._wake()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; `wait` until every job has ended. Safe to repeat.

        `cancel_futures` cancels all jobs that have not ended: a waiting or running one holds its
        place or its device until then.
        """
        with self._lock:
            self._closed = True
            thread = self._thread
            unsettled = list(self._unsettled)
        if cancel_futures:
            for future in unsettled:
                future.cancel()
        if wait and thread is not None:
            thread.join()
        self._close_after_all()

    def _close_after_all(self) -> None:
        with self._lock:
            done = self._closed and not self._serving
        if done:
            self._cloud.close()

    # ------------------------------------------------------------------ in the thread

    def _run(self, before: threading.Thread | None) -> None:
        try:
            if before is not None:
                before.join()
            asyncio.run(self._serve())
        except BaseException as error:  # no future may wait for what nothing follows
            with self._lock:
                self._broken, self._serving, self._new = error, False, []
                self._wake = lambda: None
                left, self._unsettled = self._unsettled, set()
            for future in left:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
        self._close_after_all()

    async def _serve(self) -> None:
        """Serve calls until there are none."""
        async with contextlib.AsyncExitStack() as stack:
            follower = Follower(self._cloud, feed=None, on_change=lambda _: None, jobs=[])
            if self._address is not None:  # as `orchgpu run`: over a restart of the scheduler
                feed = Feed(
                    self._address,
                    on_change=follower.take,
                    records=False,
                    deadline_s=None,
                    connected=False,
                )
                follower.feed = await stack.enter_async_context(feed)
            calls = _Calls(self._cloud, self._address, follower, self._again, self._at_once)
            loop = asyncio.get_running_loop()
            with self._lock:
                self._wake = lambda: _wake(loop, follower)
            running: set[asyncio.Task[None]] = set()
            while (new := self._taken(not running)) is not None:
                running |= {asyncio.create_task(self._settle(calls, call)) for call in new}
                await follower.look()
                calls.end_looks()
                await follower.pause()
                running = {task for task in running if not task.done()}

    def _taken(self, idle: bool) -> list[_Call] | None:
        """The calls since the last time; None ends the thread."""
        with self._lock:
            new, self._new = self._new, []
            if idle and not new:
                self._serving, self._wake = False, lambda: None
                return None
            return new

    async def _settle(self, calls: _Calls, call: _Call) -> None:
        """One call up to the end of its future, and of its job where that is cancelled."""
        future = call.future
        answer: Any = None
        failure: Exception | None = None
        try:
            answer = await calls.answer(call)
        except Exception as error:  # one error ends one thing
            failure = error
        if future.set_running_or_notify_cancel():
            if failure is None:
                future.set_result(answer)
            else:
                future.set_exception(failure)
        with self._lock:
            self._unsettled.discard(future)
            self._wake()

    def _cancelled(self) -> None:
        with self._lock:
            self._wake()


def _wake(loop: asyncio.AbstractEventLoop, follower: Follower) -> None:
    loop.call_soon_threadsafe(follower.look_now.set)


class _Calls:
    """The ways of values up and answers down, for one thread's event loop."""

    def __init__(
        self, cloud: JobCloud, address: str | None, follower: Follower, again: bool, at_once: int
    ) -> None:
        self._cloud, self._address, self._follower, self._again = cloud, address, follower, again
        self._transfers = asyncio.Semaphore(at_once)
        # by name: equal values are one object, and are not uploaded twice at a time
        self._uploads: weakref.WeakValueDictionary[str, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )
        self._ended: dict[int, tuple[Followed, JobFuture, asyncio.Future[None]]] = {}
        self._made: set[tuple[str, ...]] = set()  # ids of jobs that are not of another program

    async def answer(self, call: _Call) -> Any:
        """The answer; None for a future that was cancelled, whose job has ended then.

        Raises JobFailed, AppError, ImportError for an array without NumPy.
        """
        again = self._again
        while True:
            sent = await self._sent(call, again)
            if sent is None:
                return None
            submitted, is_new = sent
            job = await self._followed(submitted, call.future, is_new=is_new)
            if job is None:
                return None
            if job.succeeded or is_new:
                break
            again = True  # an earlier job that failed, or whose result has expired
        async with self._transfers:
            return await asyncio.to_thread(self._answer_of, call, job)

    async def _followed(
        self, submitted: Submitted, future: JobFuture, *, is_new: bool
    ) -> Followed | None:
        """The job when it is over, or left no trace; None for a future that was cancelled.

        Then the job has ended, too, unless another future or program made it or waits for it.
        """
        job = self._follower.add(submitted)
        future.job_id = job.job_id
        if is_new:
            self._made.add(submitted.job_ids)
        ended = asyncio.get_running_loop().create_future()
        self._ended[id(job)] = (job, future, ended)
        try:
            await ended
        finally:
            del self._ended[id(job)]
            self._follower.jobs.remove(job)
        if not future.cancelled():
            return job
        is_own = submitted.job_ids in self._made and not self._is_shared(job)
        if is_own and not job.over:
            await asyncio.to_thread(self._cancel, job)
        return None

    def _answer_of(self, call: _Call, job: Followed) -> Any:
        if isinstance(call.content, Path):
            _require_success(job)
            return result_of(self._cloud, job, call.content, call.folder)
        return answer_of(self._cloud, job)

    def end_looks(self) -> None:
        """Let the calls continue whose jobs are over, lost, or wanted no more."""
        for job, future, ended in self._ended.values():
            if ended.done():
                continue
            if job.over or future.cancelled():
                ended.set_result(None)
            elif job.error is not None and not job.error.retryable:
                ended.set_exception(job.error)
            elif self._left_no_trace(job):
                ended.set_result(None)

    async def _sent(self, call: _Call, again: bool) -> tuple[Submitted, bool] | None:
        lock = self._uploads.setdefault(call.file, asyncio.Lock())
        async with lock, self._transfers:
            if call.future.cancelled():
                return None
            return await asyncio.to_thread(self._upload, call, again)

    def _upload(self, call: _Call, again: bool) -> tuple[Submitted, bool]:
        """The job of the call, and whether it is a new one."""
        function = self._cloud.function(call.function)
        with tempfile.TemporaryDirectory(prefix="orchgpu-value-") as folder:
            file = Path(folder, call.file)
            if isinstance(call.content, Path):
                file.symlink_to(call.content.absolute())
            else:
                file.write_bytes(call.content)
            before = None if again else self._cloud.submitted_before(function, file)
            made = before or self._cloud.submit(function, file, now_s=time.time())
        return made, before is None

    def _left_no_trace(self, job: Followed) -> bool:
        """Whether an earlier job has no record and no result, long after its upload.

        Without a scheduler only a result shows a job: it may run, and is waited for.
        """
        is_lost = job.unreceived_s == math.inf and job.state is None and job.result is None
        is_earlier = job.submitted.job_ids not in self._made
        return is_lost and is_earlier and self._address is not None

    def _is_shared(self, job: Followed) -> bool:
        """Whether another future waits for the same job."""
        return any(one.submitted.job_ids == job.submitted.job_ids for one in self._follower.jobs)

    def _cancel(self, job: Followed) -> None:
        function, detail = job.submitted.function.name, "cancelled by its future"
        try:
            cancel_job(self._cloud, self._address, job.job_id, function, detail)
        except AppError as error:
            if error.code is not ErrorCode.CONFLICT:  # it ended meanwhile
                logger.warning("%s is not cancelled: %s", job.job_id, error.message)


def answer_of(cloud: JobCloud, job: Followed) -> Any:
    """The value of a job that is over.

    Raises JobFailed, NOT_FOUND without an output, INVALID for several different ones or for a file
    that is not of its form, IMPOSSIBLE above `VALUE_BYTES_MAX`, CONFLICT for an overwritten one.
    """
    _require_success(job)
    outputs = job.outputs
    if not outputs:
        text = f"{job.job_id} succeeded and stored no output, so it has no answer: does an output"
        raise AppError(ErrorCode.NOT_FOUND, f"{text} of {job.submitted.function.name} take it?")
    if len({one.sha256 for one in outputs}) > 1:
        urls = ", ".join(one.url for one in outputs)
        raise invalid(f"{job.job_id} has several outputs, an answer is one file: {urls}")
    content = read_output(cloud, outputs[0], VALUE_BYTES_MAX)
    try:
        return decode_value(outputs[0].key, content)
    except ValueError as error:
        raise invalid(f"{outputs[0].url}: {error}") from None


def _require_success(job: Followed) -> None:
    if not job.succeeded:
        result = job.result
        detail, log_tail = (result.detail, result.log_tail) if result is not None else ("", "")
        raise JobFailed(job.job_id, str(job.state), job.reason, detail, log_tail)


def call(
    function: str | Callable[..., Any],
    value: object,
    *,
    again: bool = False,
    timeout_s: float | None = None,
    scheduler: str | None = None,
    endpoint_url: str | None = None,
    region: str | None = None,
) -> Any:
    """The answer of a deployed function to one value: an `Executor` for one call.

    Raises as the future does, and TimeoutError after `timeout_s`; then, and on Ctrl-C, the job is
    cancelled.
    """
    executor = Executor(again=again, scheduler=scheduler, endpoint_url=endpoint_url, region=region)
    with executor:
        future = executor.submit(function, value)
        try:
            return future.result(timeout_s)
        finally:
            future.cancel()
