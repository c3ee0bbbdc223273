"""The operator: uploads, defers, and takes the results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_provider_orchgpu.jobs import results, sent
from airflow_provider_orchgpu.triggers import JobsTrigger
from orchgpu.jobs.cloud import JobCloud


class OrchgpuOperator(BaseOperator):
    """Runs a deployed function on files, as `orchgpu.map`; waits in the triggerer.

    `function`: its name; `files`: one or several files of the worker, or `s3://bucket/key`;
    `folder`: of the worker, for the outputs; `again`: also files that were uploaded before.
    Returns for each file its job and outputs. A retry runs the jobs that failed, no others.
    """

    template_fields: Sequence[str] = ("function", "files", "folder")

    def __init__(
        self,
        *,
        function: str,
        files: str | Sequence[str],
        folder: str | None = None,
        again: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.function = function
        self.files = files
        self.folder = folder
        self.again = again

    def execute(self, context: Context) -> None:  # noqa: ARG002 - of every operator
        """Upload, and wait in the triggerer. Raises AppError before anything is uploaded."""
        files = [self.files] if isinstance(self.files, str) else list(self.files)
        with closing(JobCloud()) as cloud:
            jobs = sent(cloud, self.function, files, self.log.warning, again=self.again)
        self.log.info("jobs: %s", ", ".join(job["job_ids"][0] for job in jobs))
        self.defer(trigger=JobsTrigger(jobs), method_name="take", timeout=self.execution_timeout)

    def take(
        self,
        context: Context,  # noqa: ARG002 - of every operator
        event: dict[str, Any],
    ) -> list[dict[str, Any]]:
        """The results. Raises orchgpu.JobFailed for the first job that failed."""
        folder = Path(self.folder) if self.folder else None
        with closing(JobCloud()) as cloud:
            found = results(cloud, event["jobs"], event["ends"], folder)
        return [
            {
                "file": str(one.input),
                "job_id": one.job_id,
                "objects": list(one.objects),
                "outputs": [str(path) for path in one.outputs],
            }
            for one in found
        ]
