"""`orchgpu.infra.ports.Stacks` by boto3: CloudFormation, quotas, and what a stack leaves behind."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.plan.resources import Bucket, DeployTarget
from orchgpu.adapters.aws.api import Client, Shape, all_keys, answer_or_none
from orchgpu.adapters.aws.deploy.storage import Buckets
from orchgpu.infra.model import Change, ChangeSet, Kept, Resource, Stack
from orchgpu.infra.quotas import Quota
from orchgpu.infra.template import BODY_BYTES_MAX
from orchgpu.permissions.model import STACK_TAG
from orchgpu.ports import Tolerating

#: CloudFormation computes a change set for so long at most; usually some seconds.
_PROPOSE_S_MAX = 300.0
_PROPOSE_POLL_S = 2.0
#: Reasons of a change set that failed because there is nothing to change.
_EMPTY = ("didn't contain changes", "No updates are to be performed")
#: Reasons of failures that follow from another one.
_FOLLOWING = ("Resource creation cancelled", "Resource update cancelled")
_GONE = "DELETE_COMPLETE"
_CAPABILITIES = ["CAPABILITY_NAMED_IAM"]
_REASONS_MAX = 3
#: S3's own limit for one call, and that of Auto Scaling.
_BATCH = 1000
_INSTANCES = 50
_JOURNAL_KEYS = ["log", "item"]
_OPEN_REQUESTS = ("PENDING", "CASE_OPENED")


class AwsStacks:
    """One account and region. `client`: of a service."""

    def __init__(
        self,
        client: Callable[[str], Client],
        place: Callable[[], DeployTarget],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._place = place
        self._sleep = sleep

    @property
    def place(self) -> DeployTarget:
        return self._place()

    @cached_property
    def _stacks(self) -> Client:
        return self._client("cloudformation")

    # --- stacks

    def find(self, name: str) -> Stack | None:
        found: Shape = {"StackStatus": _GONE}
        with _absent_stack():
            found = self._stacks.describe_stacks(StackName=name)["Stacks"][0]
        if found["StackStatus"] == _GONE:
            return None
        return Stack(
            name=name,
            status=str(found["StackStatus"]),
            reason=str(found.get("StackStatusReason", "")),
            parameters=_pairs(found.get("Parameters", ()), "ParameterKey", "ParameterValue"),
            outputs=_pairs(found.get("Outputs", ()), "OutputKey", "OutputValue"),
            tags=_pairs(found.get("Tags", ()), "Key", "Value"),
        )

    def propose(
        self, name: str, body: str, parameters: Mapping[str, str], tags: Mapping[str, str]
    ) -> ChangeSet:
        before = self.find(name)
        new = before is None or before.proposed
        made = self._stacks.create_change_set(
            StackName=name,
            ChangeSetName=f"orchgpu-{time.time_ns()}",
            ChangeSetType="CREATE" if new else "UPDATE",
            **self._template(name, body),
            Parameters=[
                {"ParameterKey": key, "ParameterValue": value} for key, value in parameters.items()
            ],
            Capabilities=_CAPABILITIES,
            Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
        )
        proposal = ChangeSet(id=str(made["Id"]), stack_id=str(made["StackId"]))
        try:
            return replace(proposal, changes=tuple(self._computed(name, proposal)))
        except BaseException:
            self.discard(proposal)
            raise

    def _template(self, name: str, body: str) -> dict[str, str]:
        """A template as CloudFormation takes it: in the call, or from the state bucket."""
        data = body.encode()
        if len(data) <= BODY_BYTES_MAX:
            return {"TemplateBody": body}
        key = f"infra/{name}/{hashlib.sha256(data).hexdigest()}.template"
        if not self.has_object(key):
            self._s3.put_object(Bucket=self._made_bucket(), Key=key, Body=data)
        # as CloudFormation's own command writes it: right in every partition
        return {"TemplateURL": f"{self._s3.meta.endpoint_url}/{self.place.state_bucket}/{key}"}

    def _computed(self, name: str, proposal: ChangeSet) -> Iterator[Change]:
        waited_s = 0.0
        while True:
            answer = self._stacks.describe_change_set(
                ChangeSetName=proposal.id, StackName=proposal.stack_id, IncludePropertyValues=True
            )
            status, reason = str(answer["Status"]), str(answer.get("StatusReason", ""))
            if status == "CREATE_COMPLETE":
                return self._changes(proposal, answer)
            if status == "FAILED" and any(text in reason for text in _EMPTY):
                return iter(())
            if status == "FAILED":
                text = f"CloudFormation refuses the template or its parameters: {reason}"
                raise AppError(ErrorCode.INVALID, text)
            if waited_s > _PROPOSE_S_MAX:
                text = f"CloudFormation has not computed the changes of {name} within 5 minutes"
                raise AppError(ErrorCode.TIMEOUT, text)
            self._sleep(_PROPOSE_POLL_S)
            waited_s += _PROPOSE_POLL_S

    def _changes(self, proposal: ChangeSet, first: Shape) -> Iterator[Change]:
        answer = first
        while True:
            for one in answer.get("Changes", ()):
                yield _change(one["ResourceChange"])
            if not answer.get("NextToken"):
                return
            answer = self._stacks.describe_change_set(
                ChangeSetName=proposal.id,
                StackName=proposal.stack_id,
                IncludePropertyValues=True,
                NextToken=answer["NextToken"],
            )

    def discard(self, change_set: ChangeSet) -> None:
        named = {"StackName": change_set.stack_id}
        with Tolerating(ErrorCode.NOT_FOUND):
            self._stacks.delete_change_set(ChangeSetName=change_set.id, **named)
        with _absent_stack():
            # changes first: what another person executes after this has to be computed before
            if self._stacks.list_change_sets(**named)["Summaries"]:
                return
            found = self.find(change_set.stack_id)
            if found is not None and found.proposed:
                self._stacks.delete_stack(**named)

    def execute(self, name: str, change_set: ChangeSet) -> None:
        self._stacks.execute_change_set(ChangeSetName=change_set.id, StackName=name)

    def resources(self, name: str) -> Sequence[Resource]:
        found = []
        with _absent_stack():
            for page in self._stacks.pages("list_stack_resources", StackName=name):
                found += [_resource(one) for one in page["StackResourceSummaries"]]
        return found

    def failures(self, name: str) -> Sequence[str]:
        found: list[str] = []
        with _absent_stack():
            answer = self._stacks.describe_stack_events(StackName=name)
            for event in answer["StackEvents"]:  # the newest first
                if event["LogicalResourceId"] == name and _began(str(event["ResourceStatus"])):
                    break
                reason = str(event.get("ResourceStatusReason", ""))
                if "FAILED" in event["ResourceStatus"] and reason and not _follows(reason):
                    found.append(f"{event['LogicalResourceId']}: {reason}")
        return found[::-1][:_REASONS_MAX]

    def delete(self, name: str) -> None:
        self._stacks.delete_stack(StackName=name)

    def release_machines(self, groups: Sequence[str]) -> None:
        scaling = self._client("autoscaling")
        named = [one for one in groups if one]
        if not named:
            return
        for page in scaling.pages("describe_auto_scaling_groups", AutoScalingGroupNames=named):
            for group in page["AutoScalingGroups"]:
                name = group["AutoScalingGroupName"]
                scaling.update_auto_scaling_group(
                    AutoScalingGroupName=name, NewInstancesProtectedFromScaleIn=False
                )
                protected = [
                    one["InstanceId"]
                    for one in group["Instances"]
                    if one.get("ProtectedFromScaleIn") and one["LifecycleState"] == "InService"
                ]
                for start in range(0, len(protected), _INSTANCES):
                    scaling.set_instance_protection(
                        AutoScalingGroupName=name,
                        InstanceIds=protected[start : start + _INSTANCES],
                        ProtectedFromScaleIn=False,
                    )

    def interfaces_in(self, group: str) -> int:
        named = [{"Name": "group-id", "Values": [group]}]
        pages = self._client("ec2").pages("describe_network_interfaces", Filters=named)
        return sum(len(page["NetworkInterfaces"]) for page in pages)

    # --- stores

    def kept(self, name: str, boundary: str) -> Kept:
        policy = self.place.policy_arn(boundary)
        inside = {one.physical for one in self.resources(name)}
        secret = answer_or_none(
            self._client("secretsmanager").describe_secret, SecretId=f"{name}/system"
        )
        found = {}  # kind → tags
        if name not in inside and (tags := self._tags_of_journal(name)) is not None:
            found["table"] = tags
        if (
            secret is not None
            and "DeletedDate" not in secret
            and not inside & {str(secret["ARN"]), f"{name}/system"}
        ):
            found["secret"] = _pairs(secret.get("Tags", ()), "Key", "Value")
        logs = f"/orchgpu/{name}"
        if logs not in inside and (tags := self._tags_of_logs(logs)) is not None:
            found["logs"] = tags
        return Kept(
            **dict.fromkeys(found, True),
            boundary=policy not in inside
            and answer_or_none(self._client("iam").get_policy, PolicyArn=policy) is not None,
            foreign=tuple(kind for kind, tags in found.items() if tags.get(STACK_TAG) != name),
        )

    def _tags_of_journal(self, name: str) -> dict[str, str] | None:
        """The tags of a table, without any for other keys than a journal's; None: absent."""
        tables = self._client("dynamodb")
        answer = answer_or_none(tables.describe_table, TableName=name)
        if answer is None:
            return None
        table = answer["Table"]
        if [one["AttributeName"] for one in table["KeySchema"]] != _JOURNAL_KEYS:
            return {}
        tags = tables.list_tags_of_resource(ResourceArn=table["TableArn"])["Tags"]
        return _pairs(tags, "Key", "Value")

    def _tags_of_logs(self, name: str) -> dict[str, str] | None:
        logs = self._client("logs")
        for group in logs.describe_log_groups(logGroupNamePrefix=name)["logGroups"]:
            if group["logGroupName"] == name:
                arn = str(group["arn"]).removesuffix(":*")
                return dict(logs.list_tags_for_resource(resourceArn=arn)["tags"])
        return None

    def remove_store(self, kind: str, name: str) -> None:
        with Tolerating(ErrorCode.NOT_FOUND):
            if kind == "table":
                table = self._client("dynamodb")
                table.update_table(TableName=name, DeletionProtectionEnabled=False)
                table.delete_table(TableName=name)
            elif kind == "secret":
                self._client("secretsmanager").delete_secret(
                    SecretId=name, ForceDeleteWithoutRecovery=True
                )
            else:
                self._client("logs").delete_log_group(logGroupName=name)

    # --- the state bucket

    @property
    def _s3(self) -> Client:
        return self._client("s3")

    def has_object(self, key: str) -> bool:
        bucket = self.place.state_bucket
        return answer_or_none(self._s3.head_object, Bucket=bucket, Key=key) is not None

    def put_object(self, key: str, file: Path) -> None:
        self._s3.upload_file(str(file), self._made_bucket(), key)

    def _made_bucket(self) -> str:
        """The state bucket, which exists then."""
        bucket = Bucket(name=self.place.state_bucket, versioned=False)  # as deploy wants it
        buckets = Buckets(self._s3, self.place)
        if buckets.observe(bucket.name) is None:
            buckets.put(bucket, exists=False)
        return bucket.name

    def remove_objects(self, prefix: str) -> int:
        bucket, s3 = self.place.state_bucket, self._s3
        keys = all_keys(s3, bucket, prefix)
        for start in range(0, len(keys), _BATCH):
            listed = [{"Key": key} for key in keys[start : start + _BATCH]]
            s3.delete_objects(Bucket=bucket, Delete={"Objects": listed, "Quiet": True})
        return len(keys)

    # --- quotas and secrets

    def quota(self, quota: Quota) -> float | None:
        named = {"ServiceCode": quota.service, "QuotaCode": quota.code}
        try:
            answer = self._client("service-quotas").get_service_quota(**named)
        except AppError:  # not allowed, or not there in this region: the stack is possible without
            return None
        return float(answer["Quota"]["Value"])

    def request_quota(self, quota: Quota) -> bool:
        service = self._client("service-quotas")
        named = {"ServiceCode": quota.service, "QuotaCode": quota.code}
        pages = service.pages("list_requested_service_quota_change_history_by_quota", **named)
        if any(one["Status"] in _OPEN_REQUESTS for p in pages for one in p["RequestedQuotas"]):
            return False
        service.request_service_quota_increase(**named, DesiredValue=quota.needed)
        return True

    def read_secret(self, name: str) -> Mapping[str, object]:
        secrets = self._client("secretsmanager")
        if answer_or_none(secrets.describe_secret, SecretId=name) is None:
            raise AppError(ErrorCode.NOT_FOUND, f"there is no secret {name}")
        answer = answer_or_none(secrets.get_secret_value, SecretId=name)  # None: has no value yet
        content = json.loads(answer["SecretString"]) if answer is not None else {}
        return content if isinstance(content, dict) else {}


@contextmanager
def _absent_stack() -> Iterator[None]:
    """Run calls on a stack; nothing happens for an absent one, which is a validation error."""
    try:
        yield
    except AppError as error:
        if error.code is not ErrorCode.NOT_FOUND and "does not exist" not in error.message:
            raise


def _pairs(items: Sequence[Shape], key: str, value: str) -> dict[str, str]:
    return {str(one[key]): str(one.get(value, "")) for one in items}


def _change(found: Shape) -> Change:
    properties: dict[str, tuple[str, str]] = {}
    for detail in found.get("Details", ()):
        target: Mapping[str, Any] = detail.get("Target", {})
        name = str(target.get("Name") or target.get("Attribute", ""))
        before, after = target.get("BeforeValue", ""), target.get("AfterValue", "")
        if name and (name not in properties or before or after):
            properties[name] = (str(before), str(after))
    return Change(
        action=str(found["Action"]),
        logical=str(found["LogicalResourceId"]),
        kind=str(found["ResourceType"]),
        physical=str(found.get("PhysicalResourceId", "")),
        replacement=str(found.get("Replacement", "")),
        properties=properties,
    )


def _resource(found: Shape) -> Resource:
    return Resource(
        logical=str(found["LogicalResourceId"]),
        kind=str(found["ResourceType"]),
        physical=str(found.get("PhysicalResourceId", "")),
        status=str(found["ResourceStatus"]),
        reason=str(found.get("ResourceStatusReason", "")),
    )


def _began(status: str) -> bool:
    return status in ("CREATE_IN_PROGRESS", "UPDATE_IN_PROGRESS", "DELETE_IN_PROGRESS")


def _follows(reason: str) -> bool:
    return any(text in reason for text in _FOLLOWING)
