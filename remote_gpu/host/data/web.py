"""Reads of files by HTTPS, in parts: what the sources of the web have in common."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping

import aiohttp
from yarl import URL

from corekit.addresses import refused_address
from corekit.aio.checked_resolver import CheckedResolver, RefusedAddressError
from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import is_loopback

#: Takes the bytes of a part, in order.
Sink = Callable[[bytes], None]
CHUNK_BYTES = 1 << 20
#: Seconds without a byte, after which a read has failed and is tried again.
SILENCE_S = 30.0
CONNECT_S = 10.0
_DOCUMENT_BYTES_MAX = 64 << 20
_AUTHORIZATION = "Authorization"


class ChallengedError(AppError):
    """A refusal (401) with the server's `WWW-Authenticate`."""

    def __init__(self, message: str, challenge: str) -> None:
        super().__init__(ErrorCode.DENIED, message)
        self.challenge = challenge


def url_of(text: str) -> URL:
    """The URL of a text. Raises INVALID for another text."""
    try:
        return URL(text)
    except ValueError as error:
        raise invalid(f"{text.partition('?')[0]:.200} is not a valid URL: {error}") from None


def on_this_machine(address: str) -> bool:
    """The machine itself, whose services trust it, and its credentials."""
    return is_loopback(address) or refused_address(address)


class Web:
    """Reads of parts by HTTP; a server that knows no ranges sends the whole file.

    Methods raise AppError, as those of `sources.Source`.
    """

    def __init__(
        self, refused: Callable[[str], bool] = on_this_machine, *, redirects_max: int = 0
    ) -> None:
        """`refused`: addresses that may not be connected to. `redirects_max`: none where a redirect
        could lead to a source that the operator does not let in."""
        self._refused = refused
        self._redirects_max = redirects_max
        self._session: aiohttp.ClientSession | None = None

    async def size_bytes(self, url: str) -> int | None:
        """The size of a file that can be read in parts; None for any other."""
        async with self._asked(url, {"Range": "bytes=0-0"}) as answer:
            whole = answer.headers.get("Content-Range", "").rpartition("/")[2]
            return int(whole) if answer.status == 206 and whole.isdecimal() else None

    async def get(
        self, url: str, start: int, stop: int | None, sink: Sink, headers: Mapping[str, str]
    ) -> None:
        """The bytes from `start` up to `stop`. A server without ranges sends all bytes before them
        too: a file of n parts costs n/2 times its bytes."""
        part = {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        async with self._asked(url, {**headers, **(part if start or stop else {})}) as answer:
            at, end = (start, None) if answer.status == 206 else (0, stop)
            async for chunk in answer.content.iter_chunked(CHUNK_BYTES):
                sink(chunk[max(0, start - at) : None if end is None else end - at])
                at += len(chunk)
                if end is not None and at >= end:
                    return

    async def document(self, url: str, headers: Mapping[str, str]) -> bytes:
        """A whole document. Raises INVALID for one of more than 64 MiB."""
        found = bytearray()

        def keep(data: bytes) -> None:
            found.extend(data)
            if len(found) > _DOCUMENT_BYTES_MAX:
                raise invalid(f"{url.partition('?')[0]} has more than {_DOCUMENT_BYTES_MAX} bytes")

        await self.get(url, 0, None, keep, headers)
        return bytes(found)

    @contextlib.asynccontextmanager
    async def _asked(
        self, text: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url, sent = url_of(text), {"Accept-Encoding": "identity", **headers}
        place = text.partition("?")[0]
        try:
            for left in range(self._redirects_max, -1, -1):
                if self._refused(url.host or ""):  # a resolver is not asked about an address
                    raise _denied(place)
                get = self._opened().get(url, headers=sent, allow_redirects=False)
                async with get as answer:
                    if answer.status < 300:
                        yield answer
                        return
                    if not left or (target := _target(answer)) is None:
                        raise _answered(place, answer)
                if target.origin() != url.origin():
                    sent.pop(_AUTHORIZATION, None)
                url = target
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error.__cause__, RefusedAddressError):
                raise _denied(place) from None
            raise AppError(ErrorCode.UNAVAILABLE, f"{place}: {error!r:.200}") from None

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(resolver=CheckedResolver(self._refused)),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=limits,
                auto_decompress=False,
            )
        return self._session

    async def close(self) -> None:
        """Release the connections. Idempotent."""
        if self._session is not None:
            await self._session.close()


def _target(answer: aiohttp.ClientResponse) -> URL | None:
    """The place that a redirect names; None for one that gives TLS up, or names none."""
    location = answer.headers.get("Location", "")
    if answer.status not in (301, 302, 303, 307, 308) or not location:
        return None
    try:
        # a signed URL is requested as it was signed
        target = answer.url.join(URL(location, encoded=True))
    except ValueError:
        return None
    kept = (answer.url.scheme, "https")
    return target if target.host and target.scheme in kept else None


def _denied(place: str) -> AppError:
    text = f"{place} leads to this machine, or to a link-local or metadata address"
    return AppError(ErrorCode.DENIED, text)


def _answered(place: str, answer: aiohttp.ClientResponse) -> AppError:
    status = answer.status
    if status < 400:
        text = f"{place} redirects ({status}), which is not followed; declare where the file is"
        return invalid(text)
    if status in (404, 410):
        return AppError(ErrorCode.NOT_FOUND, f"{place} does not exist ({status})")
    if status in (401, 403):
        text = f"{place} may not be read by this machine ({status})"
        return ChallengedError(text, answer.headers.get("WWW-Authenticate", ""))
    again = status >= 500 or status in (408, 429)
    code = ErrorCode.UNAVAILABLE if again else ErrorCode.INVALID
    return AppError(code, f"{place} answers with status {status}")
