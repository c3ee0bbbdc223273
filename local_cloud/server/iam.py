"""The calls of IAM and STS that a deployment makes. Only weather asks the policies of roles."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from typing import TypeAlias

from aiohttp import web

from corekit.values import replace
from local_cloud.model.errors import CloudError, not_implemented
from local_cloud.model.roles import Role
from local_cloud.server.context import Context
from local_cloud.server.requests import read_signed
from local_cloud.server.s3.xml import elements

Form: TypeAlias = Mapping[str, str]
Answer: TypeAlias = Mapping[str, object]


async def answer(context: Context, request: web.BaseRequest) -> web.Response:
    """The answer to one call of the form-encoded query protocol, a refusal too."""
    try:
        data = await read_signed(context, request, "iam", "sts")
        fields = urllib.parse.parse_qs(data.decode("utf-8", "replace"))
        form = {name: values[-1] for name, values in fields.items()}
        action = form.get("Action", request.headers.get("X-Amz-Target", "this POST"))
        run = _ACTIONS.get(action)
        if run is None:
            raise not_implemented(action)
        result = run(context, form)
    except KeyError as error:
        return _refusal(CloudError("MissingParameter", 400, f"{error.args[0]} is required"))
    except CloudError as error:
        return _refusal(error)
    metadata = {"RequestId": context.cloud.new_request_id()}
    body = {f"{action}Result": result or {}, "ResponseMetadata": metadata}
    return _document(f"{action}Response", body)


def _refusal(error: CloudError) -> web.Response:
    inner = {"Type": "Sender", "Code": error.code, "Message": error.message}
    return _document("ErrorResponse", {"Error": inner}, error.status)


def _document(name: str, inner: Answer, status: int = 200) -> web.Response:
    body = elements({name: inner}).encode()
    return web.Response(status=status, body=body, content_type="text/xml")


def _caller_identity(context: Context, _form: Form) -> Answer:
    account = context.cloud.account.id
    arn = f"arn:aws:iam::{account}:root"
    return {"Arn": arn, "UserId": "AIDAEMBEDDEDCLOUD", "Account": account}


# --- roles


def _create_role(context: Context, form: Form) -> Answer:
    role = Role(
        name=form["RoleName"],
        trust=form["AssumeRolePolicyDocument"],
        path=form.get("Path", "/"),
        description=form.get("Description", ""),
        boundary=form.get("PermissionsBoundary", ""),
        tags=_given_tags(form),
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


def _given_tags(form: Form) -> dict[str, str]:
    """`Tags.member.N.Key` and `Tags.member.N.Value`."""
    keys = [name for name in form if name.startswith("Tags.member.") and name.endswith(".Key")]
    return {form[key]: form.get(f"{key.removesuffix('Key')}Value", "") for key in keys}


def _get_role(context: Context, form: Form) -> Answer:
    return _shown(context, context.cloud.roles.get(form["RoleName"]))


def _delete_role(context: Context, form: Form) -> None:
    context.cloud.roles.delete(form["RoleName"])


def _tag_role(context: Context, form: Form) -> None:
    role = context.cloud.roles.get(form["RoleName"])
    context.cloud.roles.save(replace(role, tags={**role.tags, **_given_tags(form)}))


def _untag_role(context: Context, form: Form) -> None:
    role = context.cloud.roles.get(form["RoleName"])
    gone = {key for name, key in form.items() if name.startswith("TagKeys.member.")}
    left = {key: value for key, value in role.tags.items() if key not in gone}
    context.cloud.roles.save(replace(role, tags=left))


def _put_boundary(context: Context, form: Form) -> None:
    role = context.cloud.roles.get(form["RoleName"])
    context.cloud.roles.save(replace(role, boundary=form["PermissionsBoundary"]))


# --- policies


def _get_policy(_context: Context, form: Form) -> Answer:
    """Any managed policy exists: nothing here reads one, and a boundary is kept by its ARN."""
    arn = form["PolicyArn"]
    return {"Policy": {"PolicyName": arn.rpartition("/")[2], "Arn": arn}}


def _put_role_policy(context: Context, form: Form) -> None:
    document, policy = form["PolicyDocument"], form["PolicyName"]
    context.cloud.roles.put_policy(context.now_s(), form["RoleName"], policy, document)


def _get_role_policy(context: Context, form: Form) -> Answer:
    names = {name: form[name] for name in ("RoleName", "PolicyName")}
    document = context.cloud.roles.policy(names["RoleName"], names["PolicyName"])
    return {**names, "PolicyDocument": urllib.parse.quote(document)}


def _delete_role_policy(context: Context, form: Form) -> None:
    context.cloud.roles.delete_policy(context.now_s(), form["RoleName"], form["PolicyName"])


def _list_role_policies(context: Context, form: Form) -> Answer:
    names = sorted(context.cloud.roles.get(form["RoleName"]).policies)
    return {"PolicyNames": {"member": names}, "IsTruncated": False}


_ACTIONS: dict[str, Callable[[Context, Form], Answer | None]] = {
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
}
