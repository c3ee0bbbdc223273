"""The calls of SSM Parameter Store and of Secrets Manager."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeAlias

from aiohttp import web

from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.server.context import Context
from local_cloud.server.reading import read_signed
from local_cloud.server.secrets import parameters, secrets
from local_cloud.server.shapes import Body, Shape, WrongShape, read_body

Answer: TypeAlias = Mapping[str, object]
Operation: TypeAlias = Callable[[Context, Body], Answer]

PARAMETERS = "AmazonSSM."
SECRETS = "secretsmanager."
_INVALID = {PARAMETERS: "ValidationException", SECRETS: "InvalidParameterException"}
_SIGNED = {PARAMETERS: "ssm", SECRETS: "secretsmanager"}
_OPERATIONS: dict[str, Mapping[str, Operation]] = {
    PARAMETERS: parameters.OPERATIONS,
    SECRETS: secrets.OPERATIONS,
}
_SHAPES: dict[str, dict[str, Shape]] = {PARAMETERS: parameters.SHAPE, SECRETS: secrets.SHAPE}


def service_of(target: str) -> str:
    """The prefix of the service that a call is for; "" for another service's."""
    return next((prefix for prefix in _OPERATIONS if target.startswith(prefix)), "")


async def handle(context: Context, request: web.BaseRequest, target: str) -> web.Response:
    """Answer one call; a refusal is raised as CloudError."""
    service = service_of(target)
    operation = target.removeprefix(service)
    run = _OPERATIONS[service].get(operation)
    if run is None:
        raise not_implemented(f"{_SIGNED[service]} {operation}")
    data = await read_signed(context, request, _SIGNED[service])
    try:
        answer = run(context, _body(data, service))
    except KeyError as error:
        raise refused(_INVALID[service], f"{error.args[0]} is required") from None
    return web.Response(text=json.dumps(answer), content_type="application/x-amz-json-1.1")


def _body(data: bytes, service: str) -> Body:
    try:
        return read_body(data, _SHAPES[service])
    except ValueError:
        raise refused("SerializationException", "The body is not JSON") from None
    except WrongShape as error:
        raise refused(_INVALID[service], str(error)) from None


def error_response(error: CloudError) -> web.Response:
    """The JSON protocol's error document."""
    body = {"__type": error.code, "message": error.message, "Message": error.message}
    return web.json_response(body, status=error.status)
