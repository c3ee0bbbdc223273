"""The entry point: `lambda_functions.gpu_runner.handler.handle`.

An event comes from S3; each of its records is one run. The S3 client and the settings are shared by
all runs of a warm environment, so they are made here, once, at import.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote_plus

from contract.keys import parse_staging_key
from contract.record import JsonObject
from lambda_functions.gpu_runner import sandbox
from lambda_functions.gpu_runner.errors import RunnerError
from lambda_functions.gpu_runner.job import Answer, run_attempt
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.plain import run_plain
from lambda_functions.gpu_runner.script import container
from lambda_functions.gpu_runner.secrets.stores import Stores
from lambda_functions.gpu_runner.secrets.values import SecretValues, parsed
from lambda_functions.gpu_runner.settings import Settings, read_settings
from lambda_functions.gpu_runner.storage.s3 import make_client

#: Only Lambda puts a function's code there; /tmp then belongs to this sandbox alone.
_IN_LAMBDA = os.environ.get("LAMBDA_TASK_ROOT") == "/var/task"
#: Programs of layers that run beside the function all the time, and have files in /tmp too.
_EXTENSIONS = Path("/opt/extensions")
#: Lambda makes these sandboxes before they are needed.
_PROVISIONED = os.environ.get("AWS_LAMBDA_INITIALIZATION_TYPE") == "provisioned-concurrency"
_RUNS = itertools.count()

SETTINGS = read_settings(os.environ, container.descriptor())
S3 = make_client(SETTINGS.account, SETTINGS.owners)
VALUES = SecretValues(Stores(parsed(SETTINGS.secrets)).read)
sandbox.hide()
logging.getLogger("lambda_functions").setLevel(SETTINGS.log_level)
sandbox.sweep()
_OWN_TMP = sandbox.own_folder(
    Path(tempfile.gettempdir()), in_lambda=_IN_LAMBDA, extensions=_EXTENSIONS
)


class Context(Protocol):
    """The part of Lambda's context object in use."""

    aws_request_id: str

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until Lambda ends the function."""
        ...  # pragma: no cover


def handle(event: object, context: Context) -> Answer:
    """Run every record of an S3 event; the answer holds the end of each.

    The other records run even if one fails; the first failure is raised after the last record. A
    failed *attempt* of a job is not a failure of the function: its report holds the reason.
    """
    if isinstance(event, Mapping) and event.get("Event") == "s3:TestEvent":
        return {"status": "ignored", "detail": "s3:TestEvent"}
    records = _records(event)
    answers: list[Answer] = []
    failures: list[Exception] = []
    for record in records:
        left_s = context.get_remaining_time_in_millis() / 1000
        limits = TimeLimits.within(left_s, SETTINGS.threshold_s, SETTINGS.advance_s)
        _clean()  # after a run that was ended within its own cleaning
        try:
            answers.append(_run_record(SETTINGS, limits, record, context.aws_request_id))
        except Exception as error:  # the boundary: the other records run too
            failures.append(error)
        finally:
            _clean()
    if failures:
        raise failures[0]
    return answers[0] if len(answers) == 1 else {"records": answers}


def _run_record(settings: Settings, limits: TimeLimits, record: JsonObject, request: str) -> Answer:
    new_sandbox = next(_RUNS) == 0 and not _PROVISIONED
    bucket = record["s3"]["bucket"]["name"]
    key = unquote_plus(record["s3"]["object"]["key"])
    staging = None if settings.mode == "plain" else parse_staging_key(key)
    if staging is not None:
        place = (bucket, key)
        return run_attempt(
            S3,
            settings,
            limits,
            staging,
            place,
            values=VALUES,
            request=request,
            new_sandbox=new_sandbox,
        )
    if settings.mode == "job":
        return {"status": "ignored", "detail": f"{key!r} is not the key of an envelope"}
    return run_plain(S3, settings, limits, (bucket, key), record, VALUES)


def _records(event: Any) -> list[JsonObject]:  # Lambda invokes us with any JSON
    """The records of an S3 event. Raises RunnerError on anything else."""
    try:
        records = list(event["Records"])
        for record in records:
            place = record["s3"]["bucket"]["name"], record["s3"]["object"]["key"]
            if not all(isinstance(part, str) for part in place):
                raise TypeError
    except (KeyError, TypeError):
        raise RunnerError(
            "not an S3 event: invoke this function by storing an object in S3"
        ) from None
    return records


def _clean() -> None:
    """Remove what a script left elsewhere among the sandbox's temporary files."""
    if _OWN_TMP is not None:
        sandbox.sweep_sandbox(Path(tempfile.gettempdir()), _OWN_TMP)
