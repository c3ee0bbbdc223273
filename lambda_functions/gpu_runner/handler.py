"""The entry point: `lambda_functions.gpu_runner.handler.handle`.

An event is S3's; each of its records is one run. What can be shared between the runs of one warm
environment is made here, once, at import: the S3 client and the settings.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote_plus

from contract.keys import parse_staging_key
from lambda_functions.gpu_runner import hiding, storage, workspace
from lambda_functions.gpu_runner.errors import RunnerError
from lambda_functions.gpu_runner.job import Answer, run_attempt
from lambda_functions.gpu_runner.plain import run_plain
from lambda_functions.gpu_runner.settings import Settings, Time, settings_of_process

#: Lambda puts a function's code there, and nobody else does: its /tmp is the sandbox's own.
_IN_LAMBDA = os.environ.get("LAMBDA_TASK_ROOT") == "/var/task"

SETTINGS = settings_of_process()
S3 = storage.make_client()
hiding.hide()
logging.getLogger("lambda_functions").setLevel(SETTINGS.log_level)
workspace.sweep()
_OWN_TMP = workspace.own_folder(Path(tempfile.gettempdir()), in_lambda=_IN_LAMBDA)


class Context(Protocol):
    """What we use of Lambda's context object."""

    def get_remaining_time_in_millis(self) -> int:
        """Milliseconds until Lambda ends the function."""
        ...  # pragma: no cover


def handle(event: Any, context: Context) -> Answer:
    """Run every record of an S3 event; the answer says how each ended.

    A record that fails does not keep the others from running; the first failure is raised after
    the last record. A failed *attempt* of a job is no failure of the function: its report says why.
    """
    if isinstance(event, Mapping) and event.get("Event") == "s3:TestEvent":
        return {"status": "ignored", "detail": "s3:TestEvent"}
    records = _records(event)
    answers: list[Answer] = []
    failures: list[Exception] = []
    for record in records:
        time = Time.left(context.get_remaining_time_in_millis() / 1000, SETTINGS.threshold_s)
        _clean()  # what a run left whose own cleaning did not end
        try:
            answers.append(_run_record(SETTINGS, time, record))
        except Exception as error:  # the boundary: every record has its turn
            failures.append(error)
        finally:
            _clean()
    if failures:
        raise failures[0]
    return answers[0] if len(answers) == 1 else {"records": answers}


def _run_record(settings: Settings, time: Time, record: Mapping[str, Any]) -> Answer:
    bucket = record["s3"]["bucket"]["name"]
    key = unquote_plus(record["s3"]["object"]["key"])
    staging = None if settings.mode == "plain" else parse_staging_key(key)
    if staging is not None:
        return run_attempt(S3, settings, time, staging, (bucket, key))
    if settings.mode == "job":
        return {"status": "ignored", "detail": f"{key!r} is no envelope"}
    return run_plain(S3, settings, time, (bucket, key), record)


def _records(event: Any) -> list[Mapping[str, Any]]:
    """Those of an S3 event. Raises RunnerError on anything else."""
    try:
        records = list(event["Records"])
        for record in records:
            place = record["s3"]["bucket"]["name"], record["s3"]["object"]["key"]
            if not all(isinstance(part, str) for part in place):
                raise TypeError
    except (KeyError, TypeError):
        raise RunnerError("not an S3 event: this function is started by objects in S3") from None
    return records


def _clean() -> None:
    """What a script left elsewhere among the sandbox's temporary files goes too."""
    if _OWN_TMP is not None:
        workspace.sweep_sandbox(Path(tempfile.gettempdir()), _OWN_TMP)
