"""The role of `orchgpu orchestrate`: the instance profile of its machines."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.permissions.model import RoleKind, Scope, Statement, allow, below


def _needs(scope: Scope) -> Iterator[Statement]:
    read = (
        *below((scope.state,), "functions/", "registry/"),
        *below(scope.intermediates, "results/", "attempts/"),
        *below((*scope.inputs, *scope.watched)),
        *scope.workflow_records,
        *scope.runs(),
    )
    ours = below(scope.intermediates, "staging/", "results/", "attempts/")
    written = (*ours, *scope.runs())
    envelopes = below(scope.intermediates, "staging/")
    jobs, dead, done = (scope.queues(number) for number in range(3))
    runs = scope.workflow_queues
    keys, by = scope.keys(of_buckets=True), scope.by("s3")
    yield allow("List", "s3:ListBucket", on=(scope.state, *scope.inputs, *scope.intermediates))
    yield allow("Uploads", "s3:ListBucketVersions", on=scope.inputs)
    yield allow("Read", "s3:GetObject", on=read)
    yield allow("Versions", "s3:GetObjectVersion", on=below(scope.inputs))
    yield allow("Write", "s3:PutObject", on=written)
    yield allow("Envelopes", "s3:DeleteObject", on=envelopes)
    yield allow("Receive", "sqs:ReceiveMessage", "DeleteMessage", on=(*jobs, *done, *runs))
    yield allow("Keep", "sqs:ChangeMessageVisibility", on=(*jobs, *done, *runs))
    yield allow("Count", "sqs:GetQueueAttributes", on=(*scope.queues(), *runs))
    yield allow("Send", "sqs:SendMessage", on=(*jobs, *dead, *runs, *scope.notified_queues))
    yield allow("Publish", "sns:Publish", on=scope.topics)
    secrets, parameters = scope.signing_secrets
    yield allow("SigningSecrets", "secretsmanager:GetSecretValue", on=secrets)
    yield allow("SigningParameters", "ssm:GetParameter", on=parameters)
    yield allow("Start", "lambda:InvokeFunction", on=scope.lambdas)
    yield allow("Account", "lambda:GetAccountSettings")
    yield allow("RunsOnHosts", "sts:AssumeRole", on=scope.assumed_roles())
    if batch := scope.batch():
        jobs_of_batch = f"arn:{scope.place.partition}:batch:{scope.where}:job/*"
        yield allow("Batch", "batch:SubmitJob", on=batch)
        yield allow("BatchJobs", "batch:ListJobs")
        yield allow("EndBatchJobs", "batch:TerminateJob", on=(jobs_of_batch,))
    yield allow("Keys", "kms:Decrypt", "GenerateDataKey", on=keys, when=by)


ROLE = RoleKind(
    summary="`orchgpu orchestrate`, as an EC2 instance profile",
    service="ec2.amazonaws.com",
    needs=_needs,
)
