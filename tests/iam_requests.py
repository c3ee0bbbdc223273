"""Calls of botocore as the requests for authorization that AWS makes of them.

Resources and further actions of each call: AWS's Service Authorization Reference. What IAM cannot
name has the resource `*`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.iam_policies import Request
from tests.unit.infra.test_iam_actions import RENAMED

Parameters = Mapping[str, Any]
#: Calls that need no permission.
FREE = {"sts:GetCallerIdentity"}
#: Services whose calls here take no resource, or whose read-only calls IAM limits to none.
_UNNAMED = ("ec2", "servicequotas", "service-quotas")
_NAMED = ("AttachNetworkInterface",)
_UNNAMED_CALLS = {
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeAutoScalingInstances",
    "autoscaling:DescribeScalingActivities",
    "lambda:ListFunctions",
    "lambda:GetAccountSettings",
    "ssm:DescribeParameters",
    "s3:ListBuckets",
}
#: The actions on tags name a log group without `:*` (CloudWatch Logs API, LogGroup).
_TAGGING_LOGS = ("TagResource", "UntagResource", "ListTagsForResource")


@dataclass
class Account:
    """What the account knows of its roles: IAM authorizes by their paths and boundaries."""

    id: str
    region: str
    paths: dict[str, str] = field(default_factory=dict)  #: role → path
    boundaries: dict[str, str] = field(default_factory=dict)  #: role → ARN
    #: id of an instance or interface, or name of a group → its tags
    tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)  #: instance → its group

    def requests(self, service: str, operation: str, parameters: Parameters) -> list[Request]:
        """What AWS asks for this call; a role that it makes is known from now on."""
        action = f"{service}:{RENAMED.get(operation, operation)}"
        if action in FREE:
            return []
        if (service in _UNNAMED or action in _UNNAMED_CALLS) and operation not in _NAMED:
            return [Request(action.replace("service-quotas", "servicequotas"))]
        return list(getattr(self, f"_{service}")(action, operation, parameters))

    def _arn(self, service: str, name: str) -> str:
        return f"arn:aws:{service}:{self.region}:{self.id}:{name}"

    def _s3(self, action: str, operation: str, given: Parameters) -> Iterator[Request]:
        bucket = f"arn:aws:s3:::{given['Bucket']}"
        if "Key" not in given:
            yield Request(action, bucket)
            return
        yield Request(action, f"{bucket}/{given['Key']}")
        if given.get("VersionId") and operation in ("GetObject", "HeadObject"):
            yield Request("s3:GetObjectVersion", f"{bucket}/{given['Key']}")

    def _sqs(self, action: str, _operation: str, given: Parameters) -> Iterator[Request]:
        name = given.get("QueueName") or given["QueueUrl"].rpartition("/")[2]
        yield Request(action, self._arn("sqs", name))
        if given.get("tags"):
            yield Request("sqs:TagQueue", self._arn("sqs", name))

    def _lambda(self, action: str, operation: str, given: Parameters) -> Iterator[Request]:
        named = given.get("FunctionName", "")
        function = given.get("Resource") or self._arn("lambda", f"function:{named}")
        yield Request(action, function)
        if operation == "CreateFunction" and given.get("Tags"):
            yield Request("lambda:TagResource", function)
        if operation == "GetFunction":
            yield Request("lambda:ListTags", function)
        for layer in given.get("Layers", ()):
            yield Request("lambda:GetLayerVersion", layer)
        if role := given.get("Role"):
            yield Request("iam:PassRole", role, {"iam:PassedToService": "lambda.amazonaws.com"})
        if given.get("VpcConfig", {}).get("SubnetIds"):
            for one in ("Subnets", "SecurityGroups", "Vpcs"):
                yield Request(f"ec2:Describe{one}")

    def _iam(self, action: str, operation: str, given: Parameters) -> Iterator[Request]:
        if "PolicyArn" in given:
            yield Request(action, given["PolicyArn"])
            return
        if operation == "SimulatePrincipalPolicy":
            yield Request(action, given["PolicySourceArn"])
            return
        name = given["RoleName"]
        if operation == "CreateRole":
            self.paths[name] = given.get("Path", "/")
            self.boundaries[name] = given.get("PermissionsBoundary", "")
        # a role that does not exist has no path
        role = f"arn:aws:iam::{self.id}:role{self.paths.get(name, '/')}{name}"
        limit = given.get("PermissionsBoundary") or self.boundaries.get(name, "")
        yield Request(action, role, {"iam:PermissionsBoundary": limit} if limit else {})
        if operation == "CreateRole" and given.get("Tags"):
            yield Request("iam:TagRole", role)
        if operation == "DeleteRole":
            self.paths.pop(name, None)

    def _logs(self, action: str, operation: str, given: Parameters) -> Iterator[Request]:
        group = given.get("logGroupName") or given.get("logGroupNamePrefix", "")
        if operation == "DescribeLogGroups":
            yield Request(action, self._arn("logs", "log-group::log-stream:"))
        elif operation in _TAGGING_LOGS:
            yield Request(action, given["resourceArn"])
        else:
            yield Request(action, self._arn("logs", f"log-group:{group}:log-stream:"))
        if operation == "CreateLogGroup" and given.get("tags"):
            yield Request("logs:TagResource", self._arn("logs", f"log-group:{group}"))

    def _kms(self, action: str, _operation: str, given: Parameters) -> Iterator[Request]:
        key = str(given["KeyId"])
        yield Request(action, key if key.startswith("arn:") else self._arn("kms", f"key/{key}"))

    def _ecr(self, action: str, operation: str, given: Parameters) -> Iterator[Request]:
        if operation == "DescribeRepositories":
            yield Request(action)
            return
        yield Request(action, self._arn("ecr", f"repository/{given['repositoryName']}"))

    def _secretsmanager(self, action: str, _operation: str, given: Parameters) -> Iterator[Request]:
        name = str(given.get("SecretId") or given.get("Name"))
        arn = (
            name
            if name.startswith("arn:")
            else self._arn("secretsmanager", f"secret:{name}-AbCdEf")
        )
        yield Request(action, arn)

    def _ec2(self, action: str, _operation: str, given: Parameters) -> Iterator[Request]:
        kinds = {"instance": "InstanceId", "network-interface": "NetworkInterfaceId"}
        for kind, parameter in kinds.items():
            name = given[parameter]
            yield Request(action, self._arn("ec2", f"{kind}/{name}"), self._tagged(name))

    def _autoscaling(self, action: str, _operation: str, given: Parameters) -> Iterator[Request]:
        name = given.get("AutoScalingGroupName") or self.groups[given["InstanceId"]]
        group = f"autoScalingGroup:01234567-89ab-cdef:autoScalingGroupName/{name}"
        yield Request(action, self._arn("autoscaling", group), self._tagged(name))

    def _ecs(self, action: str, operation: str, given: Parameters) -> Iterator[Request]:
        where = {"ecs:cluster": self._arn("ecs", f"cluster/{given['cluster']}")}
        if operation == "DescribeCapacityProviders":
            for name in given["capacityProviders"]:
                yield Request(action, self._arn("ecs", f"capacity-provider/{name}"))
        elif operation == "RunTask":
            name = given["taskDefinition"]
            yield Request(action, self._arn("ecs", f"task-definition/{name}:1"), where)
            passed = {"iam:PassedToService": "ecs-tasks.amazonaws.com"}
            yield Request("iam:PassRole", f"arn:aws:iam::{self.id}:role/{name}-task", passed)
        elif operation == "ListTasks":
            yield Request(
                action, self._arn("ecs", f"container-instance/{given['cluster']}/0"), where
            )
        else:
            for task in given["tasks"] if "tasks" in given else [given["task"]]:
                yield Request(action, task, where)

    def _tagged(self, name: str) -> dict[str, str]:
        return {f"aws:ResourceTag/{key}": value for key, value in self.tags.get(name, {}).items()}

    def _dynamodb(self, action: str, _operation: str, given: Parameters) -> Iterator[Request]:
        for table in [given["TableName"]] if "TableName" in given else given["RequestItems"]:
            yield Request(action, self._arn("dynamodb", f"table/{table}"))

    def _cloudformation(self, action: str, _operation: str, given: Parameters) -> Iterator[Request]:
        yield Request(action, self._arn("cloudformation", f"stack/{given['StackName']}/0123-4567"))
