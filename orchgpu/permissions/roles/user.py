"""The role of people who upload inputs and follow jobs with `orchgpu`."""

from __future__ import annotations

from orchgpu.permissions.model import Scope, Statement, below


class User:
    """A user of the functions of a scope."""

    summary = (
        "people who run `orchgpu run`, `put`, `get`, `ls`, `jobs`, `cancel`, `logs`, `dlq`, `retry`"
    )
    service = ""

    def statements(self, scope: Scope) -> tuple[Statement, ...]:
        read = ("s3:GetObject", "s3:GetObjectVersion")
        listed = (scope.state, *scope.inputs, *scope.intermediates, *scope.outputs)
        readable = (
            *below((scope.state,), "functions/", "deployments/"),
            *below(scope.intermediates, "results/", "attempts/"),
            *below(scope.outputs),
        )
        letters = (
            "sqs:ReceiveMessage",
            "sqs:SendMessage",
            "sqs:DeleteMessage",
            "sqs:ChangeMessageVisibility",
        )
        queues, logs = scope.queues(0, 1), ("logs:FilterLogEvents", "logs:GetLogEvents")
        parts = (
            Statement(sid="Inputs", actions=("s3:PutObject", *read), resources=below(scope.inputs)),
            Statement(
                sid="Cancel",
                actions=("s3:PutObject",),
                resources=below(scope.intermediates, "results/", "attempts/"),
            ),
            Statement(sid="Read", actions=("s3:GetObject",), resources=tuple(readable)),
            Statement(
                sid="List", actions=("s3:ListBucket",), resources=tuple(dict.fromkeys(listed))
            ),
            Statement(sid="Uploads", actions=("s3:ListBucketVersions",), resources=scope.inputs),
            Statement(
                sid="Counts",
                actions=("sqs:GetQueueAttributes", "sqs:GetQueueUrl"),
                resources=scope.queues(),
            ),
            Statement(sid="Letters", actions=letters, resources=queues),
            Statement(sid="Logs", actions=logs, resources=scope.log_groups),
            Statement(
                sid="Functions",
                actions=("lambda:GetFunctionConfiguration",),
                resources=scope.lambdas,
            ),
            Statement(
                sid="Redrive", actions=("lambda:InvokeFunction",), resources=scope.without_jobs
            ),
        )
        return tuple(part for part in parts if part.resources)


ROLE = User()
