"""Another run of a failed job: by its dead letter, else by a letter made from its record."""

from __future__ import annotations

import json

from contract.result import Result
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.core.ending import dead_letter_body
from orchgpu.core.function import Function
from orchgpu.core.job import input_from_payload
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.known import Known
from orchgpu.jobs.letters import LETTERS_MAX, dead_letters, newest_of


def retry(cloud: JobCloud, known: Known) -> Function:
    """Send the failed job to its queue again; returns its function. Raises as `failed_function`."""
    function, result = failed_function(known)
    with dead_letters(cloud.services, function) as letters:
        letter = newest_of(letters.read(LETTERS_MAX), known.job, result.ended_at_s)
        if letter is not None:
            letters.send_back(letter)
        else:
            cloud.services.send(function.queue_url, letter_body(known, result))
    return function


def failed_function(known: Known) -> tuple[Function, Result]:
    """The function and result of a failed job.

    Raises CONFLICT while the job is not over, INVALID for an outcome that cannot be retried.
    """
    if not known.over:
        raise AppError(ErrorCode.CONFLICT, f"{known.job} is not over: it is {known.state}")
    if known.state not in ("FAILED", "REJECTED"):
        raise invalid(f"{known.job} is {known.state}, not a failed job; upload its input again")
    if known.function is None or known.result is None:
        raise AppError(ErrorCode.NOT_FOUND, f"the function of {known.job} is no longer deployed")
    return known.function, known.result


def letter_body(known: Known, result: Result) -> str:
    """The letter, made from the job's record: the original was sent back or expired."""
    source = input_from_payload(known.record.block) if known.record else None
    if source is None:
        raise AppError(
            ErrorCode.NOT_FOUND,
            f"neither a dead letter nor a record of {known.job} exists any more; upload its input"
            " again",
        )
    function = known.function
    if function is not None and not function.takes_from(source.bucket, source.key):
        where = f"s3://{source.bucket}/{source.key}"
        text = f"the record of {known.job} names {where}, which is not an input of {function.name}"
        raise AppError(ErrorCode.DENIED, f"{text}: it is not run again")
    event = json.dumps(source.as_s3_event())
    return dead_letter_body(event, known.job, result.reason, result.detail, result.ended_at_s)
