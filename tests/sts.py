"""A stand-in for STS that evaluates signatures of version 4 as the real one does.

The signature is computed by the embedded cloud's own code, from the request as it arrived. Tests
make it slow, broken, or let it redirect.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

from aiohttp import web

from corekit.values import replace
from local_cloud.model.errors import CloudError
from local_cloud.server.signatures import v4
from local_cloud.server.signatures.sent import SentRequest

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
            self._verify(request)
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

    def _verify(self, request: web.BaseRequest) -> None:
        path, _, query = request.raw_path.partition("?")
        headers = [(name.lower(), value) for name, value in request.headers.items()]
        sent = SentRequest(
            method=request.method, path=path, query=query, headers=headers, host_bucket=""
        )
        claim = v4.query_claim(sent)
        if datetime.now(UTC) >= claim.signed_at + timedelta(seconds=claim.expires_s or 0):
            raise CloudError("ExpiredToken", 403, "Signature expired")
        secret = self.secrets.get(claim.access_key)
        if secret is None:
            raise CloudError("InvalidClientTokenId", 403, "The security token is invalid")
        empty = hashlib.sha256(b"").hexdigest()
        expected = v4.sign(sent, replace(claim, payload_hash=empty), secret, empty)
        if expected.signature != claim.signature:
            raise CloudError("SignatureDoesNotMatch", 403, "The signature does not match")


@contextlib.asynccontextmanager
async def serving_sts() -> AsyncIterator[tuple[Sts, str]]:
    """A service for the length of the block, with its address."""
    sts = Sts()
    runner = web.ServerRunner(web.Server(sts.answer), shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        name: tuple[str, int] = runner.addresses[0]
        yield sts, f"http://127.0.0.1:{name[1]}"
    finally:
        await runner.cleanup()
