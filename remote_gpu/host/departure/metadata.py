"""The EC2 instance metadata service: a client, in its version 2 only, and the watch for notices.

A token from `PUT /latest/api/token` belongs to every GET; a 401 means that it has expired. A 404
means that there is no such item now. The answer to the PUT travels as many hops as the instance's
`HttpPutResponseHopLimit` allows, 1 by default: in a container with a network of its own it never
arrives. No proxy is used, and no redirect followed.

AWS recommends to look every 5 seconds. A service that does not answer changes no notice. An item is
evaluated when its text changes, so that the limit of a notice counts from its first sight.

https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode
from remote_gpu.host.departure.departure import Departure
from remote_gpu.host.departure.notices import ITEMS, Moment, NoticeSource

#: Variables of the AWS SDKs: the endpoint, its address family, and whether it may be used.
#: https://docs.aws.amazon.com/sdkref/latest/guide/feature-imds-credentials.html
ENDPOINT_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
MODE_VARIABLE = "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"
DISABLED_VARIABLE = "AWS_EC2_METADATA_DISABLED"
_ENDPOINTS = {"ipv4": "http://169.254.169.254", "ipv6": "http://[fd00:ec2::254]"}
#: Lifetime of a token, the longest that the service allows.
TOKEN_TTL_S = 21_600
#: The longest item that is read; those of interest have less than 100 bytes.
ITEM_BYTES_MAX = 64 * 2**10


def endpoint_of(environment: Mapping[str, str]) -> str:
    """The address of the service: of the AWS variables, else the link-local one."""
    mode = environment.get(MODE_VARIABLE, "").lower()
    named = environment.get(ENDPOINT_VARIABLE)
    return (named or _ENDPOINTS.get(mode, _ENDPOINTS["ipv4"])).rstrip("/")


def is_on_ec2(environment: Mapping[str, str], system: Path = Path("/sys")) -> bool:
    """Whether this machine is an EC2 instance, or its endpoint is named.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html
    """
    if environment.get(DISABLED_VARIABLE, "").lower() == "true":
        return False
    if environment.get(ENDPOINT_VARIABLE):
        return True
    nitro = _text(system / "devices/virtual/dmi/id/sys_vendor") == "Amazon EC2"
    return nitro or _text(system / "hypervisor/uuid").lower().startswith("ec2")


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


class InstanceMetadata:
    """`async with InstanceMetadata(endpoint, answer_s) as metadata: await metadata.item(path)`.

    Made in the event loop.
    """

    def __init__(self, endpoint: str, answer_s: float) -> None:
        """`answer_s`: the service answers each request within this time."""
        self.endpoint = endpoint
        self._answer_s = answer_s
        self._token: str | None = None
        import aiohttp  # a third of gpud's start, and few hosts are instances of EC2

        timeout = aiohttp.ClientTimeout(total=answer_s)
        self._http = aiohttp.ClientSession(timeout=timeout, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def item(self, path: str) -> str | None:
        """An item below `/latest/meta-data/`; None when there is none. Raises UNAVAILABLE."""
        status, text = await self._get(path)
        if status == 401:  # the token expired, or the instance was moved
            self._token = None
            status, text = await self._get(path)
        if status == 404:
            return None
        if status != 200:
            raise self._unavailable(f"it answered {status} to {path}")
        return text

    async def _get(self, path: str) -> tuple[int, str]:
        if self._token is None:
            self._token = await self._new_token()
        headers = {"X-aws-ec2-metadata-token": self._token}
        return await self._ask("GET", f"/latest/meta-data/{path}", headers)

    async def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_TTL_S)}
        try:
            status, token = await self._ask("PUT", "/latest/api/token", headers)
        except TimeoutError:
            text = f"no token arrived in {self._answer_s:g} s; in a container, raise the"
            raise self._unavailable(f"{text} instance's HttpPutResponseHopLimit to 2") from None
        if status == 403:
            raise self._unavailable("it is disabled for this instance (HttpEndpoint)")
        if status != 200 or not token:
            raise self._unavailable(f"it answered {status} to the request for a token")
        return token

    async def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str]:
        """Raises TimeoutError for a PUT, UNAVAILABLE for every other failure."""
        from aiohttp import ClientError

        try:
            async with self._http.request(
                method, self.endpoint + path, headers=headers, allow_redirects=False
            ) as answer:
                data = b""
                while len(data) < ITEM_BYTES_MAX and (more := await answer.content.readany()):
                    data += more
                return answer.status, data.decode("utf-8", "replace").strip()
        except TimeoutError:
            if method == "PUT":
                raise
            raise self._unavailable(f"no answer in {self._answer_s:g} s") from None
        except ClientError as error:
            raise self._unavailable(str(error) or type(error).__name__) from None

    def _unavailable(self, why: str) -> AppError:
        text = f"instance metadata at {self.endpoint}: {why}"
        return AppError(ErrorCode.UNAVAILABLE, text)


logger = logging.getLogger(__name__)


class MetadataWatch:
    """Passes the notices of the metadata on to the departure of this host."""

    def __init__(
        self,
        metadata: InstanceMetadata,
        departure: Departure,
        budget: Budget,
        sources: Sequence[NoticeSource] = tuple(ITEMS),
    ) -> None:
        self._metadata = metadata
        self._departure = departure
        self._budget = budget
        self._sources = sources
        self._seen: dict[NoticeSource, str | None] = {}
        self._problem = ""  #: the newest one, logged once

    async def run(self) -> None:
        """Look at all items again and again. Endless."""
        fields = {"event": "instance_metadata", "endpoint": self._metadata.endpoint}
        logger.info("watching the instance metadata", extra=fields)
        async with self._metadata:
            while True:
                await self.look()
                await asyncio.sleep(self._budget.instance_metadata_poll_s)

    async def look(self) -> None:
        """Look at all items once, inside `async with metadata`."""
        try:
            for source in self._sources:
                text = await self._metadata.item(ITEMS[source][0])
                if text != self._seen.get(source):
                    self._seen[source] = text
                    self._take(source, text)
        except AppError as error:
            if error.message != self._problem:
                logger.warning("%s", error.message, extra={"event": "instance_metadata"})
            self._problem = error.message
        else:
            self._problem = ""

    def _take(self, source: NoticeSource, text: str | None) -> None:
        path, read = ITEMS[source]
        logger.info("instance metadata", extra={"event": "notice", "item": path, "value": text})
        moment = Moment(
            at_s=asyncio.get_running_loop().time(),
            wall_s=time.time(),
            drain_s=self._departure.drain_s,
            reserve_s=self._budget.worker_cut_s,
        )
        try:
            self._departure.notice(source, None if text is None else read(text, moment))
        except AppError as error:
            logger.warning("%s", error.message)
