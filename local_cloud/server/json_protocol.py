"""AWS's JSON protocol, `X-Amz-Target: PREFIX.Operation`, for every service that speaks it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import web

from local_cloud.model.errors import CloudError, not_implemented, refused
from local_cloud.server.context import Context
from local_cloud.server.requests import read_signed
from local_cloud.server.shapes import Body, Shape, WrongShape, read_body

Answer: TypeAlias = Mapping[str, object]
#: Answers one call; a refusal is raised as CloudError, a missing field as KeyError.
Operation: TypeAlias = Callable[[Context, Body], Answer | Awaitable[Answer] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonService:
    """One service: its operations, the fields that any of them reads, its codes of bad input."""

    name: str  #: as signatures name it
    operations: Mapping[str, Operation]
    shape: dict[str, Shape]
    invalid: str  #: code of a field of another type
    missing: str
    version: str = "1.1"  #: of the protocol
    #: modelled name → the code of an older protocol, which SDKs still show; None = it had none
    older_codes: Mapping[str, str] | None = None

    async def answer(
        self, context: Context, operation: str, request: web.BaseRequest
    ) -> web.Response:
        """The answer to one call, a refusal too."""
        try:
            answer = await self._run(context, request, operation)
        except CloudError as error:
            return self._refusal(error)
        text = json.dumps(answer or {})
        return web.Response(text=text, content_type=f"application/x-amz-json-{self.version}")

    async def _run(
        self, context: Context, request: web.BaseRequest, operation: str
    ) -> Answer | None:
        run = self.operations.get(operation)
        data = await read_signed(context, request, self.name)
        if run is None:
            raise not_implemented(f"{self.name} {operation}")
        try:
            body = read_body(data, self.shape)
        except ValueError:
            raise refused("SerializationException", "The body is not JSON") from None
        except WrongShape as error:
            raise refused(self.invalid, str(error)) from None
        try:
            answer = run(context, body)
            return await answer if isinstance(answer, Awaitable) else answer
        except KeyError as error:
            text = f"The request must contain the parameter {error.args[0]}."
            raise refused(self.missing, text) from None

    def code(self, error: CloudError) -> str:
        """The code that SDKs show for it."""
        return (self.older_codes or {}).get(error.code, error.code)

    def _refusal(self, error: CloudError) -> web.Response:
        headers = {}
        if self.older_codes is not None:
            fault = "Sender" if error.status < 500 else "Receiver"
            headers["x-amzn-query-error"] = f"{self.code(error)};{fault}"
        return web.Response(
            status=error.status,
            text=json.dumps({"__type": error.code, "message": error.message}),
            content_type=f"application/x-amz-json-{self.version}",
            headers=headers,
        )
