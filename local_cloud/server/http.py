"""One port for every service: routing of requests, and errors in each service's form."""

from __future__ import annotations

import asyncio
import enum
import json
import logging
import re
from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from corekit.decode import encode
from corekit.net.browsers import Foreign
from local_cloud.server import iam
from local_cloud.server.context import Context
from local_cloud.server.functions import service as functions
from local_cloud.server.guard import foreign, refusal
from local_cloud.server.json_protocol import JsonService
from local_cloud.server.logs import LOGS
from local_cloud.server.s3 import service as s3
from local_cloud.server.s3.target import bucket_of_host
from local_cloud.server.secrets import PARAMETERS, SECRETS
from local_cloud.server.sqs import SQS

logger = logging.getLogger(__name__)

#: What X-Amz-Target begins with → the service.
_JSON: dict[str, JsonService] = {
    "AmazonSQS": SQS,
    "AmazonSSM": PARAMETERS,
    "Logs_20140328": LOGS,
    "secretsmanager": SECRETS,
}
_SERVICES = ("s3", "sqs", "lambda", "iam", "sts", "logs", "ssm", "secretsmanager")
_CODE = "/_local_cloud/code/"
_DIGEST = re.compile(r"[0-9a-f]{64}")

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Service(enum.Enum):
    """The services of the port."""

    JSON = "json"  #: those of the JSON protocol
    LAMBDA = "lambda"
    QUERY = "query"  #: IAM and STS
    S3 = "s3"
    HEALTH = "health"
    CODE = "code"
    WEATHER = "weather"


def _service_of(request: web.BaseRequest, host_bucket: str) -> Service:
    if _target(request)[0] in _JSON:
        return Service.JSON
    if host_bucket:
        return Service.S3
    if functions.is_for_lambda(request):
        return Service.LAMBDA
    path = request.path
    if path == "/" and request.method == "POST":
        return Service.QUERY
    if path == "/_local_cloud/health":
        return Service.HEALTH
    if path == "/_local_cloud/weather":
        return Service.WEATHER
    return Service.CODE if path.startswith(_CODE) else Service.S3


def _target(request: web.BaseRequest) -> tuple[str, str]:
    """The service and operation of the JSON protocol."""
    service, _, operation = request.headers.get("X-Amz-Target", "").partition(".")
    return service, operation


class Router:
    """The handler of all requests."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._state = context.state
        self._opened = asyncio.Event()
        self._answers: dict[Service, Handler] = {
            Service.JSON: self._json,
            Service.LAMBDA: partial(functions.answer, context),
            Service.QUERY: partial(iam.answer, context),
            Service.HEALTH: self._health,
            Service.CODE: self._code,
            Service.WEATHER: self._weather,
        }

    def open(self) -> None:
        """Begin to answer: the port is bound before the services are ready."""
        self._opened.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; what it changed is on disk before the answer leaves."""
        await self._opened.wait()
        try:
            return await self._dispatch(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise  # the client left
        except Exception as error:
            return unexpected(error)
        finally:
            self._state.flush()

    async def _dispatch(self, request: web.BaseRequest) -> web.StreamResponse:
        allowed, region = self._context.allowed_hosts, self._context.cloud.account.region
        host_bucket = bucket_of_host(request, region, allowed)
        service = _service_of(request, host_bucket)
        found = foreign(request, allowed)
        if service is Service.S3 and (found is None or found.header == "Origin"):
            return await self._s3(request, host_bucket, found)
        if found is not None:
            return refusal(found)
        return await self._answers[service](request)

    async def _json(self, request: web.BaseRequest) -> web.Response:
        service, operation = _target(request)
        return await _JSON[service].answer(self._context, request, operation)

    async def _health(self, _: web.BaseRequest) -> web.Response:
        return web.json_response({"services": list(_SERVICES)})

    async def _weather(self, _: web.BaseRequest) -> web.Response:
        """The weather, and how often each of its rules took effect since the start."""
        cloud, now_s = self._context.cloud, self._context.now_s()
        return web.json_response(
            {
                "weather": encode(cloud.weather),
                "counts": dict(sorted(cloud.draws.counts.items())),
                "late_rules": cloud.late_rules.pending(now_s),
                "throttled_now": cloud.functions.concurrency.busy(now_s),
            }
        )

    async def _code(self, request: web.BaseRequest) -> web.StreamResponse:
        """The zip at GetFunction's Code.Location."""
        name = request.path.removeprefix(_CODE)
        path = self._context.runner.code.zip_path(name.removesuffix(".zip"))
        if not _DIGEST.fullmatch(path.stem) or not path.is_file():
            return web.Response(status=404)
        return web.FileResponse(path)

    async def _s3(
        self, request: web.BaseRequest, host_bucket: str, found: Foreign | None
    ) -> web.StreamResponse:
        """S3, for other sites only where a CORS rule of the bucket names them."""
        if found is not None and not s3.cors_headers(self._context, request, host_bucket):
            return refusal(found)
        return await s3.handle(self._context, request, host_bucket)


def unexpected(error: Exception) -> web.Response:
    """An internal error, as the 500 that SDKs retry."""
    logger.error("a request failed", exc_info=error, extra={"event": "request_failed"})
    return web.Response(
        status=500,
        text=json.dumps({"__type": "InternalFailure", "message": "internal error; see the log"}),
        content_type="application/json",
    )
