"""One attempt of one job, from its envelope to its result.

The order matters. The session is the first remote act after reading the envelope: a start that
cannot claim the lease does nothing. The device is given back the moment the code has ended. Outputs
are uploaded only after success and while the session lives; the result is written last.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from contract.envelope import Job
from contract.keys import StagingKey
from contract.result import CLAIM_FAILED, OutputFile
from contract.states import Reason
from lambda_functions.gpu_runner.envelope import envelope
from lambda_functions.gpu_runner.errors import (
    AttemptFailed,
    EnvelopeError,
    LeaseNotOpen,
    StorageError,
)
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox.workspace import Workspace, input_name
from lambda_functions.gpu_runner.script import environment, steps
from lambda_functions.gpu_runner.script.process import Ending, Signals
from lambda_functions.gpu_runner.secrets.values import Secrets, SecretValues
from lambda_functions.gpu_runner.settings import Settings
from lambda_functions.gpu_runner.storage import commit, outputs
from lambda_functions.gpu_runner.storage.s3 import S3, download
from remote_gpu.client import Refusal, Refused, Session
from remote_gpu.forwarder import client_variables
from remote_gpu.wire.errors import WireError

LOG = logging.getLogger(__name__)

#: The function's answer to Lambda for one record: JSON.
Answer: TypeAlias = "dict[str, object]"

#: A bucket can answer 404 for objects that exist in the first 15 minutes of its versioning
#: (https://docs.aws.amazon.com/AmazonS3/latest/userguide/manage-versioning-examples.html), and the
#: envelope of a duplicate start is gone for good: ten seconds of the reserved device separate them.
_ABSENT_PAUSES_S = (0.5, 1.0, 2.0, 3.0, 3.5)


class Claim:
    """The session of an attempt, with descriptors that its news make readable."""

    def __init__(self, grant: envelope.Grant, cap_s: float, traceparent: str) -> None:
        """Raises Refused."""
        flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
        self.signals = Signals(lost_fd=os.eventfd(0, flags), preempt_fd=os.eventfd(0, flags))
        try:
            self.session = Session.open(
                grant.connection,
                cap_s,
                on_lost=self._on_lost,
                on_preempt=self._on_preempt,
                traceparent=traceparent,
            )
        except BaseException:
            self._close_descriptors()
            raise
        self.outcome = "FAILED"  #: the reason that the session is closed with

    def _on_lost(self, _refused: Refused) -> None:
        os.eventfd_write(self.signals.lost_fd, 1)

    def _on_preempt(self, grace_s: float) -> None:
        LOG.warning("the lease ends in %g s for a request of higher priority", grace_s)
        os.eventfd_write(self.signals.preempt_fd, max(1, round(grace_s * 1000)))

    def _close_descriptors(self) -> None:
        os.close(self.signals.lost_fd)
        os.close(self.signals.preempt_fd)

    def check(self) -> None:
        """Raises AttemptFailed when the session is lost."""
        if (lost := self.session.lost) is not None:
            raise AttemptFailed(_reason_of(lost), f"the session was lost: {lost}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # joins the thread that writes to the descriptors
        self.session.close(self.outcome, succeeded=self.outcome == "DONE")
        self._close_descriptors()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """The common inputs of all phases of one attempt."""

    s3: S3
    job: Job
    settings: Settings
    values: SecretValues
    limits: TimeLimits
    envelope: envelope.Envelope
    claim: Claim
    workspace: Workspace
    given: dict[str, str]  #: the user's variables that came with the envelope, checked
    moments: dict[str, float]  #: wall clock: invoked, claimed, given_back


def run_attempt(
    s3: S3,
    settings: Settings,
    limits: TimeLimits,
    staging: StagingKey,
    place: tuple[str, str],
    pause: Callable[[float], None] = time.sleep,
    *,
    values: SecretValues,
) -> Answer:
    """Run the attempt whose envelope lies at `place` (bucket, key); the answer is for the log.

    A duplicate delivery or a withdrawn envelope is not an error. Raises RunnerError when the
    orchestrator must learn from Lambda that the function could not run the attempt.
    """
    bucket, key = place
    moments = {"invoked": time.time()}
    attempt_of: Answer = {"job_id": staging.job, "attempt": staging.n}
    LOG.info("%s, attempt %d", staging.job, staging.n)  # `orchgpu logs` searches for this line
    try:
        opened = _fetch(s3, bucket, key, staging.form, pause)
    except StorageError as error:
        if error.status == 404:
            return {"status": "withdrawn", **attempt_of}
        raise
    with opened, Workspace() as workspace:
        _check_address(opened.job, staging, bucket)
        given = _given_variables(opened)
        claim = _claim(opened.grant, limits, opened.job.traceparent or "")
        if claim is None:
            return {"status": "duplicate", **attempt_of}
        moments["claimed"] = time.time()
        with claim:
            attempt = Attempt(
                s3=s3,
                job=opened.job,
                settings=settings,
                values=values,
                limits=limits,
                envelope=opened,
                claim=claim,
                workspace=workspace,
                given=given,
                moments=moments,
            )
            return attempt_of | _succeed_or_report(attempt)


def _fetch(
    s3: S3, bucket: str, key: str, form: str, pause: Callable[[float], None]
) -> envelope.Envelope:
    """The envelope, requested again while S3 answers 404. Raises StorageError, EnvelopeError."""
    for pause_s in _ABSENT_PAUSES_S:
        try:
            return envelope.fetch(s3, bucket, key, form)
        except StorageError as error:
            if error.status != 404:
                raise
        pause(pause_s)
    return envelope.fetch(s3, bucket, key, form)


def _check_address(job: Job, staging: StagingKey, bucket: str) -> None:
    inside = (job.function, job.job_id, job.attempt, job.fence, job.intermediate_bucket)
    if inside != (*staging[:4], bucket):
        raise EnvelopeError(
            f"the envelope of {job.job_id}:{job.attempt} was found at the key of another attempt"
        )


def _given_variables(opened: envelope.Envelope) -> dict[str, str]:
    """The user's variables, checked. The middleware's are checked too, and filled in later.

    Raises EnvelopeError.
    """
    environment.middleware_variables(opened.grant.middleware, opened.grant.variables)
    return environment.user_variables(opened.job.variables)


def _claim(grant: envelope.Grant, limits: TimeLimits, traceparent: str) -> Claim | None:
    """The session, or None for a duplicate start."""
    try:
        return Claim(grant, limits.cap_s, traceparent)
    except Refused as refused:
        if refused.code in (Refusal.CLAIMED, Refusal.ENDED):
            LOG.info("nothing to do: %s", refused)
            return None
        raise LeaseNotOpen(f"{CLAIM_FAILED}{refused}") from refused


def _succeed_or_report(attempt: Attempt) -> Answer:
    try:
        return _succeed(attempt)
    except AttemptFailed as failure:
        LOG.warning("attempt failed: %s", failure)
        nonce = attempt.claim.session.nonce
        commit.report(attempt.s3, attempt.job, nonce, failure, attempt.moments)
        return {"status": "failed", "reason": str(failure.reason), "detail": failure.detail}


def _succeed(attempt: Attempt) -> Answer:
    """Secrets, then the rest with them. Raises AttemptFailed."""
    left_s = attempt.limits.script_left_s
    secrets = attempt.values.resolved(attempt.settings.secrets, left_s)
    with secrets.masked_failures():
        return _succeed_with(attempt, secrets)


def _succeed_with(attempt: Attempt, secrets: Secrets) -> Answer:
    """Input, script, device given back, outputs, result. Raises AttemptFailed."""
    job, claim = attempt.job, attempt.claim
    input_file = _fetch_input(attempt)
    try:
        run = _run_steps(attempt, input_file, secrets)
    except AttemptFailed as failure:
        if failure.times:  # a step ran, and one of its files is not a valid output
            _give_back(attempt, succeeded=False)
        raise
    _give_back(attempt, succeeded=run.outcome.good)
    outcome = run.outcome
    with steps.outcome_in_failure(outcome):
        if outcome.ending in (Ending.LOST, Ending.OWN):
            claim.check()  # raises the reason of the loss, by which a script may have failed
        steps.check_outcome(outcome, attempt.limits, run.step)
        claim.check()
        files = _upload(attempt, run)
        claim.check()
    notes = [secrets.masker.text(note) for note in run.notes]
    result = commit.result_of(
        job,
        claim.session.nonce,
        exit_code=outcome.exit_code,
        files=files,
        times=attempt.moments | outcome.times,
        log_tail=outcome.log_tail,
        device=_device(claim.session),
        notes=notes,
    )
    for note in notes:
        LOG.warning("%s", note)
    stands = commit.commit(attempt.s3, job, result)
    claim.outcome = "DONE"
    return {"status": "succeeded" if stands else "lost", "files": len(files)}


def _give_back(attempt: Attempt, *, succeeded: bool) -> None:
    with contextlib.suppress(Refused):  # a lost session is found by the next check
        attempt.claim.session.give_back(succeeded=succeeded)
    attempt.moments["given_back"] = time.time()


def _fetch_input(attempt: Attempt) -> Path:
    job = attempt.job
    target = attempt.workspace.input / input_name(job.input_key)
    try:
        if job.input_inline:
            attempt.envelope.save_input(target)
        else:
            download(
                attempt.s3,
                target,
                bucket=job.input_bucket,
                key=job.input_key,
                version=job.input_version,
                etag=job.input_etag,
            )
    except (EnvelopeError, StorageError, OSError) as error:
        raise AttemptFailed(Reason.INPUT_ERROR, f"input {job.input_key!r}: {error}") from None
    return target


def _run_steps(attempt: Attempt, input_file: Path, secrets: Secrets) -> steps.Run:
    """Run the function's step, or the steps of its group, on one session."""
    job = attempt.job
    chain = attempt.settings.steps(job.outputs)
    first = steps.Item(
        step=chain[0],
        file=input_file,
        key=job.input_key,
        event=job.event,
        workspace=attempt.workspace,
    )
    with _client_variables(attempt) as of_client:
        of_session = attempt.claim.session.environment()
        if job.traceparent:
            of_session["TRACEPARENT"] = job.traceparent
        layers = (of_session, of_client)
        signals = attempt.claim.signals
        return steps.run_all(
            chain,
            first,
            lambda item: steps.run_step(
                item, attempt.limits, attempt.given, secrets, *layers, signals=signals
            ),
        )


@contextlib.contextmanager
def _client_variables(attempt: Attempt) -> Iterator[dict[str, str]]:
    """The variables of the middleware's own client, valid while its forwarder runs."""
    grant, view = attempt.envelope.grant, attempt.claim.session.view()
    folder = attempt.workspace.root
    try:
        with client_variables(view, grant.middleware, grant.variables, folder) as variables:
            yield variables
    except WireError as error:
        raise EnvelopeError(str(error)) from None


def _upload(attempt: Attempt, run: steps.Run) -> list[OutputFile]:
    """Upload all outputs while the session lives."""
    job = attempt.job
    metadata = {"orchgpu-job": job.job_id, "orchgpu-attempt": str(job.attempt)}
    stored: list[OutputFile] = []
    for file in run.stored(lambda f, places: outputs.upload(attempt.s3, f, places, metadata)):
        stored.append(file)
        attempt.claim.check()
    return stored


def _device(session: Session) -> dict[str, object]:
    """The first device of the lease, for people."""
    for host, device in session.view().devices:
        return {"host": host.host, "kind": device.kind, "model": device.model}
    return {}


def _reason_of(lost: Refused) -> Reason:
    """The host's reason for ending the lease; SESSION_LOST without one."""
    word = lost.message.partition(":")[0]
    return Reason(word) if word in Reason.__members__ else Reason.SESSION_LOST
