"""One attempt of one job, from its envelope to its result.

The order matters. The claim is the first remote act after reading the envelope: a start that cannot
claim the attempt does nothing, but one that waits for its device reads its input meanwhile. The
device is given back the moment the code has ended. Outputs are uploaded only after success and
while the claim holds; the result is written last.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from contract.envelope import Job
from contract.keys import OUTPUT_JOB, StagingKey
from contract.parameters import ENDPOINT, variables_in
from contract.record import JsonObject
from contract.result import OutputFile, Report, Result
from contract.states import JobState, Reason
from lambda_functions.gpu_runner import envelope
from lambda_functions.gpu_runner.claims import Claim, SessionClaim, claim
from lambda_functions.gpu_runner.document import VARIABLE as RESULT_FILE
from lambda_functions.gpu_runner.document import place_in, read_document
from lambda_functions.gpu_runner.errors import (
    AttemptFailed,
    EnvelopeError,
    StorageError,
)
from lambda_functions.gpu_runner.keeping import Keeping
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.provenance import Collected
from lambda_functions.gpu_runner.sandbox import Workspace, input_name
from lambda_functions.gpu_runner.script import container, endpoint, environment, steps
from lambda_functions.gpu_runner.script.process import Ending
from lambda_functions.gpu_runner.secrets.values import Secrets, SecretValues
from lambda_functions.gpu_runner.settings import Settings
from lambda_functions.gpu_runner.storage import commit, inputs, outputs
from lambda_functions.gpu_runner.storage.prefetch import Prefetch
from lambda_functions.gpu_runner.storage.s3 import S3, download
from remote_gpu.forwarder import client_variables
from remote_gpu.wire.errors import WireError

LOG = logging.getLogger(__name__)

#: The function's answer to Lambda for one record: JSON.
Answer: TypeAlias = "dict[str, object]"

#: A bucket can answer 404 for objects that exist in the first 15 minutes of its versioning
#: (https://docs.aws.amazon.com/AmazonS3/latest/userguide/manage-versioning-examples.html), and the
#: envelope of an ended lease is gone for good: ten seconds of the reserved device separate them.
_ABSENT_PAUSES_S = (0.5, 1.0, 2.0, 3.0, 3.5)


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
    #: Wall clock: invoked, knocked (if it waited for its device), claimed, given_back.
    moments: dict[str, float]
    collected: Collected  #: what it used
    prefetch: Prefetch

    def provenance(self, masked: Callable[[str], str] = str) -> JsonObject:
        """For its result or report; `masked` hides secrets."""
        return self.collected.provenance(self.job.provenance, self.job.input_size, masked)


def run_attempt(
    s3: S3,
    settings: Settings,
    limits: TimeLimits,
    staging: StagingKey,
    place: tuple[str, str],
    pause: Callable[[float], None] = time.sleep,
    *,
    values: SecretValues,
    request: str,
    new_sandbox: bool | None = None,
) -> Answer:
    """Run the attempt whose envelope lies at `place` (bucket, key); the answer is for the log.

    `request`: Lambda's id of this start; `new_sandbox`: it started this sandbox, None = unknown.
    A duplicate delivery or a withdrawn envelope is not an error. Raises RunnerError when the
    orchestrator must learn from Lambda that the function could not run the attempt.
    """
    bucket, key = place
    moments = {"invoked": time.time()}
    attempt_of: Answer = {"job_id": staging.job, "attempt": staging.n}
    LOG.info("%s, attempt %d", staging.job, staging.n)  # `orchgpu logs` searches for this line
    try:
        opened = _fetch(s3, bucket, key, staging, pause)
    except StorageError as error:
        if error.status == 404:
            return {"status": "withdrawn", **attempt_of}
        raise
    if opened is None:
        return {"status": "duplicate", **attempt_of}
    with opened, Workspace() as workspace, contextlib.ExitStack() as stack:
        _check_address(opened.job, staging, bucket)
        given, collected = _given_variables(opened), Collected(workspace.root)
        prefetch = stack.enter_context(_prefetch(s3, opened.job, workspace, collected))

        def waits() -> None:
            moments.setdefault("knocked", time.time())
            if _is_one_object(opened.job):
                prefetch.begin()

        held = claim(s3, opened.job, opened.grant, limits, request, waits, new_sandbox)
        if isinstance(held, str):
            return {"status": held, **attempt_of}
        moments["claimed"] = time.time()
        if opened.grant is None:  # a lease is ended by the orchestrator
            limits = limits.capped(opened.job.cost, time.time())
        with held:
            attempt = Attempt(
                s3=s3,
                job=opened.job,
                settings=settings,
                values=values,
                limits=limits.begun(),
                envelope=opened,
                claim=held,
                workspace=workspace,
                given=given,
                moments=moments,
                collected=collected,
                prefetch=prefetch,
            )
            return attempt_of | _succeed_or_report(attempt)


def _fetch(
    s3: S3, bucket: str, key: str, staging: StagingKey, pause: Callable[[float], None]
) -> envelope.Envelope | None:
    """The envelope, requested again while S3 answers 404; None when its attempt has ended.

    Each attempt is started twice, and the second start often finds no envelope. The end is looked
    for after the envelope, so that the first start makes no call more. Raises StorageError,
    EnvelopeError.
    """
    for pause_s in _ABSENT_PAUSES_S:
        try:
            return envelope.fetch(s3, bucket, key, staging.form)
        except StorageError as error:
            if error.status != 404:
                raise
        if commit.is_over(s3, bucket, staging):
            return None
        pause(pause_s)
    return envelope.fetch(s3, bucket, key, staging.form)


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
    if opened.grant is not None:
        environment.middleware_variables(opened.grant.middleware, opened.grant.variables)
    return environment.user_variables(opened.job.variables)


def _succeed_or_report(attempt: Attempt) -> Answer:
    try:
        return _succeed(attempt)
    except AttemptFailed as failure:
        attempt.collected.explain(failure)
        LOG.warning("attempt failed: %s", failure)
        job = attempt.job
        report = Report(
            job_id=job.job_id,
            attempt=job.attempt,
            nonce=attempt.claim.nonce,
            reason=failure.reason,
            exit_code=failure.exit_code,
            detail=failure.detail,
            log_tail=failure.log_tail,
            times=attempt.moments | failure.times,
            lacks=dict(attempt.collected.lacks()),
            provenance=failure.provenance,
        )
        commit.report(attempt.s3, job.intermediate_bucket, report)
        return {"status": "failed", "reason": str(failure.reason), "detail": failure.detail}


def _succeed(attempt: Attempt) -> Answer:
    """Secrets, then the rest with them. Raises AttemptFailed."""
    left_s = attempt.limits.script_left_s
    secrets = attempt.values.resolved(attempt.settings.secrets, left_s)
    with secrets.masked_failures():
        try:
            return _succeed_with(attempt, secrets)
        except AttemptFailed as failure:
            failure.provenance = attempt.provenance(secrets.masker.text)
            raise


def _succeed_with(attempt: Attempt, secrets: Secrets) -> Answer:
    """Input, script, device given back, outputs, result. Raises AttemptFailed."""
    job, held = attempt.job, attempt.claim
    input_file = _fetch_input(attempt)
    every_s, masked = attempt.settings.checkpoint_s, secrets.masker.text
    with Keeping(attempt.s3, job, attempt.workspace, every_s, masked) as keeping:
        held.grace_part = keeping.grace_part
        try:
            run = _run_steps(attempt, input_file, secrets, keeping.variables)
        except AttemptFailed as failure:
            if failure.times:  # a step ran, and one of its files is not a valid output
                _give_back(attempt, succeeded=False)
            raise
        keeping.stop()
        _give_back(attempt, succeeded=run.outcome.good)
    outcome = run.outcome
    if outcome.ending in (Ending.PREEMPTED, Ending.DEADLINE):
        keeping.cut_short()
    with steps.outcome_in_failure(outcome):
        if outcome.ending in (Ending.LOST, Ending.OWN):
            held.check()  # raises the reason of the loss, by which a script may have failed
        steps.check_outcome(outcome, attempt.limits, run.step)
        held.check()
        document = _document(attempt, run, secrets)
        files = _upload(attempt, run, document)
        held.check()
    stands = commit.commit(attempt.s3, job, _result(attempt, run, files, document, secrets))
    held.outcome = "DONE"
    keeping.succeeded()
    return {"status": "succeeded" if stands else "lost", "files": len(files)}


def _document(attempt: Attempt, run: steps.Run, secrets: Secrets) -> JsonObject | None:
    if run.calls is not None:
        return {"calls": run.calls}
    return read_document(place_in(attempt.workspace.root), secrets.masker.text)


def _result(
    attempt: Attempt,
    run: steps.Run,
    files: list[OutputFile],
    document: JsonObject | None,
    secrets: Secrets,
) -> Result:
    """The result of a run that succeeded; its notes are logged."""
    notes = [secrets.masker.text(note) for note in run.notes]
    for note in notes:
        LOG.warning("%s", note)
    now_s, listed = time.time(), commit.listed(files, document)
    short = len(files) - len(listed)
    return Result(
        job_id=attempt.job.job_id,
        state=JobState.SUCCEEDED,
        reason=Reason.NONE,
        attempt=attempt.job.attempt,
        nonce=attempt.claim.nonce,
        exit_code=run.outcome.exit_code,
        files=listed,
        times=attempt.moments | run.outcome.times | {"committed": now_s},
        log_tail=run.outcome.log_tail,
        device=attempt.claim.device(),
        detail=f"{short} of {len(files)} output files are not listed" if short else "",
        ended_at_s=now_s,
        notes=notes,
        provenance=attempt.provenance(secrets.masker.text),
        cost_usd=cost_usd(attempt.job.cost, now_s, attempt.claim.booked_at_s),
        document=document,
    )


def cost_usd(
    cost: JsonObject | None, now_s: float, booked_at_s: float | None = None
) -> float | None:
    """Of all attempts until now; None = the job has no cap.

    `booked_at_s`: the device became free for it then; None = it was at the start.
    """
    if cost is None:
        return None
    running_s = max(0.0, now_s - cost["since_s"])
    waited_s = 0.0 if booked_at_s is None else booked_at_s - cost["since_s"]
    waited_s = min(running_s, max(0.0, waited_s))
    waited_usd = cost.get("waiting_usd_per_s", cost["usd_per_s"]) * waited_s
    spent_usd = cost["paid_usd"] + waited_usd + cost["usd_per_s"] * (running_s - waited_s)
    return round(float(spent_usd), 9)


def _give_back(attempt: Attempt, *, succeeded: bool) -> None:
    attempt.claim.give_back(succeeded=succeeded)
    attempt.moments["given_back"] = time.time()


def _fetch_input(attempt: Attempt) -> Path:
    """The input on the disk; of a step that gets several files the folder of all."""
    if (found := attempt.prefetch.found()) is not None:
        return found
    job, run, folder = attempt.job, attempt.job.run or {}, attempt.workspace.input
    if run.get("lists_files"):
        listed = _fetch_object(attempt, attempt.workspace.root / ".orchgpu-inputs")
        files = inputs.read_list(listed.read_bytes())
        inputs.fetch_files(attempt.s3, files, folder, lambda: attempt.limits.script_left_s)
        return folder
    return _fetch_object(attempt, _place_of_input(job, folder))


def _place_of_input(job: Job, folder: Path) -> Path:
    """The file of an input that is one object."""
    if feeder := (job.run or {}).get("feeder"):
        folder = folder / input_name(str(feeder))
        folder.mkdir(exist_ok=True)
    return folder / input_name(job.input_key)


def _fetch_object(attempt: Attempt, target: Path) -> Path:
    job, collected = attempt.job, attempt.collected
    collected.input_begins()
    if not job.input_inline:
        return _download(attempt.s3, job, target, collected.input_part)
    try:
        attempt.envelope.save_input(target, collected.input_part)
    except (EnvelopeError, OSError) as error:
        raise AttemptFailed(Reason.INPUT_ERROR, f"input {job.input_key!r}: {error}") from None
    return target


def _download(s3: S3, job: Job, target: Path, seen: Callable[[bytes], object]) -> Path:
    bucket, key, version, etag = (
        job.input_bucket,
        job.input_key,
        job.input_version,
        job.input_etag,
    )
    try:
        download(s3, target, bucket=bucket, key=key, version=version, etag=etag, seen=seen)
    except (StorageError, OSError) as error:
        raise AttemptFailed(Reason.INPUT_ERROR, f"input {job.input_key!r}: {error}") from None
    return target


def _is_one_object(job: Job) -> bool:
    """True for an input that is to be read from its bucket as it is."""
    return not job.input_inline and not (job.run or {}).get("lists_files")


def _prefetch(s3: S3, job: Job, workspace: Workspace, collected: Collected) -> Prefetch:
    def fetch(check: Callable[[], None]) -> Path:
        def seen(chunk: bytes) -> None:
            check()
            collected.input_part(chunk)

        return _download(s3, job, _place_of_input(job, workspace.input), seen)

    return Prefetch(fetch)


def _run_steps(
    attempt: Attempt, input_file: Path, secrets: Secrets, kept: dict[str, str]
) -> steps.Run:
    """`kept`: the variables of progress and checkpoint."""
    job, in_container = attempt.job, attempt.settings.container >= 0
    chain = attempt.settings.steps(job.outputs)
    if in_container:
        _prepare_container(attempt)
    first = steps.Item(
        step=chain[0],
        file=input_file,
        key=job.input_key,
        event=job.event,
        workspace=attempt.workspace,
    )
    with _client_variables(attempt) as of_client:
        # a container does not reach the session: it has the device itself
        of_session = {} if in_container else attempt.claim.environment()
        of_session |= _given_with_input(job)
        of_session[RESULT_FILE] = str(place_in(attempt.workspace.root))
        if job.traceparent:
            of_session["TRACEPARENT"] = job.traceparent
        if job.run:
            of_session |= {
                f"ORCHGPU_{name}": str(job.run.get(key, ""))
                for name, key in (("RUN", "id"), ("WORKFLOW", "workflow"), ("STEP", "step"))
            }
        of_session |= attempt.collected.variables
        layers = (of_session | kept, of_client)
        limits, signals = attempt.limits, attempt.claim.signals
        if ENDPOINT in (job.metadata or {}):
            return endpoint.opened(attempt.settings.endpoint, limits, signals).serve(
                first,
                lambda item, task, end_s, on_part, kept: steps.run_step(
                    item,
                    replace(limits, script_s=end_s),
                    attempt.given,
                    secrets,
                    *layers,
                    signals=signals,
                    kept=kept,
                    task=task,
                    on_part=on_part,
                ),
            )
        return steps.run_all(
            chain,
            first,
            lambda item: steps.run_step(
                item, limits, attempt.given, secrets, *layers, signals=signals
            ),
        )


def _prepare_container(attempt: Attempt) -> None:
    """Have the host make the image ready. Raises AttemptFailed."""

    def archive(bucket: str, key: str) -> Path:
        target = attempt.workspace.root / ".orchgpu-image"
        try:
            download(attempt.s3, target, bucket=bucket, key=key)
        except StorageError as error:
            text = f"the image of the function: {error}"
            raise AttemptFailed(Reason.SCRIPT_ERROR, text) from None
        return target

    container.prepare(attempt.settings.container, attempt.limits.script_left_s, archive)


def _given_with_input(job: Job) -> dict[str, str]:
    try:
        return variables_in({str(k): str(v) for k, v in (job.metadata or {}).items()})
    except ValueError as error:
        raise AttemptFailed(Reason.INPUT_ERROR, str(error)) from None


@contextlib.contextmanager
def _client_variables(attempt: Attempt) -> Iterator[dict[str, str]]:
    """The variables of the middleware's own client, valid while its forwarder runs."""
    grant, claim, folder = attempt.envelope.grant, attempt.claim, attempt.workspace.root
    if grant is None or not isinstance(claim, SessionClaim):
        yield {}
        return
    view = claim.session.view()
    try:
        with client_variables(view, grant.middleware, grant.variables, folder) as variables:
            yield variables
    except WireError as error:
        raise EnvelopeError(str(error)) from None


def _upload(attempt: Attempt, run: steps.Run, document: JsonObject | None) -> list[OutputFile]:
    job = attempt.job
    metadata = {OUTPUT_JOB: job.job_id, "orchgpu-attempt": str(job.attempt)}
    stored: list[OutputFile] = []
    for file in outputs.upload(attempt.s3, run.uploads, metadata, pinned=job.run is not None):
        stored.append(file)
        attempt.claim.check()
    if job.run and len(commit.listed(stored, document)) < len(stored):
        text = f"the result of a step cannot name {len(stored)} files; pack them into fewer"
        raise AttemptFailed(Reason.OUTPUT_ERROR, text)
    return stored
