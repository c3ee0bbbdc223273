"""A function without device, as SCAR deploys it: one object in, the script, its files out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lambda_functions.gpu_runner import environment, outputs, script, steps, storage
from lambda_functions.gpu_runner.job import Answer, check_outcome
from lambda_functions.gpu_runner.script import Outcome
from lambda_functions.gpu_runner.settings import Settings, Time
from lambda_functions.gpu_runner.storage import S3
from lambda_functions.gpu_runner.workspace import Workspace, input_name

LOG = logging.getLogger(__name__)


def run_plain(
    s3: S3, settings: Settings, time: Time, place: tuple[str, str], record: Mapping[str, Any]
) -> Answer:
    """Run the script on the object at `place` (bucket, key), an S3 event record's.

    Raises AttemptFailed or StorageError, so that Lambda counts the invocation as failed.
    """
    bucket, key = place
    with Workspace() as workspace:
        input_file = workspace.input / input_name(key)
        version = record["s3"]["object"].get("versionId")
        storage.download(s3, input_file, bucket=bucket, key=key, version=version)
        chain = settings.steps(settings.outputs)
        item = steps.Item(
            step=chain[0],
            file=input_file,
            key=key,
            event={"Records": [dict(record)]},
            workspace=workspace,
        )
        run = steps.run_all(chain, item, lambda item: _run_step(settings, time, item))
        check_outcome(run.outcome, time.limit, run.step)
        stored = list(run.stored(lambda files, places: outputs.upload(s3, files, places, {})))
    for note in run.notes:
        LOG.warning("%s", note)
    return {"status": "succeeded", "key": key, "files": len(stored), "notes": run.notes}


def _run_step(settings: Settings, time: Time, item: steps.Item) -> Outcome:
    declared = item.step.variables
    variables = environment.merged(
        environment.base_variables(item.workspace),
        environment.user_variables(settings.variables if declared is None else declared),
        environment.scar_variables(
            item.workspace, input_file=item.file, key=item.key, event=item.event
        ),
    )
    return script.run(
        item.step.command(),
        variables=variables,
        folder=item.workspace.root,
        deadline_s=time.script_s,
        grace_s=time.grace_s,
    )
