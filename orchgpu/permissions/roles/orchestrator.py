"""The role of `orchgpu orchestrate`: the instance profile of its machines."""

from __future__ import annotations

from orchgpu.permissions.model import Scope, Statement, below


class Orchestrator:
    """The orchestrator of the functions of a scope."""

    summary = "`orchgpu orchestrate`, as an EC2 instance profile"
    service = "ec2.amazonaws.com"

    def statements(self, scope: Scope) -> tuple[Statement, ...]:
        listed = tuple(dict.fromkeys((scope.state, *scope.inputs, *scope.intermediates)))
        read = (
            *below((scope.state,), "functions/", "registry/"),
            *below(scope.intermediates, "results/", "attempts/"),
            *below((*scope.inputs, *scope.watched)),
        )
        between = scope.intermediates
        jobs, dead, done = (scope.queues(number) for number in range(3))
        consumed = tuple(dict.fromkeys((*jobs, *done)))
        sent = tuple(dict.fromkeys((*jobs, *dead)))
        receive = ("sqs:ReceiveMessage", "sqs:DeleteMessage")
        keep, count = ("sqs:ChangeMessageVisibility",), ("sqs:GetQueueAttributes",)
        versions = ("s3:GetObjectVersion",)
        written = below(between, "staging/", "results/", "attempts/")
        parts = (
            Statement(sid="List", actions=("s3:ListBucket",), resources=listed),
            Statement(sid="Uploads", actions=("s3:ListBucketVersions",), resources=scope.inputs),
            Statement(sid="Read", actions=("s3:GetObject",), resources=tuple(dict.fromkeys(read))),
            Statement(sid="Versions", actions=versions, resources=below(scope.inputs)),
            Statement(sid="Write", actions=("s3:PutObject",), resources=written),
            Statement(
                sid="Envelopes", actions=("s3:DeleteObject",), resources=below(between, "staging/")
            ),
            Statement(sid="Receive", actions=receive, resources=consumed),
            Statement(sid="Keep", actions=keep, resources=jobs),
            Statement(sid="Count", actions=count, resources=scope.queues()),
            Statement(sid="Send", actions=("sqs:SendMessage",), resources=sent),
            Statement(sid="Start", actions=("lambda:InvokeFunction",), resources=scope.lambdas),
            Statement(
                sid="Keys",
                actions=("kms:Decrypt", "kms:GenerateDataKey"),
                resources=scope.keys(of_buckets=True),
                condition=scope.by("s3"),
            ),
        )
        return tuple(part for part in parts if part.resources)


ROLE = Orchestrator()
