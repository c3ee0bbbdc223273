"""The calls of IAM and STS that a deployment makes. Only weather asks the policies of roles."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable, Mapping

from corekit.values import replace
from local_cloud.model.roles import Role
from local_cloud.model.s3.notifications import iso_time
from local_cloud.server.context import Context
from local_cloud.server.services import Answer, Body, FormService


def _caller_identity(context: Context, _: Body) -> Answer:
    account = context.cloud.account.id
    arn = f"arn:aws:iam::{account}:root"
    return {"Arn": arn, "UserId": "AIDAEMBEDDEDCLOUD", "Account": account}


def _assume_role(context: Context, body: Body) -> Answer:
    """Credentials that are accepted until they end; their role's policies are not asked."""
    arn, session, now_s = body["RoleArn"], body["RoleSessionName"], context.now_s()
    context.cloud.roles.check_assumed(arn)
    ends_s = now_s + body.get("DurationSeconds", 3600)
    made = context.verifier.issue(arn, ends_s)
    name = arn.rpartition("/")[2]
    account = context.cloud.account.id
    return {
        "Credentials": {
            "AccessKeyId": made.pair.access_key,
            "SecretAccessKey": made.pair.secret_key,
            "SessionToken": made.token,
            "Expiration": iso_time(ends_s),
        },
        "AssumedRoleUser": {
            "AssumedRoleId": f"AROAEMBEDDEDCLOUD:{session}",
            "Arn": f"arn:aws:sts::{account}:assumed-role/{name}/{session}",
        },
    }


# --- roles


def _create_role(context: Context, body: Body) -> Answer:
    role = Role(
        name=body["RoleName"],
        trust=body["AssumeRolePolicyDocument"],
        path=body.get("Path", "/"),
        description=body.get("Description", ""),
        boundary=body.get("PermissionsBoundary", ""),
        tags=_by_key(body.get("Tags", ())),
    )
    return _shown(context, context.cloud.roles.create(context.now_s(), role))


def _shown(context: Context, role: Role) -> Answer:
    boundary = {
        "PermissionsBoundaryType": "Policy",
        "PermissionsBoundaryArn": role.boundary,
    }
    tags = [{"Key": key, "Value": value} for key, value in sorted(role.tags.items())]
    return {
        "Role": {
            "Path": role.path,
            "RoleName": role.name,
            "RoleId": "AROAEMBEDDEDCLOUD",
            "Arn": context.cloud.roles.arn(role),
            "CreateDate": role.created_at,
            "AssumeRolePolicyDocument": urllib.parse.quote(role.trust),
            "Description": role.description or None,
            "PermissionsBoundary": boundary if role.boundary else None,
            "Tags": {"member": tags} if tags else None,
        }
    }


def _by_key(tags: Iterable[Mapping[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


def _get_role(context: Context, body: Body) -> Answer:
    return _shown(context, context.cloud.roles.get(body["RoleName"]))


def _delete_role(context: Context, body: Body) -> None:
    context.cloud.roles.delete(body["RoleName"])


def _tag_role(context: Context, body: Body) -> None:
    role = context.cloud.roles.get(body["RoleName"])
    context.cloud.roles.save(replace(role, tags={**role.tags, **_by_key(body["Tags"])}))


def _untag_role(context: Context, body: Body) -> None:
    role = context.cloud.roles.get(body["RoleName"])
    left = {key: value for key, value in role.tags.items() if key not in body["TagKeys"]}
    context.cloud.roles.save(replace(role, tags=left))


def _update_trust(context: Context, body: Body) -> None:
    role = context.cloud.roles.get(body["RoleName"])
    context.cloud.roles.change_trust(role, body["PolicyDocument"])


def _put_boundary(context: Context, body: Body) -> None:
    role = context.cloud.roles.get(body["RoleName"])
    context.cloud.roles.save(replace(role, boundary=body["PermissionsBoundary"]))


# --- policies


def _get_policy(_context: Context, body: Body) -> Answer:
    """Any managed policy exists: nothing here reads one, and a boundary is kept by its ARN."""
    arn = body["PolicyArn"]
    return {"Policy": {"PolicyName": arn.rpartition("/")[2], "Arn": arn}}


def _put_role_policy(context: Context, body: Body) -> None:
    document, policy = body["PolicyDocument"], body["PolicyName"]
    context.cloud.roles.put_policy(context.now_s(), body["RoleName"], policy, document)


def _get_role_policy(context: Context, body: Body) -> Answer:
    document = context.cloud.roles.policy(body["RoleName"], body["PolicyName"])
    return {**body, "PolicyDocument": urllib.parse.quote(document)}


def _delete_role_policy(context: Context, body: Body) -> None:
    context.cloud.roles.delete_policy(context.now_s(), body["RoleName"], body["PolicyName"])


def _list_role_policies(context: Context, body: Body) -> Answer:
    names = sorted(context.cloud.roles.get(body["RoleName"]).policies)
    return {"PolicyNames": {"member": names}, "IsTruncated": False}


IAM_AND_STS = FormService(
    names=("iam", "sts"),
    invalid="ValidationError",
    missing="MissingParameter",
    operations={
        "AssumeRole": _assume_role,
        "CreateRole": _create_role,
        "DeleteRole": _delete_role,
        "DeleteRolePolicy": _delete_role_policy,
        "GetCallerIdentity": _caller_identity,
        "GetPolicy": _get_policy,
        "GetRole": _get_role,
        "GetRolePolicy": _get_role_policy,
        "ListRolePolicies": _list_role_policies,
        "PutRolePermissionsBoundary": _put_boundary,
        "PutRolePolicy": _put_role_policy,
        "TagRole": _tag_role,
        "UntagRole": _untag_role,
        "UpdateAssumeRolePolicy": _update_trust,
    },
)
