"""Function → its Lambda function: the code, the settings and the process's variables. Pure."""

from __future__ import annotations

import base64
import json
import re

from contract.secrets.reference import VARIABLE
from corekit.decode import encode
from corekit.values import Value, replace
from fdl.model import BUILTIN, LAMBDA_MEMORY_MIB_MAX, Function, Job, Logging, Storage
from fdl.plan import resources as kinds
from fdl.plan.advance import advance_s, lambda_timeout_s
from fdl.plan.facts import Facts
from fdl.plan.groups import STEPS_FILE, listed
from fdl.plan.resources import DeployTarget, digest
from fdl.plan.roles import role_of
from fdl.plan.tags import DEPLOYED_TAG, PACKAGE_TAG, tags_of
from gpu_scheduler.model import Request

HANDLER = "lambda_functions.gpu_runner.handler.handle"
#: Role of functions on a cloud that is not AWS and whose file names none.
LOCAL_ROLE = "orchgpu-function"
#: Lambda takes 50 MB directly, base64 and request included; above this the zip goes through S3.
DIRECT_BYTES_MAX = 32 * 2**20
#: Of the workload of a function that names none.
_LABEL_CHARACTERS_MAX = 40
_WORKLOAD_DIGITS = 12
#: Stands for the account where none is known yet: as long as any.
ANY_ACCOUNT = "0" * 12


class Code(Value):
    """The built package of one function."""

    sha256: str  #: hex
    size: int  #: bytes
    contents: str = ""  #: sha256 of the user's own files in it, hex; "" = there are none


def owners_of(function: Function) -> dict[str, str]:
    """The accounts of the buckets that the file declares to be of other accounts."""
    storages = [*function.user_input, *function.function.output]
    return {s.path.bucket: s.owner for s in storages if s.owner is not None}


def calls_max_of(function: Function) -> int:
    """Calls that an endpoint answers side by side; 0 = the function is none.

    Not declared: where the device joins them in batches, as many as one has, up to 8, and one for
    each 512 MiB of the function's memory.
    """
    if (calls := function.endpoint) is None or not calls.enabled:
        return 0
    if calls.calls_max is not None:
        return calls.calls_max
    if (batch := function.gpu.request.batch if function.gpu else None) is None:
        return 1
    return max(1, min(batch.size_max, 8, function.function.memory_mib // 512))


def variables_of(function: Function, account: str = ANY_ACCOUNT) -> dict[str, str]:
    """The Lambda process's environment: the declared one and what the runner needs."""
    declared = function.function
    variables = dict(declared.variables)
    variables["ORCHGPU_MODE"] = "job" if function.queued else "plain"
    variables["ORCHGPU_TIMEOUT_THRESHOLD_S"] = str(declared.container.timeout_threshold_s)
    if ahead_s := advance_s(function):
        variables["ORCHGPU_ADVANCE_S"] = str(ahead_s)
    if function.queued and (checkpoint_s := (function.job or Job()).checkpoint_s):
        variables["ORCHGPU_CHECKPOINT_S"] = str(checkpoint_s)
    if (calls := function.endpoint) and calls.enabled:
        variables["ORCHGPU_ENDPOINT_IDLE_S"] = str(calls.idle_s)
        variables["ORCHGPU_ENDPOINT_CALL_S"] = str(calls.call_s)
        if (calls_max := calls_max_of(function)) > 1:
            variables["ORCHGPU_ENDPOINT_CALLS_MAX"] = str(calls_max)
    variables["ORCHGPU_LOG_LEVEL"] = declared.log_level
    variables["ORCHGPU_ACCOUNT"] = account
    if owners := owners_of(function):
        variables["ORCHGPU_BUCKET_OWNERS"] = _compact(owners)
    if declared.init_script is not None:
        variables["ORCHGPU_SCRIPT"] = "script/" + declared.init_script.rsplit("/", 1)[-1]
    if function.foreign:
        variables |= _foreign_variables(function)
    elif declared.handler is not None:
        variables["ORCHGPU_HANDLER"] = declared.handler
    if secrets := function.secrets_of_steps:
        variables[VARIABLE] = _compact(
            {step: {name: str(one) for name, one in own.items()} for step, own in secrets.items()}
        )
    if function.steps:
        variables["ORCHGPU_STEPS"] = STEPS_FILE
    elif not function.queued:
        variables["ORCHGPU_OUTPUTS"] = _compact(
            [listed(storage) for storage in function.function.output]
        )
        variables["ORCHGPU_VARIABLES"] = _compact(dict(declared.container.variables))
    return dict(sorted(variables.items()))


def _foreign_variables(function: Function) -> dict[str, str]:
    """The user's variables, and for an image SCAR's supervisor's settings, without credentials."""
    declared = function.function
    variables = dict(declared.container.variables)
    if is_image(function):
        staged = f"{function.intermediate.bucket}/staging/{function.name}"
        settings = {
            "name": function.name,
            "log_level": declared.log_level,
            "execution_mode": "lambda",
            "container": {"timeout_threshold": declared.container.timeout_threshold_s},
            "input": [{"storage_provider": "s3", "path": staged}],
            "output": [_scar_output(storage) for storage in declared.output],
            "storage_providers": {},
        }
        # the supervisor reads YAML, which JSON is
        variables["FDL"] = base64.b64encode(_compact(settings).encode()).decode()
    return variables


def _scar_output(storage: Storage) -> dict[str, object]:
    output: dict[str, object] = {"storage_provider": "s3", "path": str(storage.path)}
    filters = {"suffix": list(storage.suffixes), "prefix": list(storage.prefixes)}
    return output | {key: value for key, value in filters.items() if value}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def function_of(
    function: Function, place: DeployTarget, code: Code, facts: Facts
) -> kinds.FunctionResource:
    """The Lambda function itself."""
    declared = function.function
    image = is_image(function)
    package = code.sha256 if has_package(function, place) else ""
    stored = stored_package(function, place, code)
    by_bucket = stored.bucket != place.state_bucket or code.size > DIRECT_BYTES_MAX
    tags = tags_of(function)
    if place.local and package:
        tags[PACKAGE_TAG] = f"s3://{stored.bucket}/{stored.object_key}"
    if image and package:
        tags[DEPLOYED_TAG] = code.sha256
    return kinds.FunctionResource(
        name=function.name,
        role=role_arn(function, place, facts),
        memory_mib=min(declared.memory_mib, LAMBDA_MEMORY_MIB_MAX),
        timeout_s=lambda_timeout_s(function) + advance_s(function),
        runtime="" if image else declared.runtime,
        handler=(declared.handler if function.foreign else None) or HANDLER if package else "",
        package="" if image else package,
        image=_image_of(function, facts) if image else "",
        code_at=(stored.bucket, stored.object_key) if by_bucket and not image else (),
        architectures=declared.architectures[:1] or ("x86_64",),
        description=declared.description,
        layers=() if image else declared.layers,
        variables=variables_of(function, place.account),
        subnet_ids=declared.vpc.subnet_ids,
        security_group_ids=declared.vpc.security_group_ids,
        file_systems=tuple((fs.arn, fs.local_mount_path) for fs in declared.file_system),
        tags=tags,
        storage_mib=declared.ephemeral_storage_mib,
        reserved=declared.reserved_concurrency,
        kms_key=declared.kms_key or "",
        log_format=declared.logging.format,
        log_level=_level(declared.logging, declared.logging.level),
        log_system_level=_level(declared.logging, declared.logging.system_level),
        log_group=declared.logging.group or "",
        tracing=declared.tracing,
    )


def host_of(function: Function, place: DeployTarget, code: Code, facts: Facts) -> dict[str, object]:
    """Part of a record: the run on a host or by a service, as `orchgpu.core.function.HostRun` has
    it; empty for code that runs in Lambda alone."""
    if not function.on_host and function.service is None:
        return {}
    stored = stored_package(function, place, code)
    variables = variables_of(function, place.account)
    variables.pop("ORCHGPU_ADVANCE_S", None)  # there it begins with its device
    run = {
        "package_bucket": stored.bucket,
        "package_key": stored.object_key,
        "process": variables,
        "role": role_arn(function, place, facts),
        "log_group": "" if kinds.LogRetention.kind in place.lacks else function.log_group,
        "storage_mib": function.function.ephemeral_storage_mib,
        "programs": list(function.host.programs),
        "network": function.host.network,
        "image": function.host.image or "",
        "command": list(function.host.command),
        # others keep their revision
        **({"warm": True} if function.host.warm else {}),
        **({"batch": encode(batch)} if (batch := function.host.batch) is not None else {}),
        **({"service": served.url} if (served := function.service) is not None else {}),
        **({"call_s": calls.call_s} if (calls := function.endpoint) and calls.enabled else {}),
        **({"calls_max": most} if (most := calls_max_of(function)) > 1 else {}),
    }
    return {"execution": function.execution, "host": run}


def stated_of(function: Function) -> dict[str, object]:
    """Part of a record: cap of cost, objectives, stated times, and what hosts keep warm; nothing
    without them, so that others keep their revision."""
    gpu, job = function.gpu, function.job
    way = {} if job is None or job.way_s is None else {"way_s": job.way_s}
    if gpu is None:
        return {**way}
    return {
        **({} if gpu.max_cost_usd is None else {"max_cost_usd": gpu.max_cost_usd}),
        **way,
        **({} if gpu.slo is None else {"slo": encode(gpu.slo)}),
        **({"times": {name: encode(one) for name, one in gpu.times.items()}} if gpu.times else {}),
        **(
            {"warm_min": gpu.warm_min, "warm_loads": [*map(list, gpu.loads)]}
            if gpu.warm_min
            else {}
        ),
    }


def _level(logging: Logging, level: str | None) -> str:
    """The level that Lambda shows; only a log in JSON has one."""
    return (level or "INFO") if logging.format == "JSON" else ""


def _image_of(function: Function, facts: Facts) -> str:
    """The image with the digest that its tag names now, so that a moved tag is a change."""
    image = function.function.container.image or ""
    return facts.images.get(image, image)


def stored_package(function: Function, place: DeployTarget, code: Code) -> kinds.Package:
    """The location of a zip that goes through a bucket."""
    bucket = function.function.deployment.bucket or place.state_bucket
    return kinds.Package(bucket=bucket, sha256=code.sha256)


def is_image(function: Function) -> bool:
    """True for a function that Lambda runs from an image."""
    return function.function.runtime == "image"


def has_package(function: Function, place: DeployTarget) -> bool:
    """True where the function's code is a zip of ours."""
    return place.local or not is_image(function)


def makes_role(function: Function, place: DeployTarget) -> bool:
    """True for a role of ours: its own policy allows what it needs, and no other policy names it.

    AWS refuses a policy with the name of a role that was made a moment ago.
    """
    return function.iam.create and not place.local


def role_arn(function: Function, place: DeployTarget, facts: Facts) -> str:
    """The ARN of the role that the function runs under."""
    if makes_role(function, place):
        return place.role_arn(role_of(function, place, facts).full_name)
    return function.iam.role or place.role_arn(LOCAL_ROLE)


def asked_of(function: Function) -> Request:
    """The request of the file, with the programs of a host that must run the code.

    Of `auto` an attempt on a host alone needs them.
    """
    if function.gpu is None:
        return Request(count=0)
    return request_on_host(function) if function.execution == "host" else function.gpu.request


def request_on_host(function: Function) -> Request:
    """The request of an attempt on a host, of a function with a device."""
    assert function.gpu is not None, "it has a device"
    asked = function.gpu.request
    needed = (name for name in function.host.programs if name not in asked.programs)
    return replace(asked, programs=(*asked.programs, *needed))


def workload_of(function: Function, contents: str) -> str:
    """The derived name: a label for people, and a hash of all that decides what is loaded.

    Those are the user's own files (`contents`: scripts, models and data of the package, of all
    steps of a group), the image, the configuration and the middleware. Functions that are equal in
    them have the same workload; the name, sizes, times and storage of a function are not in it.
    """
    declared = function.function
    configuration = {
        "contents": contents,
        "image": function.image,
        "handler": declared.handler,
        "layers": list(declared.layers),
        "process": dict(declared.variables),
        "script": dict(declared.container.variables),
        "middleware": function.gpu.middleware if function.gpu is not None else BUILTIN,
        "warm_key": function.gpu.request.warm_key if function.gpu is not None else None,
        **({"host": encode(function.host)} if function.host.image is not None else {}),
    }
    return f"{_label(function)}-{digest(configuration)[:_WORKLOAD_DIGITS]}"


def _label(function: Function) -> str:
    """The script, handler, group or image, without folders and suffix."""
    image = function.host.image or function.image
    named = function.name if function.steps else function.runs or image or function.name
    last = named.rpartition("/")[2].partition(":")[0].partition("@")[0].partition(".")[0]
    return re.sub(r"[^\w-]+", "-", last, flags=re.ASCII)[:_LABEL_CHARACTERS_MAX] or "function"
