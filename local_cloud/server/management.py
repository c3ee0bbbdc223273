"""The calls of IAM and STS that a deployment makes. Only weather asks the policies of roles."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping

from aiohttp import web

from local_cloud.model.errors import CloudError, not_implemented
from local_cloud.model.iam.roles import Role
from local_cloud.server.context import Context
from local_cloud.server.s3.xml import element, text

Form = Mapping[str, str]


def handle(context: Context, form: Form) -> web.Response:
    """Answer one query-protocol call; a refusal is raised as CloudError."""
    action = form["Action"]
    run = _ACTIONS.get(action)
    if run is None:
        raise not_implemented(action)
    try:
        inner = run(context, form)
    except KeyError as error:
        raise CloudError("MissingParameter", 400, f"{error.args[0]} is required") from None
    metadata = element("ResponseMetadata", text("RequestId", context.cloud.new_request_id()))
    body = element(f"{action}Response", element(f"{action}Result", inner), metadata)
    return web.Response(body=body.encode(), content_type="text/xml")


def error_response(error: CloudError) -> web.Response:
    """The query protocol's error document."""
    inner = element(
        "Error", text("Type", "Sender"), text("Code", error.code), text("Message", error.message)
    )
    body = element("ErrorResponse", inner)
    return web.Response(status=error.status, body=body.encode(), content_type="text/xml")


def _caller_identity(context: Context, _form: Form) -> str:
    account = context.cloud.account.id
    return "".join(
        (
            text("Arn", f"arn:aws:iam::{account}:root"),
            text("UserId", "AIDAEMBEDDEDCLOUD"),
            text("Account", account),
        )
    )


def _name(form: Form) -> str:
    return form["RoleName"]


def _role_xml(context: Context, role: Role) -> str:
    boundary = element(
        "PermissionsBoundary",
        text("PermissionsBoundaryType", "Policy"),
        text("PermissionsBoundaryArn", role.boundary),
    )
    return element(
        "Role",
        text("Path", role.path),
        text("RoleName", role.name),
        text("RoleId", "AROAEMBEDDEDCLOUD"),
        text("Arn", context.cloud.roles.arn(role)),
        text("CreateDate", role.created_at),
        text("AssumeRolePolicyDocument", urllib.parse.quote(role.trust)),
        *([text("Description", role.description)] if role.description else []),
        *([boundary] if role.boundary else []),
        *([_tags_xml(role)] if role.tags else []),
    )


def _tags_xml(role: Role) -> str:
    members = [
        element("member", text("Key", key), text("Value", value))
        for key, value in sorted(role.tags.items())
    ]
    return element("Tags", *members)


def _get_policy(_context: Context, form: Form) -> str:
    """Any managed policy exists: nothing here reads one, and a boundary is kept by its ARN."""
    arn = form["PolicyArn"]
    return element("Policy", text("PolicyName", arn.rpartition("/")[2]), text("Arn", arn))


def _create_role(context: Context, form: Form) -> str:
    role = Role(
        name=_name(form),
        trust=form["AssumeRolePolicyDocument"],
        path=form.get("Path", "/"),
        description=form.get("Description", ""),
        boundary=form.get("PermissionsBoundary", ""),
        tags=_given_tags(form),
    )
    return _role_xml(context, context.cloud.roles.create(context.now_s(), role))


def _given_tags(form: Form) -> dict[str, str]:
    """`Tags.member.N.Key` and `Tags.member.N.Value`."""
    keys = [name for name in form if name.startswith("Tags.member.") and name.endswith(".Key")]
    return {form[key]: form.get(f"{key.removesuffix('Key')}Value", "") for key in keys}


def _get_role(context: Context, form: Form) -> str:
    return _role_xml(context, context.cloud.roles.get(_name(form)))


def _delete_role(context: Context, form: Form) -> str:
    context.cloud.roles.delete(_name(form))
    return ""


def _tag_role(context: Context, form: Form) -> str:
    role = context.cloud.roles.get(_name(form))
    role.tags |= _given_tags(form)
    context.cloud.roles.save(role)
    return ""


def _untag_role(context: Context, form: Form) -> str:
    role = context.cloud.roles.get(_name(form))
    for name, key in form.items():
        if name.startswith("TagKeys.member."):
            role.tags.pop(key, None)
    context.cloud.roles.save(role)
    return ""


def _list_role_tags(context: Context, form: Form) -> str:
    role = context.cloud.roles.get(_name(form))
    return (_tags_xml(role) if role.tags else element("Tags")) + text("IsTruncated", False)


def _put_boundary(context: Context, form: Form) -> str:
    return _set_boundary(context, form, form["PermissionsBoundary"])


def _delete_boundary(context: Context, form: Form) -> str:
    return _set_boundary(context, form, "")


def _set_boundary(context: Context, form: Form, arn: str) -> str:
    role = context.cloud.roles.get(_name(form))
    role.boundary = arn
    context.cloud.roles.save(role)
    return ""


def _put_role_policy(context: Context, form: Form) -> str:
    document, policy = form["PolicyDocument"], form["PolicyName"]
    context.cloud.roles.put_policy(context.now_s(), _name(form), policy, document)
    return ""


def _get_role_policy(context: Context, form: Form) -> str:
    document = context.cloud.roles.policy(_name(form), form["PolicyName"])
    return "".join(
        (
            text("RoleName", _name(form)),
            text("PolicyName", form["PolicyName"]),
            text("PolicyDocument", urllib.parse.quote(document)),
        )
    )


def _delete_role_policy(context: Context, form: Form) -> str:
    context.cloud.roles.delete_policy(context.now_s(), _name(form), form["PolicyName"])
    return ""


def _list_role_policies(context: Context, form: Form) -> str:
    names = sorted(context.cloud.roles.get(_name(form)).policies)
    members = [text("member", name) for name in names]
    return element("PolicyNames", *members) + text("IsTruncated", False)


def _no_attached_policies(context: Context, form: Form) -> str:
    context.cloud.roles.get(_name(form))
    return element("AttachedPolicies") + text("IsTruncated", False)


_ACTIONS: dict[str, Callable[[Context, Form], str]] = {
    "CreateRole": _create_role,
    "DeleteRole": _delete_role,
    "DeleteRolePermissionsBoundary": _delete_boundary,
    "DeleteRolePolicy": _delete_role_policy,
    "GetCallerIdentity": _caller_identity,
    "GetPolicy": _get_policy,
    "GetRole": _get_role,
    "GetRolePolicy": _get_role_policy,
    "ListAttachedRolePolicies": _no_attached_policies,
    "ListRolePolicies": _list_role_policies,
    "ListRoleTags": _list_role_tags,
    "PutRolePermissionsBoundary": _put_boundary,
    "PutRolePolicy": _put_role_policy,
    "TagRole": _tag_role,
    "UntagRole": _untag_role,
}
