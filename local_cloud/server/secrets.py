"""The calls of SSM Parameter Store and of Secrets Manager."""

from __future__ import annotations

import base64
import binascii

from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.secrets import (
    CURRENT,
    RECOVERY_DAYS,
    SECRET_BYTES_MAX,
    SECURE,
    Parameter,
    ParameterVersion,
    Secret,
    SecretValue,
)
from local_cloud.server.context import Context
from local_cloud.server.services import Answer, Body, JsonService

# ---------------------------------------------------------------------- parameters


def _put_parameter(context: Context, body: Body) -> Answer:
    wanted = Parameter(
        name=body["Name"],
        type=body.get("Type", ""),
        key=body.get("KeyId", ""),
        tier=body.get("Tier", "Standard"),
    )
    overwrite = body.get("Overwrite", False)
    version = context.cloud.parameters.put(
        context.now_s(), wanted, body["Value"], overwrite=overwrite
    )
    return {"Version": version.number, "Tier": wanted.tier}


def _get_parameter(context: Context, body: Body) -> Answer:
    name = body["Name"]
    parameter, version = context.cloud.parameters.get(name)
    shown = _shown(context, parameter, version)
    shown["Value"] = parameter.shown(version, decrypted=body.get("WithDecryption", False))
    if not name.startswith("arn:") and ":" in name:
        shown["Selector"] = ":" + name.partition(":")[2]
    return {"Parameter": shown}


def _shown(context: Context, parameter: Parameter, version: ParameterVersion) -> dict[str, object]:
    return {
        "Name": parameter.name,
        "Type": parameter.type,
        "Version": version.number,
        "LastModifiedDate": version.modified_at_s,
        "ARN": context.cloud.parameters.arn(parameter),
        "DataType": "text",
    }


def _delete_parameter(context: Context, body: Body) -> None:
    context.cloud.parameters.delete(body["Name"])


def _describe_parameters(context: Context, body: Body) -> Answer:
    """All, or those of some names."""
    parameters = context.cloud.parameters.all()
    for wanted in body.get("ParameterFilters", ()):
        if wanted["Key"] != "Name" or wanted.get("Option", "Equals") != "Equals":
            text = f"ssm DescribeParameters with the filter {wanted['Key']} {wanted.get('Option')}"
            raise not_implemented(text)
        parameters = [each for each in parameters if each.name in wanted.get("Values", ())]
    return {"Parameters": [_described(context, each) for each in parameters]}


def _described(context: Context, parameter: Parameter) -> Answer:
    shown = _shown(context, parameter, parameter.versions[-1]) | {"Tier": parameter.tier}
    return shown | ({"KeyId": parameter.key} if parameter.type == SECURE else {})


PARAMETERS = JsonService(
    names=("ssm",),
    invalid="ValidationException",
    missing="ValidationException",
    operations={
        "DeleteParameter": _delete_parameter,
        "DescribeParameters": _describe_parameters,
        "GetParameter": _get_parameter,
        "PutParameter": _put_parameter,
    },
)

# ---------------------------------------------------------------------- secrets


def _create_secret(context: Context, body: Body) -> Answer:
    value = _value(context, body)
    key = body.get("KmsKeyId", "")
    secret = context.cloud.secrets.create(context.now_s(), body["Name"], value, key)
    return _named(secret) | ({"VersionId": value.id} if value else {})


def _put_secret(context: Context, body: Body) -> Answer:
    value = _value(context, body)
    if value is None:
        raise _invalid("You must provide either SecretString or SecretBinary.")
    secret = context.cloud.secrets.put(context.now_s(), body["SecretId"], value)
    return _named(secret) | {"VersionId": value.id, "VersionStages": [CURRENT]}


def _value(context: Context, body: Body) -> SecretValue | None:
    text, binary = body.get("SecretString"), body.get("SecretBinary")
    if text is None and binary is None:
        return None
    if text is not None and binary is not None:
        raise _invalid("You can't specify both a binary secret value and a string secret value.")
    try:
        data = (text or "").encode() if binary is None else base64.b64decode(binary, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid("SecretBinary is not base64.") from None
    if len(data) > SECRET_BYTES_MAX:
        raise _invalid(f"A secret value has at most {SECRET_BYTES_MAX} bytes.")
    token = body.get("ClientRequestToken") or context.cloud.new_request_id()
    return SecretValue(id=token, created_at_s=context.now_s(), text=text, binary=binary)


def _get_secret(context: Context, body: Body) -> Answer:
    secret = context.cloud.secrets.get(context.now_s(), body["SecretId"])
    value = secret.value
    wanted = body.get("VersionId") or body.get("VersionStage", CURRENT)
    if value is None or wanted not in (CURRENT, value.id):
        text = f"Secrets Manager can't find the specified secret value for {wanted}"
        raise refused("ResourceNotFoundException", text)
    content = {"SecretString": value.text, "SecretBinary": value.binary}
    return {
        **_named(secret),
        **{name: text for name, text in content.items() if text is not None},
        "VersionId": value.id,
        "VersionStages": [CURRENT],
        "CreatedDate": value.created_at_s,
    }


def _describe_secret(context: Context, body: Body) -> Answer:
    secret = context.cloud.secrets.described(context.now_s(), body["SecretId"])
    optional = {"KmsKeyId": secret.key, "DeletedDate": secret.deleted_at_s}
    return {
        **_named(secret),
        **{name: value for name, value in optional.items() if value},
        "CreatedDate": secret.created_at_s,
        "LastChangedDate": secret.changed_at_s,
        "VersionIdsToStages": {secret.value.id: [CURRENT]} if secret.value else {},
    }


def _delete_secret(context: Context, body: Body) -> Answer:
    days = body.get("RecoveryWindowInDays", RECOVERY_DAYS)
    if body.get("ForceDeleteWithoutRecovery", False):
        days = 0
    elif not 7 <= days <= 30:
        raise _invalid("The RecoveryWindowInDays value must be between 7 and 30 days (inclusive).")
    secret = context.cloud.secrets.delete(context.now_s(), body["SecretId"], days)
    return _named(secret) | {"DeletionDate": secret.gone_at_s}


def _restore_secret(context: Context, body: Body) -> Answer:
    return _named(context.cloud.secrets.restore_deleted(context.now_s(), body["SecretId"]))


def _named(secret: Secret) -> dict[str, object]:
    return {"ARN": secret.arn, "Name": secret.name}


def _invalid(message: str) -> CloudError:
    return refused("InvalidParameterException", message)


SECRETS = JsonService(
    names=("secretsmanager",),
    invalid="InvalidParameterException",
    missing="InvalidParameterException",
    operations={
        "CreateSecret": _create_secret,
        "DeleteSecret": _delete_secret,
        "DescribeSecret": _describe_secret,
        "GetSecretValue": _get_secret,
        "PutSecretValue": _put_secret,
        "RestoreSecret": _restore_secret,
    },
)
