"""The operations of Lambda."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from typing import Any

from aiohttp import web

from local_cloud.model.arns import arn_service, function_name
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.functions.event_sources import EventSource
from local_cloud.model.functions.function import PAYLOAD_BYTES_MAX, InvokeConfig
from local_cloud.model.functions.functions import LambdaFunction
from local_cloud.model.json_text import read_json
from local_cloud.model.weather import refusal
from local_cloud.sandbox.image_package import PACKAGE_TAG
from local_cloud.server.context import Context
from local_cloud.server.functions import settings
from local_cloud.server.functions.settings import bad, configuration
from local_cloud.server.services import Answer, Body, RestService

_PAYLOAD_BYTES_MAX = 6 * 2**20  #: of a synchronous invocation
_REQUEST_BYTES_MAX = 70 * 2**20  #: a zip of 50 MB in base64


def _function(context: Context, body: Body) -> LambdaFunction:
    return context.cloud.functions.get(body.get("FunctionName") or body["Resource"])


def _settled_function(context: Context, body: Body) -> LambdaFunction:
    """The same for a call that fails while it is Pending: ResourceConflictException."""
    function = _function(context, body)
    context.cloud.functions.states.check_call(context.now_s(), function.name)
    return function


# --- functions


def _create(context: Context, body: Body) -> Answer:
    made = settings.new_settings(context, body)
    function = context.cloud.functions.create(context.now_s(), made, body.get("Tags"))
    return configuration(context, function)


def _list(context: Context, _: Body) -> Answer:
    return {"Functions": [configuration(context, each) for each in context.cloud.functions.all()]}


def _get(context: Context, body: Body) -> Answer:
    function = _function(context, body)
    image, digest = function.settings.image_uri, function.settings.code_sha256
    code: dict[str, str] = {"RepositoryType": "ECR", "ImageUri": image}
    if not image:
        name = base64.b64decode(digest).hex()
        location = f"{context.endpoint}/_local_cloud/code/{name}.zip"
        code = {"RepositoryType": "S3", "Location": location}
    answer: dict[str, object] = {"Configuration": configuration(context, function), "Code": code}
    if function.tags:
        answer["Tags"] = function.tags
    if function.reserved is not None:
        answer["Concurrency"] = {"ReservedConcurrentExecutions": function.reserved}
    return answer


def _get_configuration(context: Context, body: Body) -> Answer:
    return configuration(context, _function(context, body))


def _update_configuration(context: Context, body: Body) -> Answer:
    function = _function(context, body)
    given = settings.given_in(body)
    return configuration(
        context, context.cloud.functions.update(context.now_s(), function.name, given)
    )


def _update_code(context: Context, body: Body) -> Answer:
    function = _function(context, body)
    changes: dict[str, Any] = {}
    if "ImageUri" in body:
        image = changes["image_uri"] = body["ImageUri"]
        stored = settings.package_of_image(context, image, function.tags)
    else:
        stored = settings.code_of(context, body)
    changes |= {"code_sha256": stored.sha256, "code_bytes": stored.size}
    if body.get("Architectures"):
        changes["given"] = {"Architectures": body["Architectures"]}
    if not body.get("DryRun"):
        context.cloud.functions.update(context.now_s(), function.name, **changes)
    return configuration(context, function)


def _delete(context: Context, body: Body) -> None:
    gone = context.cloud.functions.delete(body["FunctionName"])
    gone.reserved = None
    context.runner.settings_changed(gone)


# --- permissions


def _add_permission(context: Context, body: Body) -> Answer:
    function, statement_id = _function(context, body), body["StatementId"]
    if any(s["Sid"] == statement_id for s in function.statements):
        raise refused("ResourceConflictException", f"The statement id {statement_id} exists.")
    principal = body["Principal"]
    is_service = principal.endswith(".amazonaws.com")
    statement: dict[str, object] = {
        "Sid": statement_id,
        "Effect": "Allow",
        "Principal": {"Service": principal} if is_service else {"AWS": principal},
        "Action": body["Action"],
        "Resource": function.arn,
    }
    condition: dict[str, object] = {}
    if body.get("SourceAccount"):
        condition["StringEquals"] = {"AWS:SourceAccount": body["SourceAccount"]}
    if body.get("SourceArn"):
        condition["ArnLike"] = {"AWS:SourceArn": body["SourceArn"]}
    if condition:
        statement["Condition"] = condition
    context.cloud.functions.add_statement(context.now_s(), function, statement)
    return {"Statement": json.dumps(statement)}


def _get_policy(context: Context, body: Body) -> Answer:
    function = _function(context, body)
    if not function.policy:
        raise _not_found("The resource you requested does not exist.")
    return {"Policy": function.policy, "RevisionId": function.revision}


def _remove_permission(context: Context, body: Body) -> None:
    function, statement = _function(context, body), body["StatementId"]
    left = [s for s in function.statements if s["Sid"] != statement]
    if len(left) == len(function.statements):
        raise _not_found(f"Statement {statement} is not found in resource policy.")
    function.statements = left
    context.cloud.functions.save(function)


# --- asynchronous invocation


def _set_invoke_config(context: Context, body: Body, *, updates: bool) -> Answer:
    function = _function(context, body)
    config = (function.invocations.config if updates else InvokeConfig()).changed(body)
    if body.get("DestinationConfig"):  # one that was set before may be gone meanwhile
        for arn in filter(None, (config.on_failure, config.on_success)):
            _check_destination(context, arn)
    context.cloud.functions.configure_events(context.now_s(), function, config)
    return _invoke_config(function)


def _check_destination(context: Context, arn: str) -> None:
    cloud, service = context.cloud, arn_service(arn)
    known = (service == "sqs" and cloud.queues.by_arn(arn) is not None) or (
        service == "lambda" and cloud.functions.by_arn(arn) is not None
    )
    if not known:
        raise bad(f"The destination ARN {arn} is invalid.")


def _get_invoke_config(context: Context, body: Body) -> Answer:
    return _invoke_config(_configured(context, body))


def _delete_invoke_config(context: Context, body: Body) -> None:
    function = _configured(context, body)
    function.configured = False
    function.invocations.config = InvokeConfig()
    context.cloud.functions.save(function)


def _configured(context: Context, body: Body) -> LambdaFunction:
    function = _function(context, body)
    if not function.configured:
        raise _not_found(f"The function {function.arn} doesn't have an EventInvokeConfig")
    return function


def _invoke_config(function: LambdaFunction) -> dict[str, object]:
    config = function.invocations.config
    destinations = {"OnFailure": config.on_failure, "OnSuccess": config.on_success}
    return {
        "LastModified": function.modified_at_s,
        "FunctionArn": f"{function.arn}:$LATEST",
        "MaximumRetryAttempts": config.retries_max,
        "MaximumEventAgeInSeconds": int(config.event_age_s_max),
        "DestinationConfig": {
            name: {"Destination": arn} if arn else {} for name, arn in destinations.items()
        },
    }


# --- concurrency and tags


def _put_concurrency(context: Context, body: Body) -> Answer:
    reserved = body["ReservedConcurrentExecutions"]
    _set_concurrency(context, body, reserved)
    return {"ReservedConcurrentExecutions": reserved}


def _get_concurrency(context: Context, body: Body) -> Answer:
    reserved = _function(context, body).reserved
    return {} if reserved is None else {"ReservedConcurrentExecutions": reserved}


def _delete_concurrency(context: Context, body: Body) -> None:
    _set_concurrency(context, body, None)


def _set_concurrency(context: Context, body: Body, reserved: int | None) -> None:
    function = _settled_function(context, body)
    context.cloud.functions.reserve(function, reserved)
    context.runner.settings_changed(function)


def _account_settings(context: Context, _: Body) -> Answer:
    """The limits of the account: runs at a time, and AWS's sizes of code."""
    functions = context.cloud.functions.all()
    used = sum(function.settings.code_bytes for function in functions)
    limits = {
        "TotalCodeSize": 75 * 2**30,
        "CodeSizeUnzipped": 262144000,
        "CodeSizeZipped": 50 * 2**20,
        "ConcurrentExecutions": context.cloud.functions.concurrency_max,
        "UnreservedConcurrentExecutions": context.cloud.functions.unreserved,
    }
    usage = {"TotalCodeSize": used, "FunctionCount": len(functions)}
    return {"AccountLimit": limits, "AccountUsage": usage}


def _tag(context: Context, body: Body) -> None:
    function, given = _settled_function(context, body), body["Tags"]
    image = function.settings.image_uri
    if image and PACKAGE_TAG in given:
        stored = settings.package_of_image(context, image, {**function.tags, **given})
        context.cloud.functions.update(
            context.now_s(), function.name, code_sha256=stored.sha256, code_bytes=stored.size
        )
    context.cloud.functions.tag(function, given)


def _untag(context: Context, body: Body) -> None:
    function = _function(context, body)
    for name in body["TagKeys"]:
        function.tags.pop(name, None)
    context.cloud.functions.save(function)


def _tags(context: Context, body: Body) -> Answer:
    return {"Tags": _function(context, body).tags}


# --- event source mappings


def _create_mapping(context: Context, body: Body) -> Answer:
    made = context.cloud.event_sources.create(context.now_s(), body)
    return _mapping(context, made)


def _update_mapping(context: Context, body: Body) -> Answer:
    changed = context.cloud.event_sources.update(context.now_s(), body["UUID"], body)
    return _mapping(context, changed)


def _get_mapping(context: Context, body: Body) -> Answer:
    return _mapping(context, context.cloud.event_sources.get(body["UUID"]))


def _delete_mapping(context: Context, body: Body) -> Answer:
    gone = context.cloud.event_sources.delete(body["UUID"])
    return {**_mapping(context, gone), "State": "Deleting"}


def _list_mappings(context: Context, body: Body) -> Answer:
    function = function_name(body.get("FunctionName", "")) or ""
    found = context.cloud.event_sources.all(
        queue_arn=body.get("EventSourceArn", ""), function=function
    )
    return {"EventSourceMappings": [_mapping(context, each) for each in found]}


def _mapping(context: Context, mapping: EventSource) -> dict[str, object]:
    account = context.cloud.account
    return {
        **mapping.shown(),
        "UUID": mapping.uuid,
        "EventSourceArn": mapping.queue_arn,
        "FunctionArn": account.function_arn(mapping.function),
        "EventSourceMappingArn": account.mapping_arn(mapping.uuid),
        "LastModified": mapping.modified_at_s,
        "State": "Enabled" if mapping.enabled else "Disabled",
        "StateTransitionReason": "USER_INITIATED",
    }


# --- invocation


async def _invoke(context: Context, body: Body) -> web.Response:
    function, data = _function(context, body), body["Payload"]
    try:
        payload = data.decode("utf-8", "strict") if data else "{}"
        read_json(payload)
    except ValueError:
        raise refused("InvalidRequestContentException", "The payload is not JSON.") from None
    kind = body.get("InvocationType", "RequestResponse")
    if kind == "DryRun":
        return web.Response(status=204)
    if kind == "Event":
        if len(data) > PAYLOAD_BYTES_MAX:
            raise refused("RequestTooLargeException", "The event is larger than 1 MiB.")
        request_id = context.cloud.invoke_later(context.now_s(), function.arn, payload)
        return web.Response(status=202, headers={"x-amzn-RequestId": request_id})
    if len(data) > _PAYLOAD_BYTES_MAX:
        raise refused("RequestTooLargeException", "The payload is larger than 6 MiB.")
    return await _invoke_now(context, function, payload, tailed=body.get("LogType") == "Tail")


async def _invoke_now(
    context: Context, function: LambdaFunction, payload: str, *, tailed: bool
) -> web.Response:
    context.cloud.functions.check_invoke(context.now_s(), function)
    request_id = context.cloud.new_request_id()
    # A client that hangs up does not stop the function, as on AWS.
    run = context.nursery.start(
        context.runner.invoke(function, request_id, payload), f"invoke/{function.name}"
    )
    ran = await asyncio.shield(run)
    if ran is None:
        raise refused("ServiceException", "The run failed; see the log of the cloud.")
    outcome, tail = ran
    if outcome.throttled:
        raise refusal("throttled")
    headers = {"X-Amz-Executed-Version": "$LATEST", "x-amzn-RequestId": request_id}
    if outcome.error:
        headers["X-Amz-Function-Error"] = outcome.error
    if tailed:
        headers["X-Amz-Log-Result"] = base64.b64encode(tail.encode()[-4096:]).decode()
    return web.Response(
        body=outcome.payload.encode(), headers=headers, content_type="application/json"
    )


def _not_found(message: str) -> CloudError:
    return CloudError("ResourceNotFoundException", 404, message)


LAMBDA = RestService(
    names=("lambda",),
    invalid="ValidationException",
    missing="ValidationException",
    bytes_max=_REQUEST_BYTES_MAX,
    operations={
        "AddPermission": _add_permission,
        "CreateEventSourceMapping": _create_mapping,
        "CreateFunction": _create,
        "DeleteEventSourceMapping": _delete_mapping,
        "DeleteFunction": _delete,
        "DeleteFunctionConcurrency": _delete_concurrency,
        "DeleteFunctionEventInvokeConfig": _delete_invoke_config,
        "GetAccountSettings": _account_settings,
        "GetEventSourceMapping": _get_mapping,
        "GetFunction": _get,
        "GetFunctionConcurrency": _get_concurrency,
        "GetFunctionConfiguration": _get_configuration,
        "GetFunctionEventInvokeConfig": _get_invoke_config,
        "GetPolicy": _get_policy,
        "Invoke": _invoke,
        "ListEventSourceMappings": _list_mappings,
        "ListFunctions": _list,
        "ListTags": _tags,
        "PutFunctionConcurrency": _put_concurrency,
        "PutFunctionEventInvokeConfig": partial(_set_invoke_config, updates=False),
        "RemovePermission": _remove_permission,
        "TagResource": _tag,
        "UntagResource": _untag,
        "UpdateEventSourceMapping": _update_mapping,
        "UpdateFunctionCode": _update_code,
        "UpdateFunctionConfiguration": _update_configuration,
        "UpdateFunctionEventInvokeConfig": partial(_set_invoke_config, updates=True),
    },
)
