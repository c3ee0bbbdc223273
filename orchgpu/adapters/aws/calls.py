"""The calls that every job makes: requests from templates, sent by botocore's own HTTP session.

botocore makes the first call of a kind. It also finishes every call whose answer is neither a
success nor an expected failure (404, 412): it gets that answer, or the error instead of one, as the
outcome of its own first attempt. So kinds of errors, repetitions with their pauses and quota, and
redirects to other regions have one implementation, botocore's.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, NamedTuple

import aiohttp
from aiobotocore.httpsession import AIOHTTPSession
from botocore import xform_name
from botocore.exceptions import FlexibleChecksumError
from botocore.httpchecksum import Crc32Checksum, Sha1Checksum, Sha256Checksum
from botocore.parsers import create_parser
from yarl import URL

from contract.aws.clients import Client
from orchgpu.adapters.aws.templates import DATE_FORMAT, Keys, Places, Sent, Template, learn

TEMPLATES_MAX = 10_000
#: What a call is about, besides the key of an object.
_SUBJECTS = ("Bucket", "QueueUrl", "FunctionName")
#: The answers that may mean that a bucket is elsewhere: botocore makes the next request.
_MOVED = frozenset({301, 302, 307, 308, 400})
#: Failures that are ordinary for jobs, and that botocore never repeats.
_FINAL = frozenset({404, 412})
_CHECKSUMS = {"crc32": Crc32Checksum, "sha1": Sha1Checksum, "sha256": Sha256Checksum}


class Answer(NamedTuple):
    headers: Mapping[str, str]  #: to be asked for names in lower case
    content: Any = None  #: the structure of a JSON answer; the bytes of an object


class _Call:
    """A call that botocore makes or finishes."""

    def __init__(self, outcome: aiohttp.ClientResponse | Exception | None) -> None:
        self.outcome = outcome  #: of the first attempt, which was made from a template
        self.sent: Sent | None = None  #: botocore's last request
        self.session: aiohttp.ClientSession | None = None  #: and how it was sent
        self.route: Mapping[str, Any] = {}

    async def request(
        self, session: aiohttp.ClientSession, method: str, url: URL, how: Mapping[str, Any]
    ) -> aiohttp.ClientResponse:
        outcome, self.outcome = self.outcome, None
        if isinstance(outcome, Exception):
            raise outcome
        if outcome is not None:
            return outcome
        headers = {name.lower(): value for name, value in how["headers"].items()}
        self.sent, self.session = Sent(method, str(url), headers), session
        self.route = {"proxy": how["proxy"], "proxy_headers": how["proxy_headers"]}
        return await session.request(method, url, **how)


_UNDER_WAY: ContextVar[_Call | None] = ContextVar("_UNDER_WAY", default=None)


class _Watched(NamedTuple):
    """An aiohttp session during a call."""

    session: aiohttp.ClientSession
    call: _Call

    async def request(self, method: str, url: URL, **how: Any) -> aiohttp.ClientResponse:
        return await self.call.request(self.session, method, url, how)


class WatchedSession(AIOHTTPSession):  # type: ignore[misc]
    """The HTTP session of a client that makes `Calls`."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session, call = await super()._get_session(proxy_url), _UNDER_WAY.get()
        return session if call is None else _Watched(session, call)


class _Way(NamedTuple):
    """The means to make calls of one kind without botocore."""

    template: Template
    session: aiohttp.ClientSession
    route: Mapping[str, Any]


class Calls:
    """Operations of one client, whose session is a `WatchedSession`. They raise its errors."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._model = client.meta.service_model
        self._json = self._model.metadata["protocol"] == "json"
        self._parser = create_parser(self._model.metadata["protocol"])
        self._credentials = client._request_signer._credentials  # noqa: SLF001 - no other way
        self._places: dict[str, Places] = {}
        self._ways: dict[tuple[str, ...], _Way] = {}
        self._successes = 0  #: since botocore's quota of repetitions was filled up

    async def __call__(
        self, operation: str, parameters: Mapping[str, Any], *, bytes_max: int = 0
    ) -> Answer:
        """`bytes_max`: of an object; the content of a larger one is None."""
        kind = (operation, *(parameters.get(name, "") for name in _SUBJECTS), *parameters)
        way = self._ways.get(kind)
        keys = None if way is None else await self._keys()
        if way is None or keys is None or not way.template.fits(keys):
            return await self._by_botocore(kind, parameters, bytes_max, None)
        body = way.template.places.body(parameters)
        date = time.strftime(DATE_FORMAT, time.gmtime())
        sent = way.template.fill(parameters, body, keys, date, str(uuid.uuid4()))
        outcome: aiohttp.ClientResponse | Exception
        try:
            outcome = await way.session.request(
                sent.method,
                URL(sent.url, encoded=True),
                headers=sent.headers,
                data=body,
                allow_redirects=False,
                **way.route,
            )
            answer = await self._read(operation, outcome, bytes_max)
        except (aiohttp.ClientError, OSError) as error:
            answer, outcome = None, error
        if answer is not None:
            self._successes += 1
            return answer
        if not isinstance(outcome, Exception) and outcome.status in _MOVED:
            self._ways.pop(kind, None)
        return await self._by_botocore(kind, parameters, bytes_max, outcome)

    async def _read(
        self, operation: str, response: aiohttp.ClientResponse, bytes_max: int
    ) -> Answer | None:
        """None: botocore has to read it. It stays readable: a released answer is not."""
        headers = response.headers
        good = 200 <= response.status < 300
        if good and operation == "GetObject" and int(headers["content-length"]) > bytes_max:
            response.close()  # the rest is not read
            return Answer(headers)
        try:
            body = await response.read()
        except BaseException:
            response.close()
            raise
        if response.status in _FINAL:
            raise self._error(operation, response.status, headers, body)
        if not good:
            return None
        if operation == "GetObject":
            return Answer(headers, _checked(body, headers))
        if self._json:
            return Answer(headers, json.loads(body) if body else {})  # a deletion has no body
        return None if body else Answer(headers)  # S3 may answer 200 with an error

    def _error(
        self, operation: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> Exception:
        """The exception that botocore would raise."""
        lower = {name.lower(): value for name, value in headers.items()}
        answer = {"status_code": status, "headers": lower, "body": body}
        parsed = self._parser.parse(answer, self._model.operation_model(operation).output_shape)
        kind = self._client.exceptions.from_code(parsed.get("Error", {}).get("Code"))
        error: Exception = kind(parsed, operation)
        return error

    async def _by_botocore(
        self,
        kind: tuple[str, ...],
        parameters: Mapping[str, Any],
        bytes_max: int,
        outcome: aiohttp.ClientResponse | Exception | None,
    ) -> Answer:
        call = _Call(outcome)
        await self._fill_quota()
        token = _UNDER_WAY.set(call)
        try:
            answer = await getattr(self._client, xform_name(kind[0]))(**parameters)
        finally:
            _UNDER_WAY.reset(token)
        await self._learn(kind, parameters, call)
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        if kind[0] == "Invoke":
            async with answer["Payload"]:  # unread, it would keep its connection
                return Answer(headers)
        if kind[0] != "GetObject":
            return Answer(headers, answer if self._json else None)
        async with answer["Body"] as stream:
            if int(headers["content-length"]) <= bytes_max:
                return Answer(headers, await stream.read())
            stream.close()  # the rest is not read
        return Answer(headers)

    async def _learn(
        self, kind: tuple[str, ...], parameters: Mapping[str, Any], call: _Call
    ) -> None:
        keys = await self._keys()
        if (
            call.sent is None
            or call.session is None
            or keys is None
            or not parameters.get("Key", 1)
        ):
            return
        places = self._places.setdefault(kind[0], Places.of(self._model.operation_model(kind[0])))
        template = learn(places, parameters, call.sent, keys)
        if template is not None:
            if len(self._ways) >= TEMPLATES_MAX:
                self._ways.clear()
            self._ways[kind] = _Way(template, call.session, call.route)

    async def _keys(self) -> Keys | None:
        if self._credentials is None:
            return None
        frozen = await self._credentials.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token)

    async def _fill_quota(self) -> None:
        """Each success gives botocore's quota of repetitions one back; it is full at 500."""
        released, self._successes = self._successes, 0
        if released:
            await self._client.meta.events.emit(
                f"after-call.{self._model.service_id.hyphenize()}",
                context={"retry_quota_capacity": released},
                http_response=SimpleNamespace(status_code=200),
            )


def _checked(body: bytes, headers: Mapping[str, str]) -> bytes:
    """The body, after the comparison with its checksum that botocore makes. Of parts: none."""
    for name, checksum in _CHECKSUMS.items():
        expected = headers.get(f"x-amz-checksum-{name}", "-")
        if "-" not in expected:
            found = checksum()
            found.update(body)
            if found.digest() != base64.b64decode(expected):
                raise FlexibleChecksumError(
                    error_msg=f"expected checksum {expected}, got {found.b64digest()}"
                )
            break
    return body
