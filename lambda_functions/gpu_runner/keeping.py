"""Progress of a running attempt for people, and its checkpoint for the next attempt.

A thread looks at both while the user's code runs. What it cannot store is logged once and tried
again: neither is a reason to end the code.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from contract.envelope import Job
from contract.keys import progress_key
from contract.progress import Progress
from lambda_functions.gpu_runner.errors import StorageError
from lambda_functions.gpu_runner.sandbox import Workspace, open_plain
from lambda_functions.gpu_runner.storage.checkpoint import Checkpoint
from lambda_functions.gpu_runner.storage.s3 import S3, s3_errors

LOG = logging.getLogger(__name__)

#: Variables of the user's code.
PROGRESS_FILE, CHECKPOINT_DIR = "PROGRESS_FILE", "CHECKPOINT_DIR"
#: Between two looks at the progress: each change is one PutObject.
LOOK_S = 10.0
#: Of the time after the notice of a preemption, the part of code whose folder is saved then: a
#: host ends the runner with the lease.
_CODE_PART = 0.5
#: Read of the file.
_PROGRESS_BYTES_MAX = 1000


class Keeping:
    """A context, within which the user's code runs."""

    def __init__(
        self, s3: S3, job: Job, workspace: Workspace, every_s: float, masked: Callable[[str], str]
    ) -> None:
        """`every_s`: between two checkpoints; 0 = the job has none; `masked` hides secrets.

        Raises AttemptFailed.
        """
        self._masked = masked
        self._s3, self._job, self._every_s = s3, job, every_s
        self._file = workspace.root / ".orchgpu-progress"
        self._checkpoint: Checkpoint | None = None
        self.variables = {PROGRESS_FILE: str(self._file)}
        self.grace_part = _CODE_PART if every_s else 1.0  #: of the code, as in `Claim`
        self._seen = Progress(attempt=job.attempt, part=None, text="", at_s=time.time())
        self._warned: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeping", daemon=True)
        if every_s:
            folder = workspace.root / "checkpoint"
            self._checkpoint = Checkpoint(s3, job, folder, workspace.root)
            if self._checkpoint.restore():
                LOG.info("continues from the checkpoint of an earlier attempt")
            self.variables[CHECKPOINT_DIR] = str(folder)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        """The code has ended: look no more. A save may go on until the context's end."""
        self._over.set()

    def cut_short(self) -> None:
        """The code was stopped before its end: save what it left. After the context's end."""
        self._save()

    def succeeded(self) -> None:
        """The job has its result. Never raises."""
        if self._checkpoint is not None:
            try:
                self._checkpoint.remove()
            except StorageError as error:  # it expires
                LOG.warning("the checkpoint stays: %s", error)

    def _keep(self) -> None:
        due_s = time.monotonic() + self._every_s if self._every_s else math.inf
        while not self._over.wait(pause_s(due_s - time.monotonic())):
            if (now_s := time.monotonic()) >= due_s:
                due_s = now_s + self._every_s
                self._save()
            self._report()

    def _save(self) -> None:
        if self._checkpoint is None:
            return
        try:
            if self._checkpoint.save():
                self._publish(self._seen.part, self._seen.text, time.time())
        except (StorageError, OSError) as error:
            self._warn("checkpoint", error)

    def _report(self) -> None:
        part, text = read_progress(self._file)
        text = self._masked(text)
        if (part, text) != (self._seen.part, self._seen.text):
            try:
                self._publish(part, text, self._seen.saved_at_s)
            except StorageError as error:
                self._warn("progress", error)

    def _publish(self, part: float | None, text: str, saved_at_s: float | None) -> None:
        job = self._job
        seen = Progress(
            attempt=job.attempt, part=part, text=text, at_s=time.time(), saved_at_s=saved_at_s
        )
        bucket, key = job.intermediate_bucket, progress_key(job.job_id, job.attempt)
        with s3_errors(f"write s3://{bucket}/{key}"):
            self._s3.put_object(Bucket=bucket, Key=key, Body=seen.to_json())
        self._seen = seen

    def _warn(self, what: str, error: Exception) -> None:
        if what not in self._warned:
            self._warned.add(what)
            LOG.warning("the %s cannot be stored now: %s", what, error)


def pause_s(due_in_s: float) -> float:
    """Seconds until the next look, which a checkpoint that is due does not wait for."""
    return min(LOOK_S, max(0.0, due_in_s))


def read_progress(file: Path) -> tuple[float | None, str]:
    """The part and the text that the code wrote last: `0.4 epoch 3`, or a text alone.

    A file that is absent or not text reports nothing.
    """
    try:
        with open_plain(file) as opened:
            read = b"" if opened is None else opened.read(_PROGRESS_BYTES_MAX)
    except OSError:
        return None, ""
    line = (read.decode("utf-8", "replace").splitlines() or [""])[0].strip()
    number, _, rest = line.partition(" ")
    try:
        part = float(number)
    except ValueError:
        return None, line
    return (part, rest.strip()) if 0.0 <= part <= 1.0 else (None, line)
