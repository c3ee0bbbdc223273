"""One run of a function without a device, as SCAR deploys it: one object through the script."""

from __future__ import annotations

import logging

from contract.record import JsonObject
from lambda_functions.gpu_runner.job import Answer
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox.workspace import Workspace, input_name
from lambda_functions.gpu_runner.script import steps
from lambda_functions.gpu_runner.secrets.values import Secrets, SecretValues
from lambda_functions.gpu_runner.settings import Settings
from lambda_functions.gpu_runner.storage import outputs
from lambda_functions.gpu_runner.storage.s3 import S3, download

LOG = logging.getLogger(__name__)


def run_plain(
    s3: S3,
    settings: Settings,
    limits: TimeLimits,
    place: tuple[str, str],
    record: JsonObject,
    values: SecretValues,
) -> Answer:
    """Run the script on the object at `place` (bucket, key), which an S3 event record names.

    Raises AttemptFailed or StorageError, so that Lambda counts the invocation as failed.
    """
    secrets = values.resolved(settings.secrets, limits.script_left_s)
    with secrets.masked_failures(), Workspace() as workspace:
        return _run_in(workspace, s3, settings, limits, place, record, secrets)


def _run_in(
    workspace: Workspace,
    s3: S3,
    settings: Settings,
    limits: TimeLimits,
    place: tuple[str, str],
    record: JsonObject,
    secrets: Secrets,
) -> Answer:
    bucket, key = place
    input_file = workspace.input / input_name(key)
    version = record["s3"]["object"].get("versionId")
    download(s3, input_file, bucket=bucket, key=key, version=version)
    chain = settings.steps(settings.outputs)
    item = steps.Item(
        step=chain[0],
        file=input_file,
        key=key,
        event={"Records": [dict(record)]},
        workspace=workspace,
    )
    run = steps.run_all(
        chain, item, lambda item: steps.run_step(item, limits, settings.variables, secrets)
    )
    steps.check_outcome(run.outcome, limits, run.step)
    stored = list(run.stored(lambda files, places: outputs.upload(s3, files, places, {})))
    notes = [secrets.masker.text(note) for note in run.notes]
    for note in notes:
        LOG.warning("%s", note)
    return {"status": "succeeded", "key": key, "files": len(stored), "notes": notes}
