"""AWS Batch over its REST protocol."""

from __future__ import annotations

from typing import Any

from local_cloud.model.batch import BatchJob
from local_cloud.model.errors import refused
from local_cloud.server.context import Context
from local_cloud.server.services import Answer, Body, RestService

_JOBS_MAX = 100  #: of one answer with a filter


def _submit(context: Context, body: Body) -> Answer:
    batch = context.cloud.batch
    job = batch.submit(context.now_s(), body)
    context.batch.wake()
    return {"jobArn": batch.arn(job), "jobName": job.name, "jobId": job.id}


def _list(context: Context, body: Body) -> Answer:
    (named,) = body["filters"]
    if named["name"] != "JOB_NAME":
        raise refused("ClientException", "jobs are listed by JOB_NAME in the embedded cloud")
    found = context.cloud.batch.listed(body["jobQueue"], named["values"][0])
    return {"jobSummaryList": [_summary(context, job) for job in found[:_JOBS_MAX]]}


def _terminate(context: Context, body: Body) -> Answer:
    job = context.cloud.batch.terminate(context.now_s(), body["jobId"], body["reason"])
    if job is not None:
        context.batch.stop(job)
    return {}


def _summary(context: Context, job: BatchJob) -> dict[str, object]:
    container: dict[str, Any] = {}
    if job.exit_code is not None:
        container["exitCode"] = job.exit_code
    if job.container_reason:
        container["reason"] = job.container_reason
    times = {"createdAt": job.created_s, "startedAt": job.started_s, "stoppedAt": job.stopped_s}
    return {
        "jobArn": context.cloud.batch.arn(job),
        "jobId": job.id,
        "jobName": job.name,
        "status": job.status,
        **({"statusReason": job.reason} if job.reason else {}),
        **({"container": container} if container else {}),
        **{name: int(at_s * 1000) for name, at_s in times.items() if at_s is not None},
    }


BATCH = RestService(
    names=("batch",),
    invalid="ClientException",
    missing="ClientException",
    operations={
        "SubmitJob": _submit,
        "ListJobs": _list,
        "TerminateJob": _terminate,
    },
)
