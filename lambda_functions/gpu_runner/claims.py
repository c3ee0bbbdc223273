"""The claim of an attempt: of all starts of its function, the one that has it runs the user's code.

With a device it is the session of the lease, without one an object (`contract.claim`). Both have
the same face: news as descriptors, a check, a nonce for the records, and an end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Literal, Self, TypeAlias

from contract.aws.clients import write_once
from contract.claim import Claim as ClaimRecord
from contract.envelope import Job
from contract.keys import claim_key, result_key
from contract.record import JsonObject
from contract.result import CLAIM_FAILED
from contract.states import Reason
from lambda_functions.gpu_runner.envelope import Grant
from lambda_functions.gpu_runner.errors import AttemptFailed, LeaseNotOpen, StorageError
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.script.process import Signals
from lambda_functions.gpu_runner.storage.s3 import S3, etag_of, s3_errors
from remote_gpu.client import Refusal, Refused, Session
from remote_gpu.client.transport.handshake import ANSWER_S

LOG = logging.getLogger(__name__)

#: Why a start has nothing to do: another one has the attempt, or its lease ended before it ran.
Idle: TypeAlias = Literal["duplicate", "withdrawn"]
#: The reason of a lease that was granted ahead and never got its shares.
_WITHDRAWN = "WITHDRAWN"

#: A run without a device looks this often whether its job was cancelled: one HEAD each time.
CANCEL_LOOK_S = 10.0


class Claim:
    """The common face of both claims; a context, whose end gives the claim up."""

    nonce: str  #: of this start, for result and report
    booked_at_s: float | None = None  #: wall clock: of a device that was not free at its grant
    outcome = "FAILED"  #: DONE after the result
    #: Of the time that a preempted lease has left: the user's code has it, the rest its checkpoint.
    grace_part = 1.0

    def __init__(self) -> None:
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self.signals = Signals(lost_fd=os.eventfd(0, flags), preempt_fd=os.eventfd(0, flags))

    def check(self) -> None:
        """Raises AttemptFailed when the attempt is no longer this start's."""

    def give_back(self, *, succeeded: bool) -> None:
        """The user's code has ended: free the device, if there is one."""

    def environment(self) -> dict[str, str]:
        """The variables of the device for the user's code."""
        return {}

    def device(self) -> JsonObject:
        """The first device, for people; empty without one."""
        return {}

    def _close_descriptors(self) -> None:
        os.close(self.signals.lost_fd)
        os.close(self.signals.preempt_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_descriptors()


class SessionClaim(Claim):
    """The session of an attempt's lease."""

    def __init__(
        self,
        grant: Grant,
        limits: TimeLimits,
        traceparent: str,
        on_waiting: Callable[[], None] | None = None,
        new_sandbox: bool | None = None,
    ) -> None:
        """`on_waiting`: called again and again while it waits. Raises Refused."""
        super().__init__()
        try:
            self.session = Session.open(
                grant.connection,
                limits.cap_s,
                on_lost=self._on_lost,
                on_preempt=self._on_preempt,
                traceparent=traceparent,
                wait_s=limits.spare_s + ANSWER_S,
                on_waiting=on_waiting,
                new_sandbox=new_sandbox,
            )
        except BaseException:
            self._close_descriptors()
            raise
        self.nonce = self.session.nonce
        if (held_s := self.session.held_s) is not None:
            self.booked_at_s = time.time() - held_s

    def _on_lost(self, _refused: Refused) -> None:
        os.eventfd_write(self.signals.lost_fd, 1)

    def _on_preempt(self, grace_s: float) -> None:
        LOG.warning("the lease ends in %g s: its device is taken away", grace_s)
        code_s = grace_s * self.grace_part
        os.eventfd_write(self.signals.preempt_fd, max(1, round(code_s * 1000)))

    def check(self) -> None:
        if (lost := self.session.lost) is not None:
            raise AttemptFailed(_reason_of(lost), f"the session was lost: {lost}")

    def give_back(self, *, succeeded: bool) -> None:
        with contextlib.suppress(Refused):  # a lost session is found by the next check
            self.session.give_back(succeeded=succeeded)

    def environment(self) -> dict[str, str]:
        return self.session.environment()

    def device(self) -> JsonObject:
        for host, device in self.session.view().devices:
            return {"host": host.host, "kind": device.kind, "model": device.model}
        return {}

    def __exit__(self, *_: object) -> None:
        # joins the thread that writes to the descriptors
        self.session.close(self.outcome, succeeded=self.outcome == "DONE")
        self._close_descriptors()


class ObjectClaim(Claim):
    """The claim of an attempt without a device: an object that only one start could store.

    No session reports a cancel, so a thread looks for the result that a cancel writes.
    """

    def __init__(self, s3: S3, job: Job, request: str) -> None:
        super().__init__()
        self.nonce = request
        self._s3 = s3
        self._job = job
        self._over = threading.Event()
        self._cancelled = False
        self._looks = threading.Thread(target=self._look, name="cancel", daemon=True)
        self._looks.start()

    def _look(self) -> None:
        while not self._over.wait(CANCEL_LOOK_S):
            if self._has_result():
                self._cancelled = True
                os.eventfd_write(self.signals.lost_fd, 1)
                return

    def _has_result(self) -> bool:
        """Whether the job ended meanwhile; not by a failure that this attempt replaces."""
        job = self._job
        try:
            etag = etag_of(self._s3, job.intermediate_bucket, result_key(job.job_id))
        except StorageError:
            return False  # S3 does not answer now
        return etag is not None and etag != (job.replace_etag or "").strip('"')

    def check(self) -> None:
        if self._cancelled:
            detail = "the job ended while its code ran: it was cancelled"
            raise AttemptFailed(Reason.CANCELLED_BY_USER, detail)

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._looks.join()
        self._close_descriptors()


def claim(
    s3: S3,
    job: Job,
    grant: Grant | None,
    limits: TimeLimits,
    request: str,
    on_waiting: Callable[[], None] | None = None,
    new_sandbox: bool | None = None,
) -> Claim | Idle:
    """The claim of the attempt, or why this start has nothing to do.

    `request`: Lambda's id of this start; `on_waiting`: called again and again while the device is
    not free yet; `new_sandbox`: this is the first run here. Raises LeaseNotOpen, StorageError.
    """
    if grant is None:
        return ObjectClaim(s3, job, request) if _stored(s3, job, limits, request) else "duplicate"
    try:
        return SessionClaim(grant, limits, job.traceparent or "", on_waiting, new_sandbox)
    except Refused as refused:
        if refused.code in (Refusal.CLAIMED, Refusal.ENDED):
            LOG.info("nothing to do: %s", refused)
            is_withdrawn = refused.message.partition(":")[0] == _WITHDRAWN
            return "withdrawn" if is_withdrawn else "duplicate"
        raise LeaseNotOpen(f"{CLAIM_FAILED}{refused}") from refused


def _stored(s3: S3, job: Job, limits: TimeLimits, request: str) -> bool:
    """Whether this start has the attempt. Lambda gives a retry of one event the same request."""
    now_s = time.time()
    mine = ClaimRecord(
        job_id=job.job_id,
        attempt=job.attempt,
        request=request,
        claimed_at_s=now_s,
        ends_at_s=now_s + limits.end_s - time.monotonic(),
    )
    bucket, key = job.intermediate_bucket, claim_key(job.job_id, job.attempt)
    with s3_errors(f"write s3://{bucket}/{key}"):
        if write_once(s3, bucket, key, mine.to_json(), pause=time.sleep):
            return True
    LOG.info("nothing to do: another start has attempt %d, or it is over", job.attempt)
    return False


def _reason_of(lost: Refused) -> Reason:
    """The host's reason for ending the lease; SESSION_LOST without one."""
    word = lost.message.partition(":")[0]
    return Reason(word) if word in Reason.__members__ else Reason.SESSION_LOST
