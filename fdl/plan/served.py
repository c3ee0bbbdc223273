"""`http:` → a small Lambda function with a URL, and its role. Pure.

It runs from the package of the function that it serves, so a revision has one package.
"""

from __future__ import annotations

import json

from fdl.model import DEFAULT_RUNTIME, Function
from fdl.plan.facts import Facts
from fdl.plan.functions import DIRECT_BYTES_MAX, Code, is_image, owners_of, stored_package
from fdl.plan.resources import DeployTarget, FunctionResource, FunctionUrl, Resource
from fdl.plan.roles import http_role
from fdl.plan.tags import tags_of
from fdl.served import http_name

HANDLER = "lambda_functions.http_api.handler.handle"
MEMORY_MIB = 512
#: A wait of `contract.http_jobs.WAIT_S_MAX`, and what is before and after it.
TIMEOUT_S = 60


def no_url(function: Function) -> str:
    """The reason why a function can have no URL; "" = it can."""
    if not function.queued:
        return "a request becomes a job, and this function has no jobs"
    if function.workflow:
        return f"runs of {function.workflow} begin with an upload: `orchgpu run`, or any S3 client"
    return "results of `completion: object` are not read by it" if function.foreign else ""


def has_url(function: Function) -> bool:
    """True on AWS for a function with a URL."""
    return function.http is not None and function.http.enabled and not no_url(function)


def served_by(
    function: Function, place: DeployTarget, code: Code, facts: Facts, results_days: int
) -> list[Resource]:
    """The role, the function and the URL; empty where there is none."""
    if place.local or function.http is None or not has_url(function):
        return []
    stored, role = stored_package(function, place, code), http_role(function, place, facts)
    by_bucket = stored.bucket != place.state_bucket or code.size > DIRECT_BYTES_MAX
    source = function.user_input[0]
    served = {
        "function": function.name,
        "input_bucket": source.path.bucket,
        "input_prefix": source.path.prefix,
        "input_suffixes": list(source.suffixes),
        "results_bucket": function.intermediate.bucket,
        "results_days": results_days,
        "outputs": [[one.path.bucket, one.path.prefix] for one in function.function.output],
    }
    answers = FunctionResource(
        name=http_name(function.name),
        role=place.role_arn(role.full_name),
        memory_mib=MEMORY_MIB,
        timeout_s=TIMEOUT_S,
        runtime=DEFAULT_RUNTIME,
        handler=HANDLER,
        package=code.sha256,
        code_at=(stored.bucket, stored.object_key) if by_bucket or is_image(function) else (),
        architectures=function.function.architectures[:1] or ("x86_64",),
        description=f"HTTP of {function.name}",
        variables={
            "ORCHGPU_ACCOUNT": place.account,
            "ORCHGPU_BUCKET_OWNERS": json.dumps(owners_of(function), separators=(",", ":")),
            "ORCHGPU_HTTP": json.dumps(served, separators=(",", ":")),
        },
        tags=tags_of(function),
    )
    url = FunctionUrl(function=http_name(function.name), origins=function.http.origins)
    return [role, answers, url]
