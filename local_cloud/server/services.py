"""Services as AWS's own models describe them: which operation a request names, and its fields.

botocore's model of a service has the path, the types, the limits and the patterns of each of its
operations, so an operation here is one function of its checked fields. Three protocols: JSON
(`X-Amz-Target`), REST with JSON (Lambda) and forms with XML answers (IAM, STS). S3 has its own.
"""

from __future__ import annotations

import functools
import json
import re
import urllib.parse
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from aiohttp import web
from botocore.loaders import Loader
from botocore.model import ServiceModel

from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.model.json_text import read_json
from local_cloud.server.context import Context
from local_cloud.server.s3.xml import elements

#: The fields of a request by their names in the model; an absent one and a null are not in it.
Body: TypeAlias = Mapping[str, Any]
Answer: TypeAlias = Mapping[str, object]
#: Answers one call; a refusal is raised as CloudError, a missing field as KeyError.
Operation: TypeAlias = Callable[
    [Context, Body], Answer | web.Response | Awaitable[Answer | web.Response] | None
]


JSON_BYTES_MAX = 8 * 2**20  #: of a request: a batch of 1 MiB, escaped


class BadField(Exception):
    """A field that the model does not allow; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service: its operations, and its codes of bad input."""

    names: tuple[str, ...]  #: of the models, which are those that signatures name
    operations: Mapping[str, Operation]
    invalid: str  #: code of a field that the model does not allow
    missing: str
    limits: bool = True  #: sizes, patterns and closed sets are checked, not types alone
    bytes_max: int = JSON_BYTES_MAX

    async def answer(self, context: Context, request: web.BaseRequest) -> web.Response:
        """The answer to one call, a refusal too."""
        try:
            data = await _read_signed(context, request, self.names, self.bytes_max)
            name, fields = self.read(request, data)
            run = self.operations.get(name)
            if run is None:
                raise not_implemented(f"{self.names[0]} {name}")
            model = self.model(name)
            try:
                answer = run(context, self._checked(fields, model.input_shape))
                answer = await answer if isinstance(answer, Awaitable) else answer
            except KeyError as error:
                text = f"The request must contain the parameter {error.args[0]}."
                raise refused(self.missing, text) from None
            if isinstance(answer, web.Response):
                return answer
            return self.answered(model, answer)
        except CloudError as error:
            return self.refusal(error)

    def model(self, operation: str) -> Any:
        """botocore's model of an operation that is here."""
        services = map(_service_model, self.names)
        service = next(each for each in services if operation in each.operation_names)
        return service.operation_model(operation)

    def _checked(self, fields: object, shape: Any) -> Body:
        if shape is None:
            return {}
        try:
            body = fitted(fields, shape, limits=self.limits)
        except BadField as error:
            raise refused(self.invalid, str(error)) from None
        assert isinstance(body, dict), "the input of an operation is a structure"
        return body

    def read(self, request: web.BaseRequest, data: bytes) -> tuple[str, object]:
        """The operation's name and its fields, unchecked. Raises CloudError for other bytes."""
        raise NotImplementedError

    def answered(self, model: Any, answer: Answer | None) -> web.Response:
        """A success, in the protocol's form."""
        raise NotImplementedError

    def refusal(self, error: CloudError) -> web.Response:
        """A refusal, in the protocol's form."""
        raise NotImplementedError


async def _read_signed(
    context: Context, request: web.BaseRequest, services: tuple[str, ...], bytes_max: int
) -> bytes:
    """The body of a request with a valid signature for one of `services`.

    Raises RequestEntityTooLargeException (413) above `bytes_max`, and as `Verifier.check`.
    """
    pieces: list[bytes] = []
    size = 0
    async for piece in request.content.iter_any():
        size += len(piece)
        if size > bytes_max:
            message = f"Request must be smaller than {bytes_max} bytes."
            raise refused("RequestEntityTooLargeException", message)
        pieces.append(piece)
    data = b"".join(pieces)
    context.verifier.check(request, services, data)
    return data


def _read_json(data: bytes, code: str) -> object:
    try:
        return read_json(data or b"{}")
    except ValueError:
        raise refused(code, "The body is not JSON") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonService(Service):
    """AWS's JSON protocol, `X-Amz-Target: PREFIX.Operation`."""

    version: str = "1.1"  #: of the protocol
    #: modelled name → the code of an older protocol, which SDKs still show; None = it had none
    older_codes: Mapping[str, str] | None = None

    def read(self, request: web.BaseRequest, data: bytes) -> tuple[str, object]:
        operation = request.headers["X-Amz-Target"].partition(".")[2]
        if operation not in self.operations:
            return operation, {}
        return operation, _read_json(data, "SerializationException")

    def answered(self, _model: Any, answer: Answer | None) -> web.Response:
        if answer is None:  # AWS sends no body where an operation has no output
            return web.Response(content_type=f"application/x-amz-json-{self.version}")
        return self._response(200, answer)

    def code(self, error: CloudError) -> str:
        """The code that SDKs show for it."""
        return (self.older_codes or {}).get(error.code, error.code)

    def refusal(self, error: CloudError) -> web.Response:
        answer = self._response(error.status, {"__type": error.code, "message": error.message})
        if self.older_codes is not None:
            fault = "Sender" if error.status < 500 else "Receiver"
            answer.headers["x-amzn-query-error"] = f"{self.code(error)};{fault}"
        return answer

    def _response(self, status: int, answer: Answer) -> web.Response:
        content_type = f"application/x-amz-json-{self.version}"
        return web.Response(status=status, text=json.dumps(answer), content_type=content_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestService(Service):
    """A REST protocol with JSON bodies: fields are in the path, query, headers and body."""

    def read(self, request: web.BaseRequest, data: bytes) -> tuple[str, object]:
        path = request.raw_path.partition("?")[0].rstrip("/")
        for name in self.operations:
            model = self.model(name)
            match = _path_of(model.http["requestUri"]).fullmatch(path)
            if match is not None and model.http["method"] == request.method:
                return name, _fields(model.input_shape, match, request, data)
        return f"{request.method} {path}", {}

    def answered(self, model: Any, answer: Answer | None) -> web.Response:
        if answer is None:
            return web.Response(status=204)
        return web.json_response(answer, status=model.http.get("responseCode", 200))

    def refusal(self, error: CloudError) -> web.Response:
        kind = "User" if error.status < 500 else "Service"
        return web.json_response(
            {"Type": kind, "Message": error.message, "message": error.message},
            status=error.status,
            headers={"x-amzn-ErrorType": error.code},
        )


@functools.cache
def _path_of(uri: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", uri.rstrip("/")))


def _fields(
    shape: Any, match: re.Match[str], request: web.BaseRequest, data: bytes
) -> dict[str, object]:
    fields: dict[str, object] = {}
    payload = shape.serialization.get("payload")
    if payload is None:
        body = _read_json(data, "InvalidRequestContentException")
        if not isinstance(body, dict):
            raise refused("InvalidRequestContentException", "The body is not an object")
        fields.update(body)
    else:
        fields[payload] = data
    for name, member in shape.members.items():
        wire_name = member.serialization.get("name", name)
        match member.serialization.get("location"):
            case "uri":
                fields[name] = urllib.parse.unquote(match[wire_name])
            case "querystring" if wire_name in request.query:
                values = request.query.getall(wire_name)
                fields[name] = values if member.type_name == "list" else _typed(values[0], member)
            case "header" if wire_name in request.headers:
                fields[name] = _typed(request.headers[wire_name], member)
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class FormService(Service):
    """AWS's query protocol: a form with the Action, answered in XML."""

    def read(self, request: web.BaseRequest, data: bytes) -> tuple[str, object]:
        given = urllib.parse.parse_qs(data.decode("utf-8", "replace"))
        form = {name: values[-1] for name, values in given.items()}
        action = form.get("Action", request.headers.get("X-Amz-Target", "this POST"))
        shape = self.model(action).input_shape if action in self.operations else None
        return action, {} if shape is None else _of_form(form, shape)

    def answered(self, model: Any, answer: Answer | None) -> web.Response:
        body = {
            f"{model.name}Result": answer or {},
            "ResponseMetadata": {"RequestId": str(uuid.uuid4())},
        }
        return self._document(200, {f"{model.name}Response": body})

    def refusal(self, error: CloudError) -> web.Response:
        inner = {"Type": "Sender", "Code": error.code, "Message": error.message}
        return self._document(error.status, {"ErrorResponse": {"Error": inner}})

    def _document(self, status: int, answer: Answer) -> web.Response:
        body = elements(answer).encode()
        return web.Response(status=status, body=body, content_type="text/xml")


def _of_form(form: Mapping[str, str], shape: Any, path: str = "") -> object:
    """The value of a shape in a form: `Tags.member.1.Key`; None without any of its fields."""
    if shape.type_name == "structure":
        members = {
            name: _of_form(form, member, f"{path}.{name}".lstrip("."))
            for name, member in shape.members.items()
        }
        fields = {name: value for name, value in members.items() if value is not None}
        return fields if fields or not path else None
    if shape.type_name == "list":
        values: list[object] = []
        while (
            value := _of_form(form, shape.member, f"{path}.member.{len(values) + 1}")
        ) is not None:
            values.append(value)
        return values or None
    return _typed(form[path], shape) if path in form else None


def _typed(text: str, shape: Any) -> object:
    """The value of a text in a path, header or form; a wrong text stays as it is, to be refused."""
    if shape.type_name in ("integer", "long") and re.fullmatch(r"-?\d{1,18}", text, re.ASCII):
        return int(text)
    if shape.type_name == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


# --- the check of fields by the model


@functools.cache
def _service_model(name: str) -> Any:
    return ServiceModel(Loader().load_service_model(name, "service-2"), name)


_NUMBERS = frozenset({"integer", "long", "float", "double", "timestamp"})
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "long": (int,),
    "float": (int, float),
    "double": (int, float),
    "timestamp": (int, float),
    "blob": (str, bytes),
    "list": (list,),
    "map": (dict,),
    "structure": (dict,),
}


def fitted(value: Any, shape: Any, path: str = "", *, limits: bool = True) -> object:
    """The value without nulls and unknown fields. Raises BadField: its type, limits or pattern."""
    kind = shape.type_name
    if type(value) not in _TYPES[kind]:
        raise BadField(f"{path or 'the body'} is not a {kind}")
    if limits and kind in _NUMBERS | {"string", "list", "map"}:
        _check_limits(value, shape, path)
    if kind == "list":
        return [
            fitted(item, shape.member, f"{path}[{at}]", limits=limits)
            for at, item in enumerate(value)
        ]
    if kind == "map":
        return {
            key: fitted(item, shape.value, f"{path}.{key}", limits=limits)
            for key, item in value.items()
            if item is not None
        }
    if kind != "structure":
        return value
    fields = {
        name: fitted(value[name], member, f"{path}.{name}".lstrip("."), limits=limits)
        for name, member in shape.members.items()
        if value.get(name) is not None
    }
    missing = next((name for name in shape.required_members if name not in fields), None)
    if missing is not None:
        raise KeyError(f"{path}.{missing}".lstrip("."))
    return fields


def _check_limits(value: Any, shape: Any, path: str) -> None:
    size = value if shape.type_name in _NUMBERS else len(value)
    least, most = shape.metadata.get("min", size), shape.metadata.get("max", size)
    if not least <= size <= most:
        what = "have a value" if shape.type_name in _NUMBERS else "have a length"
        raise _broken(value, path, f"{what} between {least} and {most}")
    if shape.type_name == "string":
        names = shape.metadata.get("enum")
        if names is not None and value not in names:
            raise _broken(value, path, f"satisfy enum value set: [{', '.join(names)}]")
        pattern = _pattern(shape.metadata.get("pattern", ""))
        if pattern is not None and not pattern.fullmatch(value):
            raise _broken(value, path, f"satisfy regular expression pattern: {pattern.pattern}")


@functools.cache
def _pattern(text: str) -> re.Pattern[str] | None:
    """None without one, and for one with character classes that Python does not have."""
    try:
        return re.compile(text) if text else None
    except re.error:
        return None


def _broken(value: object, path: str, rule: str) -> BadField:
    return BadField(f"Value '{value}' at '{path}' failed to satisfy constraint: Member must {rule}")
