"""One port for every service: which one a request is for, and errors in that service's form."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from urllib.parse import parse_qs

from aiohttp import web

from local_cloud.model.errors import CloudError, not_implemented
from local_cloud.server import logs, management, sqs
from local_cloud.server.context import Context
from local_cloud.server.functions import service as functions
from local_cloud.server.reading import read_whole
from local_cloud.server.s3 import service as s3

logger = logging.getLogger(__name__)

_SQS = "AmazonSQS."
_LOGS = "Logs_20140328."
_CODE = "/_local_cloud/code/"
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Front:
    """The handler of all requests."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = context.state
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Begin to answer: the port is bound before everything behind it is there."""
        self._opened.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; what it changed is on disk before the answer leaves."""
        await self._opened.wait()
        try:
            return await self._dispatch(request)
        except web.HTTPNotModified as answer:
            return web.Response(status=304, headers=answer.headers)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise  # the client left; there is nobody to answer
        except Exception as error:
            return unexpected(error)
        finally:
            self._state.flush()

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        target = request.headers.get("X-Amz-Target", "")
        if target.startswith(_SQS):
            try:
                return await sqs.handle(self._context, request, target.removeprefix(_SQS))
            except CloudError as error:
                return sqs.error_response(error)
        if target.startswith(_LOGS):
            return await self._logs(request, target.removeprefix(_LOGS))
        if functions.is_for_lambda(request):
            return await self._functions(request)
        path = request.path
        if path == "/" and request.method == "POST":
            return await self._query(request)
        if path == "/_local_cloud/health":
            return web.json_response({"services": ["s3", "sqs", "lambda", "iam", "sts", "logs"]})
        if path.startswith(_CODE):
            return self._code(path.removeprefix(_CODE))
        return await self._s3(request)

    def _code(self, name: str) -> web.StreamResponse:
        """What GetFunction's Code.Location points to."""
        path = self._context.runner.code.zip_path(name.removesuffix(".zip"))
        if not _DIGEST.fullmatch(path.stem) or not path.is_file():
            return web.Response(status=404)
        return web.FileResponse(path)

    async def _s3(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await s3.handle(self._context, request)
        except CloudError as error:
            request_id = self._context.cloud.new_request_id()
            answer = s3.error_response(request, error, request_id)
            if not request.content.at_eof() and request.body_exists:
                answer.force_close()  # the rest of the body is not worth reading
            return answer

    async def _functions(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await functions.handle(self._context, request)
        except CloudError as error:
            return functions.error_response(error)

    async def _logs(self, request: web.BaseRequest, operation: str) -> web.Response:
        try:
            return await logs.handle(self._context, request, operation)
        except CloudError as error:
            return web.json_response(
                {"__type": error.code, "message": error.message}, status=error.status
            )

    async def _query(self, request: web.BaseRequest) -> web.Response:
        """IAM and STS speak the form-encoded query protocol."""
        try:
            text = (await read_whole(request)).decode("utf-8", "replace")
            form = {name: values[-1] for name, values in parse_qs(text).items()}
            if "Action" not in form:
                raise not_implemented(f"{request.headers.get('X-Amz-Target', 'this POST')}")
            return management.handle(self._context, form)
        except CloudError as error:
            return management.error_response(error)


def unexpected(error: Exception) -> web.Response:
    """A bug of ours, as the 500 that SDKs repeat."""
    logger.error("a request failed", exc_info=error, extra={"event": "request_failed"})
    return web.Response(
        status=500,
        text=json.dumps({"__type": "InternalFailure", "message": "internal error; see the log"}),
        content_type="application/json",
    )
