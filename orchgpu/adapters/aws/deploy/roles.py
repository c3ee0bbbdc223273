"""Execution roles by boto3: one inline policy each, nothing attached."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote

from fdl.plan.resources import Role
from orchgpu.adapters.aws.api import Client, Shape, found
from orchgpu.adapters.aws.errors import translated

_POLICY = "orchgpu"
_TAGS = [{"Key": "createdby", "Value": "orchgpu"}]
#: Only Lambda may take the role.
TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "lambda.amazonaws.com"},
                "Action": "sts:AssumeRole",
            }
        ],
    }
)


class Roles:
    """Roles of functions with `iam: {create: true}`."""

    def __init__(self, iam: Callable[[], Client]) -> None:
        self._client = iam  #: made when it is needed: local clouds have none

    def observe(self, name: str) -> Role | None:
        iam = self._client()
        if found(f"GetRole {name}", lambda: iam.get_role(RoleName=name)) is None:
            return None
        names = {"RoleName": name, "PolicyName": _POLICY}
        answer = found(f"GetRolePolicy {name}", lambda: iam.get_role_policy(**names))
        return Role(name=name, policy={} if answer is None else _document(answer["PolicyDocument"]))

    def put(self, role: Role) -> None:
        iam = self._client()
        with translated(f"CreateRole {role.name}"):
            # a deploy that was cut off may have made it
            with suppress(iam.exceptions.EntityAlreadyExistsException):
                iam.create_role(
                    RoleName=role.name,
                    AssumeRolePolicyDocument=TRUST,
                    Tags=_TAGS,
                    Description="made by orchgpu deploy; removed with its function",
                )
            iam.put_role_policy(
                RoleName=role.name, PolicyName=_POLICY, PolicyDocument=json.dumps(role.policy)
            )

    def delete(self, name: str) -> None:
        iam = self._client()
        with translated(f"DeleteRole {name}"), suppress(iam.exceptions.NoSuchEntityException):
            with suppress(iam.exceptions.NoSuchEntityException):
                iam.delete_role_policy(RoleName=name, PolicyName=_POLICY)
            iam.delete_role(RoleName=name)


def _document(policy: Shape | str) -> Shape:
    """The policy as data: botocore decodes it, some clouds leave it as text."""
    if not isinstance(policy, str):
        return policy
    document: Shape = json.loads(unquote(policy))
    return document
