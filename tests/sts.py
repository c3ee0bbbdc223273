"""A stand-in for STS that evaluates signatures of version 4 as the real one does.

The embedded cloud verifies the signature, from the request as it arrived. Tests
make it slow, broken, or let it redirect.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from aiohttp import web

from local_cloud.model.errors import CloudError
from local_cloud.server.signatures import Verifier

ACCOUNT = "123456789012"
ROLE_ARN = f"arn:aws:iam::{ACCOUNT}:role/gpu-host"
ASSUMED_ARN = f"arn:aws:sts::{ACCOUNT}:assumed-role/gpu-host/i-0abc"
_NAMESPACE = "https://sts.amazonaws.com/doc/2011-06-15/"


class Sts:
    """The service; all attributes may be changed while it serves."""

    def __init__(self) -> None:
        self.secrets = {"AKIDROLE": "secret"}  #: access key → its secret
        self.arn = ASSUMED_ARN
        self.status: int | None = None  #: of every answer
        self.location: str | None = None  #: of a redirect
        self.body: str | None = None
        self.hangs = False
        self.requests: list[web.BaseRequest] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.requests.append(request)
        if self.hangs:
            await asyncio.sleep(3600)
        if self.location is not None:
            return web.Response(status=302, headers={"Location": self.location})
        if self.status is not None:
            return web.Response(status=self.status)
        if self.body is not None:
            return web.Response(text=self.body)
        try:
            Verifier(self.secrets, time.time).check(request, ("sts",), b"")
        except CloudError as error:
            return self._xml(
                403,
                f"<Error><Code>{error.code}</Code><Message>{error.message}</Message></Error>",
                "ErrorResponse",
            )
        identity = f"<Arn>{self.arn}</Arn><UserId>AROA:i-0abc</UserId><Account>{ACCOUNT}</Account>"
        result = f"<GetCallerIdentityResult>{identity}</GetCallerIdentityResult>"
        return self._xml(200, result, "GetCallerIdentityResponse")

    def _xml(self, status: int, inner: str, outer: str) -> web.Response:
        text = f'<{outer} xmlns="{_NAMESPACE}">{inner}</{outer}>'
        return web.Response(status=status, text=text, content_type="text/xml")


@contextlib.asynccontextmanager
async def serving_sts(port: int = 0) -> AsyncIterator[tuple[Sts, str]]:
    """A service for the length of the block, with its address."""
    sts = Sts()
    runner = web.ServerRunner(web.Server(sts.answer), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        name: tuple[str, int] = runner.addresses[0]
        yield sts, f"http://127.0.0.1:{name[1]}"
    finally:
        await runner.cleanup()
