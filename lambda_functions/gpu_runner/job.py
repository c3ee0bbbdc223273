"""One attempt of one job, from its envelope to its result.

The order is the point. The session is the first remote act after the envelope that names it: who
cannot claim the lease does nothing. The device goes back the moment the code has ended. Outputs go
up only after success and while the session lives; the result is the last thing written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from contract.envelope import Job
from contract.keys import StagingKey
from contract.result import OutputFile
from contract.states import Reason
from lambda_functions.gpu_runner import commit, envelope, environment, outputs, steps, storage
from lambda_functions.gpu_runner.errors import (
    AttemptFailed,
    EnvelopeError,
    LeaseNotOpen,
    StorageError,
)
from lambda_functions.gpu_runner.script import Ending, Outcome, run
from lambda_functions.gpu_runner.settings import Settings, Time
from lambda_functions.gpu_runner.storage import S3
from lambda_functions.gpu_runner.workspace import Workspace, input_name
from remote_gpu.client import Refusal, Refused, Session
from remote_gpu.forwarder import client_variables
from remote_gpu.wire.errors import WireError

LOG = logging.getLogger(__name__)

Answer = dict[str, Any]


class Claim:
    """The session of this attempt, with the descriptor that a `poll` can wait for its loss on."""

    def __init__(self, grant: envelope.Grant, cap_s: float) -> None:
        """Raises Refused."""
        self.lost_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            self.session = Session.open(grant.connection, cap_s, on_lost=self._on_lost)
        except BaseException:
            os.close(self.lost_fd)
            raise
        self.outcome = "FAILED"  #: what the session is closed with

    def _on_lost(self, _refused: Refused) -> None:
        os.eventfd_write(self.lost_fd, 1)

    def check(self) -> None:
        """Raises AttemptFailed when the session is lost."""
        if (lost := self.session.lost) is not None:
            raise AttemptFailed(_reason_of(lost), f"the session was lost: {lost}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.session.close(self.outcome)  # joins the thread: nobody writes to the descriptor now
        os.close(self.lost_fd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What every step of one attempt needs."""

    s3: S3
    job: Job
    settings: Settings
    time: Time
    envelope: envelope.Envelope
    claim: Claim
    workspace: Workspace
    given: dict[str, str]  #: the user's variables that came with the envelope, checked


def run_attempt(
    s3: S3, settings: Settings, time: Time, staging: StagingKey, place: tuple[str, str]
) -> Answer:
    """Do the attempt whose envelope lies at `place` (bucket, key); the answer is for the log.

    Quiet when there is nothing to do: a duplicate delivery, a withdrawn envelope. Raises
    RunnerError when the orchestrator must learn from Lambda that the function could not work.
    """
    bucket, key = place
    who = {"job_id": staging.job, "attempt": staging.n}
    LOG.info("%s, attempt %d", staging.job, staging.n)  # by it `orchgpu logs` finds the invocation
    try:
        opened = envelope.fetch(s3, bucket, key, staging.form)
    except StorageError as error:
        if error.status == 404:
            return {"status": "withdrawn", **who}
        raise
    with opened, Workspace() as workspace:
        _check_address(opened.job, staging, bucket)
        given = _given_variables(opened)
        claim = _claim(opened.grant, time)
        if claim is None:
            return {"status": "duplicate", **who}
        with claim:
            attempt = Attempt(
                s3=s3,
                job=opened.job,
                settings=settings,
                time=time,
                envelope=opened,
                claim=claim,
                workspace=workspace,
                given=given,
            )
            return who | _succeed_or_report(attempt)


def _check_address(job: Job, staging: StagingKey, bucket: str) -> None:
    inside = (job.function, job.job_id, job.attempt, job.fence, job.intermediate_bucket)
    if inside != (*staging[:4], bucket):
        raise EnvelopeError(f"the envelope of {job.job_id}:{job.attempt} lies at a foreign key")


def _given_variables(opened: envelope.Envelope) -> dict[str, str]:
    """The user's; the middleware's are checked, and filled once its ports are known.

    Raises EnvelopeError.
    """
    environment.middleware_variables(opened.grant.middleware, opened.grant.variables)
    return environment.user_variables(opened.job.variables)


def _claim(grant: envelope.Grant, time: Time) -> Claim | None:
    """The session, or None for a start that came second."""
    try:
        return Claim(grant, time.cap_s)
    except Refused as refused:
        if refused.code in (Refusal.CLAIMED, Refusal.ENDED):
            LOG.info("nothing to do: %s", refused)
            return None
        raise LeaseNotOpen(f"the lease could not be claimed: {refused}") from refused


def _succeed_or_report(attempt: Attempt) -> Answer:
    try:
        return _succeed(attempt)
    except AttemptFailed as failure:
        LOG.warning("attempt failed: %s", failure)
        commit.report(attempt.s3, attempt.job, attempt.claim.session.nonce, failure)
        return {"status": "failed", "reason": str(failure.reason), "detail": failure.detail}


def _succeed(attempt: Attempt) -> Answer:
    """Input, script, give back, outputs, result. Raises AttemptFailed."""
    job, claim = attempt.job, attempt.claim
    input_file = _fetch_input(attempt)
    try:
        run = _run_steps(attempt, input_file)
    except AttemptFailed as failure:
        if failure.times:  # something ran, and what it wrote is no output
            _give_back(claim)
        raise
    _give_back(claim)
    outcome = run.outcome
    with _outcome_in_failure(outcome):
        if outcome.ending is Ending.LOST:
            claim.check()  # says why
        check_outcome(outcome, attempt.time.limit, run.step)
        claim.check()
        files = _upload(attempt, run)
        claim.check()
    result = commit.result_of(
        job,
        claim.session.nonce,
        exit_code=outcome.exit_code,
        files=files,
        times=outcome.times,
        log_tail=outcome.log_tail,
        device=_device(claim.session),
        notes=run.notes,
    )
    for note in run.notes:
        LOG.warning("%s", note)
    stands = commit.commit(attempt.s3, job, result)
    claim.outcome = "DONE"
    return {"status": "succeeded" if stands else "lost", "files": len(files)}


def _give_back(claim: Claim) -> None:
    with contextlib.suppress(Refused):  # a lost session is judged by who asks next
        claim.session.give_back()


def _fetch_input(attempt: Attempt) -> Path:
    job = attempt.job
    target = attempt.workspace.input / input_name(job.input_key)
    try:
        if job.input_inline:
            attempt.envelope.save_input(target)
        else:
            storage.download(
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


def _run_steps(attempt: Attempt, input_file: Path) -> steps.Run:
    """The function's step, or the steps of its group, on one session."""
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
        return steps.run_all(chain, first, lambda item: _run_step(attempt, item, of_client))


def _run_step(attempt: Attempt, item: steps.Item, of_client: Mapping[str, str]) -> Outcome:
    declared = item.step.variables
    variables = environment.merged(
        environment.base_variables(item.workspace),
        attempt.given if declared is None else environment.user_variables(declared),
        environment.scar_variables(
            item.workspace, input_file=item.file, key=item.key, event=item.event
        ),
        attempt.claim.session.environment(),
        of_client,
    )
    return run(
        item.step.command(),
        variables=variables,
        folder=item.workspace.root,
        deadline_s=attempt.time.script_s,
        grace_s=attempt.time.grace_s,
        lost_fd=attempt.claim.lost_fd,
    )


@contextlib.contextmanager
def _client_variables(attempt: Attempt) -> Iterator[dict[str, str]]:
    """What the middleware's own client needs, with its forwarder running for as long."""
    grant, view = attempt.envelope.grant, attempt.claim.session.view()
    folder = attempt.workspace.root
    try:
        with client_variables(view, grant.middleware, grant.variables, folder) as variables:
            yield variables
    except WireError as error:
        raise EnvelopeError(str(error)) from None


def check_outcome(outcome: Outcome, limit: str, step: str = "") -> None:
    """Raises AttemptFailed unless the script (of `step`) ended by itself with exit status 0.

    `limit`: where the time came from after which it was stopped; see `Time`.
    """
    ran_s = outcome.ended_s - outcome.started_s
    who = f"the script of step {step}" if step else "the script"
    if outcome.ending is Ending.DEADLINE:
        raise AttemptFailed(
            Reason.TIMEOUT,
            f"{who} was stopped after {ran_s:.1f} s: {limit}; set a longer `timeout`",
        )
    if outcome.ending is Ending.LOST:
        raise AttemptFailed(Reason.SESSION_LOST, f"{who} was stopped: its session was lost")
    if outcome.status < 0:
        hint = " (often: out of memory)" if outcome.status == -signal.SIGKILL else ""
        raise AttemptFailed(Reason.KILLED, f"{who} died of signal {-outcome.status}{hint}")
    if outcome.status > 0:
        raise AttemptFailed(Reason.EXIT_NONZERO, f"{who} exited with {outcome.status}")


@contextlib.contextmanager
def _outcome_in_failure(outcome: Outcome) -> Iterator[None]:
    """Failures after the run carry what the script said and when it ran."""
    try:
        yield
    except AttemptFailed as failure:
        failure.exit_code = outcome.exit_code
        failure.log_tail = outcome.log_tail
        failure.times = outcome.times
        raise


def _upload(attempt: Attempt, run: steps.Run) -> list[OutputFile]:
    """All outputs, while the session lives."""
    job = attempt.job
    metadata = {"orchgpu-job": job.job_id, "orchgpu-attempt": str(job.attempt)}
    stored: list[OutputFile] = []
    for file in run.stored(lambda f, places: outputs.upload(attempt.s3, f, places, metadata)):
        stored.append(file)
        attempt.claim.check()
    return stored


def _device(session: Session) -> dict[str, Any]:
    """The first share of the lease, for people."""
    for host, device in session.view().devices:
        return {"host": host.host, "kind": device.kind, "model": device.model}
    return {}


def _reason_of(lost: Refused) -> Reason:
    """Why the host ended the lease, where it said so."""
    word = lost.message.partition(":")[0]
    return Reason(word) if word in Reason.__members__ else Reason.SESSION_LOST
