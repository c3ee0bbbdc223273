"""The removal of everything that a run made; repeatable, also after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from tools.aws_live_check.cloud import FAILURES, Clients, orchgpu, say
from tools.aws_live_check.run import Run

#: A function that runs may write into a bucket between its last listing and its removal.
ROUNDS, PAUSE_S = 3, 2.0


class CleanUp:
    """Finds the run's parts by its id in their names."""

    def __init__(self, run: Run, clients: Clients) -> None:
        self._run = run
        self._clients = clients

    def clean_up(self) -> None:
        """Remove everything of this run; a second time it finds nothing. Fails for no part.

        What is left is tried again, three times in all.
        """
        for number in range(ROUNDS):
            time.sleep(PAUSE_S if number else 0.0)
            self._remove_all()
            if not self._run.left:
                return

    def _remove_all(self) -> None:
        self._run.left = []
        for name in (self._run.stem, f"{self._run.stem}-job"):
            self._try(f"deployment {name}", partial(self._rm, name))
        for part in (self._functions, self._queues, self._roles, self._logs):
            self._try(part.__name__.strip("_"), part)
        for bucket in self._clients.buckets(f"{self._run.stem}-"):
            self._try(bucket, partial(self._remove_bucket, bucket))
        if not self._run.state_bucket_existed:
            self._try(self._run.state_bucket, self._remove_state)

    def _try(self, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except FAILURES as error:
            self._run.left.append(f"{what}: {error}")

    def _rm(self, name: str) -> None:
        if not self._clients.has_object(self._run.state_bucket, f"deployments/{name}.json"):
            return
        for line in orchgpu("rm", name, "--yes-real-aws", "--force"):
            say(f"  {line.rstrip()}")

    def _functions(self) -> None:
        client = self._clients["lambda"]
        for found in client.get_paginator("list_functions").paginate().search("Functions"):
            if found["FunctionName"].startswith(self._run.stem):
                client.delete_function(FunctionName=found["FunctionName"])

    def _queues(self) -> None:
        urls = (
            self._clients["sqs"]
            .list_queues(QueueNamePrefix=f"{self._run.stem}-")
            .get("QueueUrls", ())
        )
        for url in urls:
            self._clients["sqs"].delete_queue(QueueUrl=url)

    def _roles(self) -> None:
        if self._run.local:
            return  # deploy makes none there
        client = self._clients["iam"]
        for found in client.get_paginator("list_roles").paginate().search("Roles"):
            name = found["RoleName"]
            if not name.startswith(self._run.stem):
                continue
            for policy in client.list_role_policies(RoleName=name)["PolicyNames"]:
                client.delete_role_policy(RoleName=name, PolicyName=policy)
            client.delete_role(RoleName=name)

    def _logs(self) -> None:
        if self._run.local:
            return  # its logs end with it
        client, prefix = self._clients["logs"], f"/aws/lambda/{self._run.stem}"
        found = client.describe_log_groups(logGroupNamePrefix=prefix)
        for group in found["logGroups"]:
            client.delete_log_group(logGroupName=group["logGroupName"])

    def _remove_bucket(self, bucket: str) -> None:
        s3 = self._clients["s3"]
        for page in s3.get_paginator("list_object_versions").paginate(Bucket=bucket):
            for item in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                s3.delete_object(Bucket=bucket, Key=item["Key"], VersionId=item["VersionId"])
        s3.delete_bucket(Bucket=bucket)

    def _remove_state(self) -> None:
        """The state bucket that this run made, unless another deploy uses it by now."""
        if not self._clients.has_bucket(self._run.state_bucket):
            return
        listed = self._clients["s3"].list_objects_v2(
            Bucket=self._run.state_bucket, Prefix="deployments/"
        )
        if listed.get("KeyCount", 0) == 0:
            self._remove_bucket(self._run.state_bucket)
