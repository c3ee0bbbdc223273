"""One run of a function without a device, as SCAR deploys it: one object through the script."""

from __future__ import annotations

import logging

from contract.record import JsonObject
from lambda_functions.gpu_runner.job import Answer
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox import Workspace, input_name
from lambda_functions.gpu_runner.script import steps
from lambda_functions.gpu_runner.secrets.values import SecretValues
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
    bucket, key = place
    secrets = values.resolved(settings.secrets, limits.script_left_s)
    with secrets.masked_failures(), Workspace() as workspace:
        input_file = workspace.input / input_name(key)
        version = record["s3"]["object"].get("versionId")
        download(s3, input_file, bucket=bucket, key=key, version=version)
        chain = settings.steps(settings.outputs)
        first = steps.Item(
            step=chain[0],
            file=input_file,
            key=key,
            event={"Records": [dict(record)]},
            workspace=workspace,
        )
        run = steps.run_all(
            chain, first, lambda item: steps.run_step(item, limits, settings.variables, secrets)
        )
        steps.check_outcome(run.outcome, limits, run.step)
        stored = list(outputs.upload(s3, run.uploads, {}))
    notes = [secrets.masker.text(note) for note in run.notes]
    for note in notes:
        LOG.warning("%s", note)
    return {"status": "succeeded", "key": key, "files": len(stored), "notes": notes}
