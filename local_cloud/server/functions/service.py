"""The operations of Lambda, and the routing of requests to them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from aiohttp import web

from corekit.values import Value
from local_cloud.model.arns import arn_service
from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.functions.function import PAYLOAD_BYTES_MAX, InvokeConfig
from local_cloud.model.functions.functions import Functions, LambdaFunction
from local_cloud.model.json_text import read_json
from local_cloud.model.weather import refusal
from local_cloud.sandbox.image_package import PACKAGE_TAG
from local_cloud.server.context import Context
from local_cloud.server.functions import settings
from local_cloud.server.functions.settings import SHAPE, bad, configuration
from local_cloud.server.requests import read_signed
from local_cloud.server.shapes import Body, WrongShape, read_body

Answer: TypeAlias = Mapping[str, object]

_PATH = re.compile(r"/20\d\d-\d\d-\d\d/(functions|tags|account-settings)\b")
_PAYLOAD_BYTES_MAX = 6 * 2**20  #: of a synchronous invocation
_REQUEST_BYTES_MAX = 70 * 2**20  #: a zip of 50 MB in base64


class Call(Value):
    """One request on its way to its operation."""

    context: Context
    request: web.BaseRequest
    name: str  #: function name or ARN in the path, empty without
    rest: str  #: what follows the operation's word in the path
    data: bytes

    @property
    def functions(self) -> Functions:
        return self.context.cloud.functions

    @property
    def now_s(self) -> float:
        return self.context.now_s()

    @property
    def body(self) -> Body:
        """The JSON body, empty without one."""
        try:
            return read_body(self.data, SHAPE)
        except ValueError:
            raise refused("InvalidRequestContentException", "The body is not JSON") from None
        except WrongShape as error:
            raise refused("SerializationException", str(error)) from None

    @property
    def function(self) -> LambdaFunction:
        """The function in the path. Raises ResourceNotFoundException."""
        return self.functions.get(self.name)

    @property
    def settled_function(self) -> LambdaFunction:
        """The same for a call that fails while it is Pending: ResourceConflictException."""
        function = self.function
        self.functions.states.check_call(self.now_s, function.name)
        return function


def is_for_lambda(request: web.BaseRequest) -> bool:
    """By the credential scope; unsigned requests by their path."""
    authorization = request.headers.get("Authorization", "")
    if authorization:
        return "/lambda/aws4_request" in authorization
    return _PATH.match(request.path) is not None


async def answer(context: Context, request: web.BaseRequest) -> web.Response:
    """The answer to one Lambda call, a refusal too."""
    try:
        return await _run(context, request)
    except CloudError as error:
        kind = "User" if error.status < 500 else "Service"
        return web.json_response(
            {"Type": kind, "Message": error.message, "message": error.message},
            status=error.status,
            headers={"x-amzn-ErrorType": error.code},
        )


async def _run(context: Context, request: web.BaseRequest) -> web.Response:
    path = request.raw_path.partition("?")[0]
    parts = [urllib.parse.unquote(p) for p in path.strip("/").split("/")]
    _, kind, name, *rest = [*parts, "", "", ""]
    # `policy/<statement>`: what follows the operation's word is its argument
    operation = _OPERATIONS.get((request.method, kind, "name" if name else "", rest[0]))
    data = await read_signed(context, request, "lambda", bytes_max=_REQUEST_BYTES_MAX)
    if operation is None:
        raise not_implemented(f"Lambda {request.method} {path}")
    call = Call(context=context, request=request, name=name, rest=rest[1], data=data)
    try:
        result = operation(call)
        if isinstance(result, Awaitable):
            return await result
    except KeyError as error:
        raise refused("ValidationException", f"{error.args[0]} is required") from None
    if result is None:
        return web.Response(status=204)
    status = 201 if operation in (_create, _add_permission) else 200
    return web.json_response(result, status=status)


# --- functions


def _create(call: Call) -> Answer:
    body = call.body
    if not body.get("FunctionName"):
        raise refused("ValidationException", "FunctionName is required")
    made = settings.new_settings(call.context, call.context.runner.code, body)
    function = call.functions.create(call.now_s, made, body.get("Tags"))
    return configuration(call.context, function)


def _list(call: Call) -> Answer:
    return {"Functions": [configuration(call.context, each) for each in call.functions.all()]}


def _get(call: Call) -> Answer:
    function = call.function
    found = function.settings
    code: dict[str, str] = {"RepositoryType": "ECR", "ImageUri": found.image_uri}
    if found.package_type == "Zip":
        name = base64.b64decode(found.code_sha256).hex()
        location = f"{call.context.endpoint}/_local_cloud/code/{name}.zip"
        code = {"RepositoryType": "S3", "Location": location}
    answer: dict[str, object] = {
        "Configuration": configuration(call.context, function),
        "Code": code,
    }
    if function.tags:
        answer["Tags"] = function.tags
    if function.reserved is not None:
        answer["Concurrency"] = {"ReservedConcurrentExecutions": function.reserved}
    return answer


def _get_configuration(call: Call) -> Answer:
    return configuration(call.context, call.function)


def _update_configuration(call: Call) -> Answer:
    name = call.function.name
    changed = settings.changes_of(call.body)
    function = call.functions.update(call.now_s, name, **changed)
    return configuration(call.context, function)


def _update_code(call: Call) -> Answer:
    context, body, function = call.context, call.body, call.function
    changes: dict[str, object] = {}
    if "ImageUri" in body:
        image = changes["image_uri"] = body["ImageUri"]
        stored = settings.package_of_image(context, context.runner.code, image, function.tags)
    else:
        stored = settings.code_of(context, context.runner.code, body)
    changes |= {"code_sha256": stored.sha256, "code_bytes": stored.size}
    if body.get("Architectures"):
        changes["architectures"] = tuple(body["Architectures"])
    if body.get("DryRun"):
        return configuration(call.context, function)
    updated = call.functions.update(call.now_s, function.name, **changes)
    return configuration(context, updated)


def _delete(call: Call) -> None:
    gone = call.functions.delete(call.name)
    gone.reserved = None
    call.context.runner.settings_changed(gone)


# --- permissions


def _add_permission(call: Call) -> Answer:
    function, body = call.function, call.body
    if any(s["Sid"] == body["StatementId"] for s in function.statements):
        raise CloudError(
            "ResourceConflictException",
            409,
            f"The statement id ({body['StatementId']}) provided already exists.",
        )
    principal = body["Principal"]
    is_service = principal.endswith(".amazonaws.com")
    statement: dict[str, object] = {
        "Sid": body["StatementId"],
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
    call.functions.add_statement(call.now_s, function, statement)
    return {"Statement": json.dumps(statement)}


def _get_policy(call: Call) -> Answer:
    function = call.function
    if not function.policy:
        raise _not_found("The resource you requested does not exist.")
    return {"Policy": function.policy, "RevisionId": function.revision}


def _remove_permission(call: Call) -> None:
    function = call.function
    statement = call.rest
    left = [s for s in function.statements if s["Sid"] != statement]
    if len(left) == len(function.statements):
        raise _not_found(f"Statement {statement} is not found in resource policy.")
    function.statements = left
    call.functions.save(function)


# --- asynchronous invocation


def _put_invoke_config(call: Call) -> Answer:
    return _set_invoke_config(call, InvokeConfig())


def _update_invoke_config(call: Call) -> Answer:
    return _set_invoke_config(call, call.function.invocations.config)


def _set_invoke_config(call: Call, base: InvokeConfig) -> Answer:
    function, body = call.function, call.body
    retries = body.get("MaximumRetryAttempts", base.retries_max)
    age_s = body.get("MaximumEventAgeInSeconds", base.event_age_s_max)
    if not 0 <= retries <= 2 or not 60 <= age_s <= 21600:
        raise refused(
            "ValidationException",
            "MaximumRetryAttempts is 0 to 2 and MaximumEventAgeInSeconds 60 to 21600",
        )
    given = body.get("DestinationConfig")
    arns = {name: _destination(call.context, (given or {}).get(name)) for name in _DESTINATIONS}
    config = InvokeConfig(
        retries_max=retries,
        event_age_s_max=float(age_s),
        on_failure=base.on_failure if given is None else arns["OnFailure"],
        on_success=base.on_success if given is None else arns["OnSuccess"],
    )
    call.functions.configure_events(call.now_s, function, config)
    return _invoke_config(function)


_DESTINATIONS = ("OnFailure", "OnSuccess")


def _destination(context: Context, given: Body | None) -> str:
    arn = (given or {}).get("Destination", "")
    cloud = context.cloud
    service = arn_service(arn)
    known = (service == "sqs" and cloud.queues.by_arn(arn) is not None) or (
        service == "lambda" and cloud.functions.by_arn(arn) is not None
    )
    if arn and not known:
        raise bad(f"The destination ARN {arn} is invalid.")
    return str(arn)


def _get_invoke_config(call: Call) -> Answer:
    return _invoke_config(_configured(call))


def _delete_invoke_config(call: Call) -> None:
    function = _configured(call)
    function.configured = False
    function.invocations.config = InvokeConfig()
    call.functions.save(function)


def _configured(call: Call) -> LambdaFunction:
    if not call.function.configured:
        raise _not_found(f"The function {call.function.arn} doesn't have an EventInvokeConfig")
    return call.function


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


def _put_concurrency(call: Call) -> Answer:
    reserved = call.body["ReservedConcurrentExecutions"]
    return _set_concurrency(call, reserved)


def _delete_concurrency(call: Call) -> None:
    _set_concurrency(call, None)


def _set_concurrency(call: Call, reserved: int | None) -> Answer:
    function = call.settled_function
    call.functions.reserve(function, reserved)
    call.context.runner.settings_changed(function)
    return {"ReservedConcurrentExecutions": reserved}


def _get_concurrency(call: Call) -> Answer:
    reserved = call.function.reserved
    return {} if reserved is None else {"ReservedConcurrentExecutions": reserved}


def _account_settings(call: Call) -> Answer:
    """The limits of the account: runs at a time, and AWS's sizes of code."""
    functions, limit = call.functions.all(), call.functions.concurrency_max
    reserved = sum(function.reserved or 0 for function in functions)
    used = sum(function.settings.code_bytes for function in functions)
    limits = {
        "TotalCodeSize": 75 * 2**30,
        "CodeSizeUnzipped": 262144000,
        "CodeSizeZipped": 50 * 2**20,
        "ConcurrentExecutions": limit,
        "UnreservedConcurrentExecutions": max(0, limit - reserved),
    }
    usage = {"TotalCodeSize": used, "FunctionCount": len(functions)}
    return {"AccountLimit": limits, "AccountUsage": usage}


def _tag(call: Call) -> None:
    context, function, given = call.context, call.settled_function, call.body["Tags"]
    tags = {**function.tags, **given}
    if function.settings.package_type == "Image" and PACKAGE_TAG in given:
        image = function.settings.image_uri
        stored = settings.package_of_image(context, context.runner.code, image, tags)
        call.functions.update(
            call.now_s, function.name, code_sha256=stored.sha256, code_bytes=stored.size
        )
    call.functions.tag(function, given)


def _untag(call: Call) -> None:
    function = call.function
    for name in call.request.query.getall("tagKeys", []):
        function.tags.pop(name, None)
    call.functions.save(function)


def _tags(call: Call) -> Answer:
    return {"Tags": call.function.tags}


# --- invocation


async def _invoke(call: Call) -> web.Response:
    function = call.function
    kind = call.request.headers.get("X-Amz-Invocation-Type", "RequestResponse")
    try:
        payload = call.data.decode("utf-8", "strict") if call.data else "{}"
        read_json(payload)
    except ValueError:
        raise refused(
            "InvalidRequestContentException", "Could not parse request body into json"
        ) from None
    if kind == "DryRun":
        return web.Response(status=204)
    if kind == "Event":
        if len(call.data) > PAYLOAD_BYTES_MAX:
            raise refused("RequestTooLargeException", "The event is larger than 1 MiB.", 413)
        request_id = call.context.cloud.invoke_later(call.now_s, function.arn, payload)
        return web.Response(status=202, headers={"x-amzn-RequestId": request_id})
    if kind != "RequestResponse":
        raise bad(f"{kind} is not an invocation type")
    if len(call.data) > _PAYLOAD_BYTES_MAX:
        raise refused("RequestTooLargeException", "The payload is larger than 6 MiB.", 413)
    return await _invoke_now(call, function, payload)


async def _invoke_now(call: Call, function: LambdaFunction, payload: str) -> web.Response:
    call.functions.check_invoke(call.now_s, function)
    request_id = call.context.cloud.new_request_id()
    # A client that hangs up does not stop the function, as on AWS.
    run = call.context.nursery.start(
        call.context.runner.invoke(function, request_id, payload), f"invoke/{function.name}"
    )
    ran = await asyncio.shield(run)
    if ran is None:
        raise refused("ServiceException", "The run failed; see the log of the cloud.", 500)
    outcome, tail = ran
    if outcome.throttled:
        raise refusal("throttled")
    headers = {"X-Amz-Executed-Version": "$LATEST", "x-amzn-RequestId": request_id}
    if outcome.error:
        headers["X-Amz-Function-Error"] = outcome.error
    if call.request.headers.get("X-Amz-Log-Type") == "Tail":
        headers["X-Amz-Log-Result"] = base64.b64encode(tail.encode()[-4096:]).decode()
    return web.Response(
        body=outcome.payload.encode(), headers=headers, content_type="application/json"
    )


def _not_found(message: str) -> CloudError:
    return CloudError("ResourceNotFoundException", 404, message)


#: (method, what the path begins with, whether it names one, the word behind the name)
_OPERATIONS: dict[
    tuple[str, str, str, str], Callable[[Call], Answer | Awaitable[web.Response] | None]
] = {
    ("POST", "functions", "", ""): _create,
    ("GET", "functions", "", ""): _list,
    ("GET", "functions", "name", ""): _get,
    ("DELETE", "functions", "name", ""): _delete,
    ("GET", "functions", "name", "configuration"): _get_configuration,
    ("PUT", "functions", "name", "configuration"): _update_configuration,
    ("PUT", "functions", "name", "code"): _update_code,
    ("POST", "functions", "name", "policy"): _add_permission,
    ("GET", "functions", "name", "policy"): _get_policy,
    ("DELETE", "functions", "name", "policy"): _remove_permission,
    ("POST", "functions", "name", "invocations"): _invoke,
    ("PUT", "functions", "name", "event-invoke-config"): _put_invoke_config,
    ("POST", "functions", "name", "event-invoke-config"): _update_invoke_config,
    ("GET", "functions", "name", "event-invoke-config"): _get_invoke_config,
    ("DELETE", "functions", "name", "event-invoke-config"): _delete_invoke_config,
    ("PUT", "functions", "name", "concurrency"): _put_concurrency,
    ("GET", "functions", "name", "concurrency"): _get_concurrency,
    ("DELETE", "functions", "name", "concurrency"): _delete_concurrency,
    ("GET", "account-settings", "", ""): _account_settings,
    ("POST", "tags", "name", ""): _tag,
    ("DELETE", "tags", "name", ""): _untag,
    ("GET", "tags", "name", ""): _tags,
}
