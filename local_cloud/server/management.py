"""The calls of IAM and STS that a deployment makes: roles are stored, never evaluated."""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping

from aiohttp import web

from local_cloud.model.errors import CloudError, not_implemented
from local_cloud.model.json_text import read_json
from local_cloud.model.recorder import part
from local_cloud.model.s3.notifications import iso_time
from local_cloud.server.context import Context
from local_cloud.server.s3.bodies.xml import element, text

Form = Mapping[str, str]
Role = dict[str, object]


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


def _key(form: Form) -> str:
    return f"role/{part(form['RoleName'])}"


def _role(context: Context, form: Form) -> Role:
    found = context.state.get(_key(form))
    if found is None:
        raise CloudError(
            "NoSuchEntity", 404, f"The role with name {form['RoleName']} cannot be found."
        )
    return dict(found)


def _role_xml(context: Context, name: str, role: Role) -> str:
    return element(
        "Role",
        text("Path", "/"),
        text("RoleName", name),
        text("RoleId", "AROAEMBEDDEDCLOUD"),
        text("Arn", context.cloud.account.role_arn(name)),
        text("CreateDate", role["created_at"]),
        text("AssumeRolePolicyDocument", urllib.parse.quote(str(role["trust"]))),
    )


def _create_role(context: Context, form: Form) -> str:
    name = form["RoleName"]
    if context.state.get(_key(form)) is not None:
        raise CloudError("EntityAlreadyExists", 409, f"Role with name {name} already exists.")
    role: Role = {
        "created_at": iso_time(context.now_s()),
        "trust": form["AssumeRolePolicyDocument"],
        "policies": {},
    }
    context.state.put(_key(form), role)
    return _role_xml(context, name, role)


def _get_role(context: Context, form: Form) -> str:
    return _role_xml(context, form["RoleName"], _role(context, form))


def _delete_role(context: Context, form: Form) -> str:
    role = _role(context, form)
    if role["policies"]:
        raise CloudError("DeleteConflict", 409, "Cannot delete entity, must delete policies first.")
    context.state.drop(_key(form))
    return ""


def _policies(role: Role) -> dict[str, str]:
    found = role["policies"]
    assert isinstance(found, dict)
    return found


def _put_role_policy(context: Context, form: Form) -> str:
    role = _role(context, form)
    document = form["PolicyDocument"]
    try:
        read_json(document)
    except ValueError:
        raise CloudError("MalformedPolicyDocument", 400, "The policy is not JSON.") from None
    _policies(role)[form["PolicyName"]] = document
    context.state.put(_key(form), role)
    return ""


def _get_role_policy(context: Context, form: Form) -> str:
    document = _policies(_role(context, form)).get(form["PolicyName"])
    if document is None:
        raise CloudError("NoSuchEntity", 404, "The role policy cannot be found.")
    return "".join(
        (
            text("RoleName", form["RoleName"]),
            text("PolicyName", form["PolicyName"]),
            text("PolicyDocument", urllib.parse.quote(document)),
        )
    )


def _delete_role_policy(context: Context, form: Form) -> str:
    role = _role(context, form)
    if _policies(role).pop(form["PolicyName"], None) is None:
        raise CloudError("NoSuchEntity", 404, "The role policy cannot be found.")
    context.state.put(_key(form), role)
    return ""


def _list_role_policies(context: Context, form: Form) -> str:
    names = sorted(_policies(_role(context, form)))
    members = [text("member", name) for name in names]
    return element("PolicyNames", *members) + text("IsTruncated", False)


def _no_attached_policies(context: Context, form: Form) -> str:
    _role(context, form)
    return element("AttachedPolicies") + text("IsTruncated", False)


_ACTIONS: dict[str, Callable[[Context, Form], str]] = {
    "CreateRole": _create_role,
    "DeleteRole": _delete_role,
    "DeleteRolePolicy": _delete_role_policy,
    "GetCallerIdentity": _caller_identity,
    "GetRole": _get_role,
    "GetRolePolicy": _get_role_policy,
    "ListAttachedRolePolicies": _no_attached_policies,
    "ListRolePolicies": _list_role_policies,
    "PutRolePolicy": _put_role_policy,
}
