"""The settings of a Lambda function: as arguments of AWS's calls, and read from its answers."""

from __future__ import annotations

import base64

from fdl.plan.resources import FunctionResource
from fdl.plan.tags import own_tags
from orchgpu.adapters.aws.api import Shape


def configuration(function: FunctionResource) -> Shape:
    """The arguments that CreateFunction and UpdateFunctionConfiguration share."""
    configuration: Shape = {
        "Role": function.role,
        "MemorySize": function.memory_mib,
        "Timeout": function.timeout_s,
        "Description": function.description,
        "Environment": {"Variables": dict(function.variables)},
        "EphemeralStorage": {"Size": function.storage_mib},
        "TracingConfig": {"Mode": function.tracing},
        "LoggingConfig": _logging(function),
    }
    if function.kms_key:
        configuration["KMSKeyArn"] = function.kms_key
    if function.image and function.handler:
        configuration["ImageConfig"] = {"Command": [function.handler]}
    if not function.image:
        configuration |= {"Runtime": function.runtime, "Handler": function.handler}
        configuration["Layers"] = list(function.layers)
    if function.subnet_ids or function.security_group_ids:
        configuration["VpcConfig"] = {
            "SubnetIds": list(function.subnet_ids),
            "SecurityGroupIds": list(function.security_group_ids),
        }
    if function.file_systems:
        configuration["FileSystemConfigs"] = [
            {"Arn": arn, "LocalMountPath": path} for arn, path in function.file_systems
        ]
    return configuration


def _logging(function: FunctionResource) -> Shape:
    logging: Shape = {"LogFormat": function.log_format, "LogGroup": _group(function)}
    if function.log_format == "JSON":
        logging["ApplicationLogLevel"] = function.log_level
        logging["SystemLogLevel"] = function.log_system_level
    return logging


def _group(function: FunctionResource) -> str:
    return function.log_group or f"/aws/lambda/{function.name}"


def emptied(old: FunctionResource | None) -> Shape:
    """The arguments that remove a network, a file system, a key or an image's command again."""
    emptied: Shape = {}
    if old is not None and old.subnet_ids:
        emptied["VpcConfig"] = {"SubnetIds": [], "SecurityGroupIds": []}
    if old is not None and old.file_systems:
        emptied["FileSystemConfigs"] = []
    if old is not None and old.kms_key:
        emptied["KMSKeyArn"] = ""
    if old is not None and old.image and old.handler:
        emptied["ImageConfig"] = {}
    return emptied


def _command(function: Shape) -> str:
    config = function.get("ImageConfigResponse", {}).get("ImageConfig", {})
    return " ".join(config.get("Command", ()))


def resource_of(answer: Shape, *, resolved: bool) -> FunctionResource:
    """The function of one GetFunction; `resolved`: its image with the digest that it runs."""
    settings = answer["Configuration"]
    code = answer.get("Code", {})
    image = str(code.get("ImageUri", ""))
    if resolved and "@" not in image:
        image = str(code.get("ResolvedImageUri") or image)
    digest = base64.b64decode(settings.get("CodeSha256") or "").hex() if not image else ""
    vpc = settings.get("VpcConfig", {})
    logging = settings.get("LoggingConfig", {})
    group = str(logging.get("LogGroup", ""))
    reserved = answer.get("Concurrency", {}).get("ReservedConcurrentExecutions")
    return FunctionResource(
        name=str(settings["FunctionName"]),
        role=str(settings.get("Role", "")),
        memory_mib=int(settings.get("MemorySize", 0)),
        timeout_s=int(settings.get("Timeout", 0)),
        runtime="" if image else str(settings.get("Runtime", "")),
        handler=_command(settings) if image else str(settings.get("Handler", "")),
        package=digest,
        image=image,
        architectures=tuple(settings.get("Architectures") or ("x86_64",)),
        description=str(settings.get("Description", "")),
        layers=tuple(str(layer["Arn"]) for layer in settings.get("Layers", ())),
        variables=dict(settings.get("Environment", {}).get("Variables", {})),
        subnet_ids=tuple(vpc.get("SubnetIds", ())),
        security_group_ids=tuple(vpc.get("SecurityGroupIds", ())),
        file_systems=tuple(
            (str(fs["Arn"]), str(fs["LocalMountPath"]))
            for fs in settings.get("FileSystemConfigs", ())
        ),
        tags=own_tags(answer.get("Tags") or {}),
        storage_mib=int(settings.get("EphemeralStorage", {}).get("Size", 512)),
        reserved=None if reserved is None else int(reserved),
        kms_key=str(settings.get("KMSKeyArn") or ""),
        log_format=str(logging.get("LogFormat", "Text")),
        log_level=str(logging.get("ApplicationLogLevel") or ""),
        log_system_level=str(logging.get("SystemLogLevel") or ""),
        log_group="" if group == f"/aws/lambda/{settings['FunctionName']}" else group,
        tracing=str(settings.get("TracingConfig", {}).get("Mode", "PassThrough")),
    )
