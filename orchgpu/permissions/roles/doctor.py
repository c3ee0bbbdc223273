"""The role of `orchgpu doctor --aws`: calls that read, and change nothing."""

from __future__ import annotations

from orchgpu.permissions.model import Scope, Statement

_ACTIONS = (
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeRouteTables",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcEndpoints",
    "iam:GetRole",
    "iam:SimulatePrincipalPolicy",
    "lambda:GetAccountSettings",
    "lambda:GetFunctionConcurrency",
    "lambda:GetFunctionConfiguration",
    "s3:GetBucketVersioning",
    "s3:ListBucket",
    "secretsmanager:DescribeSecret",
    "ssm:DescribeParameters",
)


class Doctor:
    """The checks of an account; most of its actions cannot be limited to resources."""

    summary = "`orchgpu doctor --aws`, in addition to the role of a deployer"
    service = ""

    def statements(self, _scope: Scope) -> tuple[Statement, ...]:
        return (Statement(sid="Inspect", actions=_ACTIONS),)


ROLE = Doctor()
