"""The processes of AWS Batch's jobs.

A container's place has a process with the command that the job definitions of `host: {batch: …}`
have (docs/how-to/host-execution.md), the job's variables and the cloud's keys; no image is started.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from corekit.aio.supervise import Nursery
from local_cloud.model.batch import Batch, BatchJob
from local_cloud.process import CloudClock
from local_cloud.sandbox.log_store import LogStore
from local_cloud.sandbox.process_tree import kill_all, signal_all

#: The log group of jobs whose definition names none, as on AWS.
LOG_GROUP = "/aws/batch/job"
_COMMAND = (sys.executable, "-P", "-m", "remote_gpu.host.runs.in_batch")
_SCHEDULED_EVERY_S = 0.2
#: From SIGTERM to SIGKILL (AWS Batch user guide, "Job timeouts"; there it is 30 s).
_STOP_S = 2.0
_LINE_BYTES_MAX = 256 * 1024


class BatchProcesses:
    """The compute environment: starts the jobs of all queues in order, each in a process."""

    def __init__(
        self,
        batch: Batch,
        folder: Path,
        *,
        clock: CloudClock,
        logs: LogStore,
        nursery: Nursery,
        variables: Mapping[str, str],
    ) -> None:
        """`variables`: by which every job reaches this cloud."""
        self._batch = batch
        self._folder = folder
        self._clock = clock
        self._logs = logs
        self._nursery = nursery
        self._given = variables
        self._due = asyncio.Event()
        self._running: dict[str, asyncio.subprocess.Process] = {}

    def start(self) -> None:
        self._nursery.start_loop(self._schedule, "batch")

    def wake(self) -> None:
        """A job was submitted, or has ended."""
        self._due.set()

    def stop(self, job: BatchJob) -> None:
        """End the process of a job, which has some seconds for it."""
        self._nursery.start_end(lambda: self._stop(job.id), f"stop/{job.id}")

    async def _schedule(self) -> None:
        while True:
            await self._due.wait()
            await asyncio.sleep(_SCHEDULED_EVERY_S)  # so that a queue is seen
            self._due.clear()
            while (job := self._batch.next()) is not None:
                self._nursery.start(self._run(job), f"batch/{job.id}")

    async def _stop(self, job: str) -> None:
        if (process := self._running.get(job)) is not None:
            signal_all(process.pid, signal.SIGTERM)
            await asyncio.sleep(_STOP_S)
        if (process := self._running.get(job)) is not None:
            await asyncio.to_thread(kill_all, process.pid, self._folder / job)

    async def _run(self, job: BatchJob) -> None:
        status, why = None, ""
        try:
            status, why = await self._run_in(job, self._folder / job.id)
        except OSError as error:
            why = f"CannotStartContainerError: {error}"
        finally:
            self._batch.ended(self._clock.now_s(), job, status, why)
            self.wake()

    async def _run_in(self, job: BatchJob, folder: Path) -> tuple[int | None, str]:
        await asyncio.to_thread(folder.mkdir, parents=True)
        process = None
        try:
            if job.is_ending():
                return None, ""
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                env=self._variables(job, folder),
                cwd=folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                limit=_LINE_BYTES_MAX,
            )
            self._running[job.id] = process
            self._batch.started(self._clock.now_s(), job)
            if job.is_ending():  # while it was started
                self.stop(job)
            try:
                async with asyncio.timeout(job.timeout_s):
                    await self._read(job, process)
                    await process.wait()
            except TimeoutError:
                job.reason = "Job attempt duration exceeded timeout"
        finally:
            self._running.pop(job.id, None)
            if process is not None:
                await asyncio.to_thread(kill_all, process.pid, folder)
                await process.wait()
                process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - as in runtime.py
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        code = process.returncode or 0
        return (code if code >= 0 else 128 - code), ""

    async def _read(self, job: BatchJob, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        stream = f"{job.definition}/default/{job.id}"
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than a line may be
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip("\n")
            self._logs.append(LOG_GROUP, stream, self._clock.now_s(), text)

    def _variables(self, job: BatchJob, folder: Path) -> dict[str, str]:
        return {
            **job.variables,
            **self._given,
            "AWS_BATCH_JOB_ID": job.id,
            "AWS_BATCH_JOB_ATTEMPT": "1",
            "AWS_BATCH_JQ_NAME": job.queue,
            "LANG": "C.UTF-8",
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "TMPDIR": str(folder),
        }
