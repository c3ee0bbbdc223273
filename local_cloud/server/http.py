"""One port for every service: routing of requests, and errors in each service's form."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from functools import partial

from aiohttp import web

from corekit.decode import encode
from corekit.net.browsers import foreign_part
from local_cloud.server.batch import BATCH
from local_cloud.server.context import Context
from local_cloud.server.functions.service import LAMBDA
from local_cloud.server.iam import IAM_AND_STS
from local_cloud.server.logs import LOGS
from local_cloud.server.s3 import service as s3
from local_cloud.server.s3.call import bucket_of_host
from local_cloud.server.schedules import SCHEDULER
from local_cloud.server.secrets import PARAMETERS, SECRETS
from local_cloud.server.services import JsonService, RestService
from local_cloud.server.sqs import SQS

logger = logging.getLogger(__name__)

#: What X-Amz-Target begins with → the service.
JSON_SERVICES: dict[str, JsonService] = {
    "AmazonSQS": SQS,
    "AmazonSSM": PARAMETERS,
    "Logs_20140328": LOGS,
    "secretsmanager": SECRETS,
}
#: The name that signatures have → the service.
REST_SERVICES: dict[str, RestService] = {
    "batch": BATCH,
    "lambda": LAMBDA,
    "scheduler": SCHEDULER,
}
_SERVICES = ("s3", "sqs", "iam", "sts", "logs", "ssm", "secretsmanager", *REST_SERVICES)
_LAMBDA_PATH = re.compile(
    r"/20\d\d-\d\d-\d\d/(functions|tags|account-settings|event-source-mappings)\b"
)
_OWN = "/_local_cloud/"  #: paths of no AWS service
_ZIP = re.compile(r"code/(?P<digest>[0-9a-f]{64})\.zip")

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Router:
    """The handler of all requests."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._opened = asyncio.Event()

    def open(self) -> None:
        """Begin to answer: the port is bound before the services are ready."""
        self._opened.set()

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request; what it changed is on disk before the answer leaves."""
        await self._opened.wait()
        try:
            refusal = _page_refusal(request, self._context.allowed_hosts)
            return refusal or await self._handler(request)(request)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise  # the client left
        except Exception as error:
            return unexpected(error)
        finally:
            self._context.state.flush()

    def _handler(self, request: web.BaseRequest) -> Handler:
        context, path = self._context, request.path
        service = request.headers.get("X-Amz-Target", "").partition(".")[0]
        if service in JSON_SERVICES:
            return partial(JSON_SERVICES[service].answer, context)
        region = context.cloud.account.region
        bucket = bucket_of_host(request, region, context.allowed_hosts)
        rest = None if bucket else _rest_service(request)
        if rest is not None:
            return partial(rest.answer, context)
        if not bucket and path == "/" and request.method == "POST":
            return partial(IAM_AND_STS.answer, context)
        if not bucket and path.startswith(_OWN):
            return self._own
        return partial(s3.handle, context, host_bucket=bucket)

    async def _own(self, request: web.BaseRequest) -> web.StreamResponse:
        name = request.path.removeprefix(_OWN)
        zipped = _ZIP.fullmatch(name)
        if name == "health":
            return web.json_response({"services": list(_SERVICES)})
        if name == "weather":
            return web.json_response(self._weather())
        if zipped is None:
            return web.Response(status=404)
        path = self._context.runner.code.zip_path(zipped["digest"])  # at Code.Location
        return web.FileResponse(path) if path.is_file() else web.Response(status=404)

    def _weather(self) -> dict[str, object]:
        cloud, now_s = self._context.cloud, self._context.now_s()
        return {
            "weather": encode(cloud.weather),
            "counts": dict(sorted(cloud.draws.counts.items())),
            "late_rules": cloud.late_rules.pending(now_s),
            "throttled_now": cloud.functions.concurrency.busy(now_s),
        }


def _rest_service(request: web.BaseRequest) -> RestService | None:
    """By the credential scope; unsigned requests of Lambda by their path."""
    authorization = request.headers.get("Authorization", "")
    for name, service in REST_SERVICES.items():
        if f"/{name}/aws4_request" in authorization:
            return service
    is_lambda = not authorization and _LAMBDA_PATH.match(request.path)
    return LAMBDA if is_lambda else None


def _page_refusal(request: web.BaseRequest, allowed: Collection[str]) -> web.Response | None:
    """The refusal of a page of another site, since this port runs code; None: it is none."""
    transport = request.transport
    # the local IP address of the connection, empty once it is closed
    name = transport.get_extra_info("sockname") if transport is not None else None
    reached = str(name[0]) if name else ""
    page = foreign_part(request.method, request.headers, reached, allowed)
    if page is None:
        return None
    answer = web.Response(
        status=403,
        text=json.dumps({"__type": "AccessDenied", "message": page.refusal()}),
        content_type="application/json",
        headers={"x-amzn-ErrorType": "AccessDenied"},
    )
    answer.force_close()  # its body is not worth reading
    return answer


def unexpected(error: Exception) -> web.Response:
    """An internal error, as the 500 that SDKs retry."""
    logger.error("a request failed", exc_info=error, extra={"event": "request_failed"})
    return web.Response(
        status=500,
        text=json.dumps({"__type": "InternalFailure", "message": "internal error; see the log"}),
        content_type="application/json",
    )
