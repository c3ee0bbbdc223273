"""CreateFunction and UpdateFunction… to settings, and settings to a FunctionConfiguration."""

from __future__ import annotations

import base64
import binascii
import datetime
import re
from collections.abc import Mapping
from typing import Any

from corekit.errors import AppError
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.functions.functions import FunctionSettings, LambdaFunction
from local_cloud.sandbox.image_package import RUNNER_HANDLER, package_location
from local_cloud.sandbox.runtime import log_group
from local_cloud.server.context import Context
from local_cloud.server.functions.runner import Code, CodeStore
from local_cloud.server.shapes import Body, Shape

#: Names that a function's variables may not have (Lambda developer guide).
_RESERVED = re.compile(
    r"_HANDLER|_X_AMZN_TRACE_ID|AWS_(DEFAULT_REGION|REGION|EXECUTION_ENV|ACCESS_KEY"
    r"|ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|LAMBDA_RUNTIME_API"
    r"|LAMBDA_FUNCTION_(NAME|MEMORY_SIZE|VERSION)|LAMBDA_INITIALIZATION_TYPE"
    r"|LAMBDA_LOG_(GROUP|STREAM)_NAME)|LAMBDA_(TASK_ROOT|RUNTIME_DIR)"
)
CODE_BYTES_MAX = 256 * 2**20  #: of a zip from S3 (AWS: 250 MB unpacked)


_DESTINATION: Shape = {"Destination": str}
#: Every field of a Lambda request that is read.
SHAPE: dict[str, Shape] = {
    "Action": str,
    "Architectures": [str],
    "Code": {
        "ImageUri": str,
        "S3Bucket": str,
        "S3Key": str,
        "S3ObjectVersion": str,
        "ZipFile": str,
    },
    "Description": str,
    "DestinationConfig": {"OnFailure": _DESTINATION, "OnSuccess": _DESTINATION},
    "DryRun": bool,
    "Environment": {"Variables": {"*": str}},
    "EphemeralStorage": {"Size": int},
    "FunctionName": str,
    "Handler": str,
    "ImageConfig": {"Command": [str]},
    "ImageUri": str,
    "KMSKeyArn": str,
    "Layers": [str],
    "LoggingConfig": {
        "ApplicationLogLevel": str,
        "LogFormat": str,
        "LogGroup": str,
        "SystemLogLevel": str,
    },
    "MaximumEventAgeInSeconds": int,
    "MaximumRetryAttempts": int,
    "MemorySize": int,
    "PackageType": str,
    "Principal": str,
    "ReservedConcurrentExecutions": int,
    "Role": str,
    "Runtime": str,
    "S3Bucket": str,
    "S3Key": str,
    "S3ObjectVersion": str,
    "SourceAccount": str,
    "SourceArn": str,
    "StatementId": str,
    "Tags": {"*": str},
    "Timeout": int,
    "TracingConfig": {"Mode": str},
    "VpcConfig": {"SecurityGroupIds": [str], "SubnetIds": [str]},
    "ZipFile": str,
}


def changes_of(body: Body) -> dict[str, Any]:
    """Fields of FunctionSettings that the body names. Raises InvalidParameterValueException."""
    plain = {
        "Role": "role",
        "Handler": "handler",
        "Runtime": "runtime",
        "Description": "description",
        "Timeout": "timeout_s",
        "MemorySize": "memory_mib",
        "KMSKeyArn": "kms_key",
    }
    changes = {field: body[name] for name, field in plain.items() if body.get(name) is not None}
    if "Environment" in body:
        changes["variables"] = _variables((body["Environment"] or {}).get("Variables") or {})
    if body.get("EphemeralStorage"):
        changes["storage_mib"] = body["EphemeralStorage"]["Size"]
    if body.get("VpcConfig") is not None:
        changes["subnet_ids"] = tuple(body["VpcConfig"].get("SubnetIds") or ())
        changes["security_group_ids"] = tuple(body["VpcConfig"].get("SecurityGroupIds") or ())
    if body.get("Architectures"):
        changes["architectures"] = tuple(body["Architectures"])
    if "ImageConfig" in body:
        command = body["ImageConfig"].get("Command")
        changes["handler"] = command[0] if command else RUNNER_HANDLER
    if "TracingConfig" in body:
        changes["tracing"] = body["TracingConfig"].get("Mode", "PassThrough")
    if "LoggingConfig" in body:
        changes |= _logging(body["LoggingConfig"])
    if body.get("Layers"):
        raise bad(f"Layer version {body['Layers'][0]} does not exist.")
    role = changes.get("role", "")
    if "Role" in body and not re.fullmatch(r"arn:aws[a-z-]*:iam::\d{12}:role/.+", role):
        raise refused("ValidationException", f"Value {role!r} at 'role' is not a role's ARN")
    return changes


def _logging(given: Mapping[str, str]) -> dict[str, str]:
    """A JSON log has levels, INFO when not given."""
    form = given.get("LogFormat", "Text")
    level = "INFO" if form == "JSON" else ""
    return {
        "log_format": form,
        "log_level": given.get("ApplicationLogLevel", level),
        "log_system_level": given.get("SystemLogLevel", level),
        "log_group": given.get("LogGroup", ""),
    }


def _variables(given: Mapping[str, str]) -> dict[str, str]:
    reserved = sorted(name for name in given if _RESERVED.fullmatch(name))
    if reserved:
        raise bad(
            "Lambda was unable to configure your environment variables because the environment"
            " variables you have provided contains reserved keys that are currently not supported"
            f" for modification. Reserved keys used in this request: {', '.join(reserved)}"
        )
    if sum(len(name) + len(text) for name, text in given.items()) > 4096:
        raise bad("The environment variables are larger than 4 KB.")
    return dict(given)


def code_of(context: Context, store: CodeStore, code: Body) -> Code:
    """The zip in a Code block: ZipFile, or an object in S3."""
    if "ZipFile" in code:
        try:
            return store.add(base64.b64decode(code["ZipFile"], validate=True))
        except binascii.Error:
            raise bad("ZipFile is not base64") from None
    if "S3Bucket" in code and "S3Key" in code:
        version = code.get("S3ObjectVersion", "")
        return store.add(_object(context, code["S3Bucket"], code["S3Key"], version))
    raise bad("Please provide a source for function code.")


def package_of_image(
    context: Context, store: CodeStore, image: str, tags: Mapping[str, str]
) -> Code:
    """The zip that an image function runs here. Raises InvalidParameterValueException."""
    try:
        place = package_location(tags, image)
    except AppError as error:
        raise bad(error.message) from error
    return store.add(_object(context, place.bucket, place.key, ""))


def _object(context: Context, bucket: str, key: str, version: str) -> bytes:
    try:
        found = context.cloud.read_object(context.now_s(), bucket, key, version)
    except CloudError as error:
        raise bad(
            f"Error occurred while GetObject. S3 Error Code: {error.code}. S3 Error Message:"
            f" {error.message}"
        ) from error
    if found.size > CODE_BYTES_MAX:
        raise bad(f"s3://{bucket}/{key} is larger than {CODE_BYTES_MAX} bytes")
    return context.bodies.read(found.segments)


def configuration(context: Context, function: LambdaFunction) -> dict[str, object]:
    """Lambda's FunctionConfiguration."""
    settings, states, now_s = function.settings, context.cloud.functions.states, context.now_s()
    updating = states.updating(now_s, function.name)
    modified = datetime.datetime.fromtimestamp(function.modified_at_s, tz=datetime.UTC)
    found: dict[str, object] = {
        "FunctionName": function.name,
        "FunctionArn": function.arn,
        "Role": settings.role,
        "CodeSize": settings.code_bytes,
        "Description": settings.description,
        "Timeout": settings.timeout_s,
        "MemorySize": settings.memory_mib,
        "LastModified": f"{modified:%Y-%m-%dT%H:%M:%S}.{modified.microsecond // 1000:03d}+0000",
        "CodeSha256": settings.code_sha256,
        "Version": "$LATEST",
        "TracingConfig": {"Mode": settings.tracing},
        "RevisionId": function.revision,
        "State": states.state(now_s, function.name),
        "LastUpdateStatus": "InProgress" if updating else "Successful",
        "PackageType": settings.package_type,
        "Architectures": list(settings.architectures),
        "EphemeralStorage": {"Size": settings.storage_mib},
    }
    if settings.package_type == "Zip":
        found |= {"Runtime": settings.runtime, "Handler": settings.handler}
    elif settings.handler:
        found["ImageConfigResponse"] = {"ImageConfig": {"Command": [settings.handler]}}
    if function.in_vpc:
        subnets, groups = list(settings.subnet_ids), list(settings.security_group_ids)
        found["VpcConfig"] = {"SubnetIds": subnets, "SecurityGroupIds": groups, "VpcId": "vpc-0"}
    logging = {
        "LogFormat": settings.log_format,
        "ApplicationLogLevel": settings.log_level,
        "SystemLogLevel": settings.log_system_level,
        "LogGroup": settings.log_group or log_group(function.name),
    }
    found["LoggingConfig"] = {name: value for name, value in logging.items() if value}
    if settings.kms_key:
        found["KMSKeyArn"] = settings.kms_key
    if settings.variables:
        found["Environment"] = {"Variables": dict(settings.variables)}
    return found


def new_settings(context: Context, store: CodeStore, body: Body) -> FunctionSettings:
    """CreateFunction's settings, with the code stored."""
    package = body.get("PackageType") or "Zip"
    code = body.get("Code") or {}
    changes = changes_of(body)
    if package == "Image":
        return _image_settings(context, store, body, changes)
    for name in ("Runtime", "Handler", "Role"):
        if not body.get(name):
            raise bad(f"{name} is mandatory for functions created with deployment packages")
    if not str(body["Runtime"]).startswith("python3."):
        raise bad(f"the embedded cloud runs Python functions only, not {body['Runtime']!r}")
    stored = code_of(context, store, code)
    return FunctionSettings(
        name=body["FunctionName"], code_sha256=stored.sha256, code_bytes=stored.size, **changes
    )


def _image_settings(
    context: Context, store: CodeStore, body: Body, changes: dict[str, Any]
) -> FunctionSettings:
    image = (body.get("Code") or {}).get("ImageUri", "")
    stored = package_of_image(context, store, image, body.get("Tags") or {})
    return FunctionSettings(
        name=body["FunctionName"],
        package_type="Image",
        image_uri=image,
        code_sha256=stored.sha256,
        code_bytes=stored.size,
        **{"handler": RUNNER_HANDLER, **changes},
    )


def bad(message: str) -> CloudError:
    """Lambda's error for invalid input."""
    return refused("InvalidParameterValueException", message)
