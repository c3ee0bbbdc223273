"""The role of people who upload inputs and follow jobs with `orchgpu`."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow, below

_LETTERS = ("sqs:ReceiveMessage", "SendMessage", "DeleteMessage", "ChangeMessageVisibility")


def _needs(scope: Scope) -> Iterator[Statement]:
    read = ("s3:GetObject", "GetObjectVersion")
    listed = (scope.state, *scope.inputs, *scope.intermediates, *scope.outputs)
    ends = below(scope.intermediates, "results/", "attempts/")
    state = (*below((scope.state,), "functions/", "deployments/"), *scope.workflow_records)
    asked = scope.runs("*/cancel.json", "*/retries/*")
    runs = scope.workflow_queues
    yield allow("Inputs", "s3:PutObject", *read, on=below(scope.inputs))
    yield allow("Cancel", "s3:PutObject", on=(*ends, *asked))
    yield allow("Read", "s3:GetObject", on=(*state, *ends, *scope.runs(), *below(scope.outputs)))
    yield allow("List", "s3:ListBucket", on=listed)
    yield allow("Uploads", "s3:ListBucketVersions", on=scope.inputs)
    yield allow("Counts", "sqs:GetQueueAttributes", "GetQueueUrl", on=(*scope.queues(), *runs))
    yield allow("Letters", *_LETTERS, on=(*scope.queues(0, 1), *runs))
    yield allow("Logs", "logs:FilterLogEvents", "GetLogEvents", on=scope.log_groups)
    yield allow("Functions", "lambda:GetFunctionConfiguration", on=scope.lambdas)
    yield allow("Urls", "lambda:GetFunctionUrlConfig", on=scope.http_functions)
    yield allow("Redrive", "lambda:InvokeFunction", on=scope.without_jobs)


ROLE = RoleKind(
    summary=(
        "people who run `orchgpu run`, `put`, `get`, `ls`, `jobs`, `cancel`, `logs`, `dlq`, `retry`"
    ),
    service="",
    needs=_needs,
)
