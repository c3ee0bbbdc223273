"""Secrets Manager's calls."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping

from local_cloud.model.errors import refused
from local_cloud.model.secrets.secrets import (
    RECOVERY_DAYS,
    RECOVERY_DAYS_MIN,
    VALUE_BYTES_MAX,
    Secret,
    SecretVersion,
)
from local_cloud.server.context import Context
from local_cloud.server.shapes import Body, Shape

Answer = Mapping[str, object]

SHAPE: dict[str, Shape] = {
    "ClientRequestToken": str,
    "Description": str,
    "ForceDeleteWithoutRecovery": bool,
    "KmsKeyId": str,
    "Name": str,
    "RecoveryWindowInDays": int,
    "SecretBinary": str,
    "SecretId": str,
    "SecretString": str,
    "VersionId": str,
    "VersionStage": str,
}


def _create(context: Context, body: Body) -> Answer:
    version = _version(context, body)
    made = context.cloud.secrets.create(
        context.now_s(),
        body["Name"],
        version,
        body.get("KmsKeyId", ""),
        body.get("Description", ""),
    )
    return _named(made) | ({"VersionId": version.id} if version else {})


def _put(context: Context, body: Body) -> Answer:
    version = _version(context, body)
    if version is None:
        raise _invalid("You must provide either SecretString or SecretBinary.")
    found = context.cloud.secrets.put(context.now_s(), body["SecretId"], version)
    return _named(found) | {"VersionId": version.id, "VersionStages": _stages(found, version.id)}


def _version(context: Context, body: Body) -> SecretVersion | None:
    text, binary = body.get("SecretString"), body.get("SecretBinary")
    if text is not None and binary is not None:
        raise _invalid("You can't specify both a binary secret value and a string secret value.")
    if text is None and binary is None:
        return None
    if len(_bytes(text, binary)) > VALUE_BYTES_MAX:
        raise _invalid(f"A secret value has at most {VALUE_BYTES_MAX} bytes.")
    token = body.get("ClientRequestToken") or context.cloud.new_request_id()
    return SecretVersion(id=token, created_at_s=context.now_s(), text=text, binary=binary)


def _bytes(text: str | None, binary: str | None) -> bytes:
    try:
        return (text or "").encode() if binary is None else base64.b64decode(binary, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid("SecretBinary is not base64.") from None


def _value(context: Context, body: Body) -> Answer:
    found, version = context.cloud.secrets.value(
        context.now_s(), body["SecretId"], body.get("VersionId", ""), body.get("VersionStage", "")
    )
    content: dict[str, object] = (
        {"SecretString": version.text}
        if version.binary is None
        else {"SecretBinary": version.binary}
    )
    return {
        **_named(found),
        **content,
        "VersionId": version.id,
        "VersionStages": _stages(found, version.id),
        "CreatedDate": version.created_at_s,
    }


def _describe(context: Context, body: Body) -> Answer:
    found = context.cloud.secrets.described(context.now_s(), body["SecretId"])
    optional = {
        "KmsKeyId": found.key,
        "Description": found.description,
        "DeletedDate": found.deleted_at_s,
    }
    return {
        **_named(found),
        **{name: value for name, value in optional.items() if value},
        "CreatedDate": found.created_at_s,
        "LastChangedDate": found.changed_at_s,
        "VersionIdsToStages": {id_: _stages(found, id_) for id_ in found.versions},
    }


def _delete(context: Context, body: Body) -> Answer:
    days, at_once = body.get("RecoveryWindowInDays"), body.get("ForceDeleteWithoutRecovery", False)
    if at_once and days is not None:
        raise _invalid(
            "You can't use ForceDeleteWithoutRecovery in conjunction with RecoveryWindowInDays."
        )
    if days is not None and not RECOVERY_DAYS_MIN <= days <= RECOVERY_DAYS:
        raise _invalid("The RecoveryWindowInDays value must be between 7 and 30 days (inclusive).")
    now_s, reference = context.now_s(), body["SecretId"]
    gone = context.cloud.secrets.delete(
        now_s, reference, RECOVERY_DAYS if days is None else days, at_once=bool(at_once)
    )
    if gone is None:
        return {"ARN": reference, "Name": reference, "DeletionDate": now_s}
    return _named(gone) | {"DeletionDate": gone.gone_at_s}


def _restore(context: Context, body: Body) -> Answer:
    return _named(context.cloud.secrets.keep(context.now_s(), body["SecretId"]))


def _named(secret: Secret) -> dict[str, object]:
    return {"ARN": secret.arn, "Name": secret.name}


def _stages(secret: Secret, version: str) -> list[str]:
    return sorted(stage for stage, id_ in secret.stages.items() if id_ == version)


def _invalid(message: str) -> Exception:
    return refused("InvalidParameterException", message)


OPERATIONS: dict[str, Callable[[Context, Body], Answer]] = {
    "CreateSecret": _create,
    "DeleteSecret": _delete,
    "DescribeSecret": _describe,
    "GetSecretValue": _value,
    "PutSecretValue": _put,
    "RestoreSecret": _restore,
}
