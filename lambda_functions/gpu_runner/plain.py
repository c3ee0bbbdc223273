"""A function without device, as SCAR deploys it: one object in, the script, its files out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lambda_functions.gpu_runner import environment, outputs, storage
from lambda_functions.gpu_runner.command import command_of, script_error
from lambda_functions.gpu_runner.job import Answer, check_outcome
from lambda_functions.gpu_runner.script import run
from lambda_functions.gpu_runner.settings import Settings, Time
from lambda_functions.gpu_runner.storage import S3
from lambda_functions.gpu_runner.workspace import Workspace, input_name


def run_plain(
    s3: S3, settings: Settings, time: Time, place: tuple[str, str], record: Mapping[str, Any]
) -> Answer:
    """Run the script on the object at `place` (bucket, key), an S3 event record's.

    Raises AttemptFailed or StorageError, so that Lambda counts the invocation as failed.
    """
    if settings.script is None:
        raise script_error("the function was deployed without a script")
    bucket, key = place
    with Workspace() as workspace:
        input_file = workspace.input / input_name(key)
        version = record["s3"]["object"].get("versionId")
        storage.download(s3, input_file, bucket=bucket, key=key, version=version)
        variables = environment.merged(
            environment.base_variables(workspace),
            environment.user_variables(settings.variables),
            environment.scar_variables(
                workspace, input_file=input_file, key=key, event={"Records": [dict(record)]}
            ),
        )
        outcome = run(
            command_of(settings.script),
            variables=variables,
            folder=workspace.root,
            deadline_s=time.script_s,
            grace_s=time.grace_s,
        )
        check_outcome(outcome)
        found = outputs.find(workspace.output, workspace.root)
        destinations = [outputs.Destination.of(value) for value in settings.outputs]
        stored = list(outputs.upload(s3, found, destinations, {}))
    return {"status": "succeeded", "key": key, "files": len(stored)}
