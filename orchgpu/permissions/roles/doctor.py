"""The role of `orchgpu doctor --aws`: calls that read, and change nothing."""

from __future__ import annotations

from orchgpu.permissions.model import RoleKind, allow

_ACTIONS = (
    *("ec2:DescribeNetworkInterfaces", "DescribeRouteTables", "DescribeSecurityGroups"),
    *("DescribeSubnets", "DescribeVpcEndpoints", "iam:GetRole", "SimulatePrincipalPolicy"),
    *("lambda:GetAccountSettings", "GetFunctionConcurrency", "GetFunctionConfiguration"),
    *("s3:GetBucketVersioning", "ListBucket"),
    *("secretsmanager:DescribeSecret", "sns:GetTopicAttributes"),
    *("sqs:GetQueueUrl", "ssm:DescribeParameters"),
)
#: Most of its actions cannot be limited to resources.
ROLE = RoleKind(
    summary="`orchgpu doctor --aws`, in addition to the role of a deployer",
    service="",
    needs=lambda _scope: [allow("Inspect", *_ACTIONS)],
)
