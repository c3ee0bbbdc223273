"""Execution roles by boto3: one inline policy each, nothing attached."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import Role
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

    def __init__(self, iam: Callable[[], Any]) -> None:
        self._client = iam  #: made when it is needed: local clouds have none

    def observe(self, name: str) -> Role | None:
        iam = self._client()
        try:
            with translated(f"GetRole {name}"):
                iam.get_role(RoleName=name)
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return None
            raise
        try:
            with translated(f"GetRolePolicy {name}"):
                answer = iam.get_role_policy(RoleName=name, str=_POLICY)
        except AppError as error:
            if error.code is not ErrorCode.NOT_FOUND:
                raise
            return Role(name=name, policy={})
        return Role(name=name, policy=_document(answer["PolicyDocument"]))

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
                RoleName=role.name, str=_POLICY, PolicyDocument=json.dumps(role.policy)
            )

    def delete(self, name: str) -> None:
        iam = self._client()
        with translated(f"DeleteRole {name}"), suppress(iam.exceptions.NoSuchEntityException):
            with suppress(iam.exceptions.NoSuchEntityException):
                iam.delete_role_policy(RoleName=name, str=_POLICY)
            iam.delete_role(RoleName=name)


def _document(policy: Any) -> Mapping[str, Any]:
    """botocore decodes it; other clients and some clouds leave it as text."""
    document: Mapping[str, Any] = json.loads(unquote(policy)) if isinstance(policy, str) else policy
    return document
