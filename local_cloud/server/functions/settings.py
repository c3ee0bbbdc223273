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
from local_cloud.sandbox.code import Code
from local_cloud.sandbox.image_package import package_location
from local_cloud.sandbox.runtime import log_group
from local_cloud.server.context import Context
from local_cloud.server.services import Body

#: Names that a function's variables may not have (Lambda developer guide).
_RESERVED = re.compile(
    r"_HANDLER|_X_AMZN_TRACE_ID|AWS_(DEFAULT_REGION|REGION|EXECUTION_ENV|ACCESS_KEY"
    r"|ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|LAMBDA_RUNTIME_API"
    r"|LAMBDA_FUNCTION_(NAME|MEMORY_SIZE|VERSION)|LAMBDA_INITIALIZATION_TYPE"
    r"|LAMBDA_LOG_(GROUP|STREAM)_NAME)|LAMBDA_(TASK_ROOT|RUNTIME_DIR)"
)
CODE_BYTES_MAX = 256 * 2**20  #: of a zip from S3 (AWS: 250 MB unpacked)
#: The fields of a request that are not settings.
_NOT_SETTINGS = frozenset({"Code", "FunctionName", "Layers", "Publish", "RevisionId", "Tags"})
_DEFAULTS: dict[str, object] = {
    "Architectures": ["x86_64"],
    "Description": "",
    "EphemeralStorage": {"Size": 512},
    "MemorySize": 128,
    "PackageType": "Zip",
    "Timeout": 3,
    "TracingConfig": {"Mode": "PassThrough"},
}


def given_in(body: Body) -> dict[str, Any]:
    """The settings of a request, by AWS's names. Raises InvalidParameterValueException."""
    variables = body.get("Environment", {}).get("Variables", {})
    reserved = sorted(name for name in variables if _RESERVED.fullmatch(name))
    if reserved:
        raise bad(f"These variables are reserved by Lambda: {', '.join(reserved)}")
    if sum(len(name) + len(text) for name, text in variables.items()) > 4096:
        raise bad("The environment variables are larger than 4 KB.")
    if body.get("Layers"):
        raise bad(f"Layer version {body['Layers'][0]} does not exist.")
    logging = body.get("LoggingConfig", {})
    if logging.get("LogFormat") != "JSON" and any(name.endswith("Level") for name in logging):
        raise bad("To use log levels, set the log format to JSON.")
    return {name: value for name, value in body.items() if name not in _NOT_SETTINGS}


def code_of(context: Context, code: Body) -> Code:
    """The zip in a Code block: ZipFile, or an object in S3."""
    if "ZipFile" in code:
        try:
            return context.runner.code.add(base64.b64decode(code["ZipFile"], validate=True))
        except binascii.Error:
            raise bad("ZipFile is not base64") from None
    if "S3Bucket" in code and "S3Key" in code:
        version = code.get("S3ObjectVersion", "")
        return context.runner.code.add(_object(context, code["S3Bucket"], code["S3Key"], version))
    raise bad("Please provide a source for function code.")


def package_of_image(context: Context, image: str, tags: Mapping[str, str]) -> Code:
    """The zip that an image function runs here. Raises InvalidParameterValueException."""
    try:
        place = package_location(tags, image)
    except AppError as error:
        raise bad(error.message) from error
    return context.runner.code.add(_object(context, place.bucket, place.key, ""))


def _object(context: Context, bucket: str, key: str, version: str) -> bytes:
    try:
        stored = context.cloud.read_object(context.now_s(), bucket, key, version)
    except CloudError as error:
        raise bad(f"GetObject of the code: {error.code}: {error.message}") from error
    if stored.size > CODE_BYTES_MAX:
        raise bad(f"s3://{bucket}/{key} is larger than {CODE_BYTES_MAX} bytes")
    return context.bodies.read(stored.segments)


def configuration(context: Context, function: LambdaFunction) -> dict[str, object]:
    """Lambda's FunctionConfiguration: the settings as they were given, and what they led to."""
    settings, states, now_s = function.settings, context.cloud.functions.states, context.now_s()
    given, updating = settings.given, states.updating(now_s, function.name)
    modified = datetime.datetime.fromtimestamp(function.modified_at_s, tz=datetime.UTC)
    shown: dict[str, object] = {
        **_DEFAULTS,
        **given,
        "FunctionName": function.name,
        "FunctionArn": function.arn,
        "CodeSize": settings.code_bytes,
        "CodeSha256": settings.code_sha256,
        "LastModified": f"{modified:%Y-%m-%dT%H:%M:%S}.{modified.microsecond // 1000:03d}+0000",
        "Version": "$LATEST",
        "RevisionId": function.revision,
        "State": states.state(now_s, function.name),
        "LastUpdateStatus": "InProgress" if updating else "Successful",
        "LoggingConfig": _logging(given.get("LoggingConfig", {}), function.name),
    }
    if function.in_vpc:
        shown["VpcConfig"] = {**given["VpcConfig"], "VpcId": "vpc-0"}
    if image_config := shown.pop("ImageConfig", None):
        shown["ImageConfigResponse"] = {"ImageConfig": image_config}
    unset = {
        "Environment": not settings.variables,
        "KMSKeyArn": not given.get("KMSKeyArn"),
        "VpcConfig": not function.in_vpc,
    }
    return {name: value for name, value in shown.items() if not unset.get(name)}


def _logging(given: Mapping[str, str], function: str) -> dict[str, str]:
    """A JSON log has levels, INFO when not given."""
    levels = {"ApplicationLogLevel": "INFO", "SystemLogLevel": "INFO"}
    is_json = given.get("LogFormat") == "JSON"
    defaults = {"LogFormat": "Text", "LogGroup": log_group(function)}
    return {**defaults, **(levels if is_json else {}), **given}


def new_settings(context: Context, body: Body) -> FunctionSettings:
    """CreateFunction's settings, with the code stored."""
    given, code = given_in(body), body["Code"]
    image = code.get("ImageUri", "") if body.get("PackageType") == "Image" else ""
    if image:
        stored = package_of_image(context, image, body.get("Tags", {}))
    else:
        for name in ("Runtime", "Handler"):
            if not body.get(name):
                raise bad(f"{name} is mandatory for functions created with deployment packages")
        if not str(body["Runtime"]).startswith("python3."):
            raise bad(f"the embedded cloud runs Python functions only, not {body['Runtime']!r}")
        stored = code_of(context, code)
    return FunctionSettings(
        name=body["FunctionName"],
        given=given,
        image_uri=image,
        code_sha256=stored.sha256,
        code_bytes=stored.size,
    )


def bad(message: str) -> CloudError:
    """Lambda's error for invalid input."""
    return refused("InvalidParameterValueException", message)
