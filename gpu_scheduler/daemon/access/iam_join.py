"""Joining by IAM: STS evaluates a host's presigned request, and the host gets a short-lived key.

The request is sent to allowed endpoints only, once, without redirects, with this scheduler's own
name and the connection's own nonce in the signed headers: a request that was signed for another
scheduler or connection fails at STS. Keys are held in memory: after a restart hosts join again.
"""

from __future__ import annotations

import logging
import secrets
import tomllib
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import yarl

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.daemon.access.iam_rules import IamRules
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, digest
from gpu_scheduler.protocol.host import NONCE_HEADER, SERVER_HEADER
from gpu_scheduler.protocol.keys import name_of, new_key

logger = logging.getLogger(__name__)

#: Lifetime of a key; a host renews it at half of that.
KEY_S = 3600.0
#: Keys of one host that are in force: that of its connection, the next one, and of two restarts.
#: An older one is revoked.
KEYS_PER_HOST = 4
#: Keys of all hosts; a role with `hosts = "any"` may join under any name.
KEYS_MAX = 40_000
#: STS answers in a tenth of a second; a connection has 5 s until its hello.
STS_S = 3.0
ANSWER_BYTES_MAX = 16 * 2**10
#: Requests to STS at once; callers above it repeat theirs.
UNDER_WAY_MAX = 64
FILE_BYTES_MAX = 2**20
_NAMESPACE = "{https://sts.amazonaws.com/doc/2011-06-15/}"


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """The key of a host that joined."""

    entry: KeyEntry
    role: str  #: ARN
    until_s: float  #: monotonic


def read_rules(path: Path) -> IamRules:
    """Read the file of `--join-iam`. Raises INVALID."""
    try:
        data = path.read_bytes()
        if len(data) > FILE_BYTES_MAX:
            raise invalid(f"{path} is larger than {FILE_BYTES_MAX} bytes")
        fields = tomllib.loads(data.decode())
    except OSError as error:
        raise invalid(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise invalid(f"{path} is not valid TOML: {error}") from None
    return IamRules.read(fields, str(path))


class IamKeyIssuer:
    """The keys that hosts got by their role. Raises INVALID for an unusable file."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._seen = path.stat().st_mtime_ns if path.exists() else 0
        self.rules = read_rules(path)
        self._keys: dict[str, IssuedKey] = {}  #: by the name of the key
        self._under_way = 0

    def challenge(self) -> str:
        """A nonce for one connection."""
        return secrets.token_hex(16)

    async def join(self, host: str, url: str, nonce: str) -> str:
        """A key for the host whose role signed this request. Raises DENIED, UNAVAILABLE."""
        self.rules.check_url(url)
        if self._under_way >= UNDER_WAY_MAX:
            raise AppError(ErrorCode.EXHAUSTED, "too many hosts join at once; try again")
        self._under_way += 1
        try:
            arn = await _caller_identity(url, self.rules.server, nonce)
        finally:
            self._under_way -= 1
        role = self.rules.check_host(arn, host)
        key = self._issue(host, role)
        logger.info("joined", extra={"event": "joined", "host": host, "arn": arn})
        return key

    def _issue(self, host: str, role: str) -> str:
        now_s = self._clock.monotonic_s()
        self._keys = {n: one for n, one in self._keys.items() if one.until_s > now_s}
        of_host = [name for name, one in self._keys.items() if one.entry.host == host]
        for name in of_host[: max(0, len(of_host) - KEYS_PER_HOST + 1)]:  # oldest first
            del self._keys[name]
        if len(self._keys) >= KEYS_MAX:
            text = f"{KEYS_MAX} keys of hosts are in force; join again when some have expired"
            raise AppError(ErrorCode.EXHAUSTED, text)
        key = new_key(f"iam-{secrets.token_hex(8)}")
        name = name_of(key) or ""
        entry = KeyEntry(name=name, role=KeyRole.HOST, sha256=digest(key), host=host)
        self._keys[name] = IssuedKey(entry, role, now_s + KEY_S)
        return key

    def in_force(self, name: str) -> KeyEntry | None:
        """The entry of a key by its name, while it has not expired and its role may join."""
        issued = self._keys.get(name)
        if issued is None or issued.until_s <= self._clock.monotonic_s():
            return None
        return issued.entry if self.rules.allows(issued.role) else None

    def reread_if_changed(self) -> None:
        """Read changed rules; the last valid ones stay in force otherwise."""
        try:
            seen = self._path.stat().st_mtime_ns
            if seen != self._seen:
                self._seen = seen
                self.rules = read_rules(self._path)
                logger.info("roles read", extra={"event": "roles", "roles": len(self.rules.roles)})
        except (OSError, AppError) as error:
            logger.error("the roles in force stay: %s", error, extra={"event": "roles"})


async def _caller_identity(url: str, server: str, nonce: str) -> str:
    headers = {SERVER_HEADER: server, NONCE_HEADER: nonce}
    timeout = aiohttp.ClientTimeout(total=STS_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=headers, trust_env=True) as http,
            http.get(_exactly(url), allow_redirects=False) as answer,
        ):
            status, data = answer.status, b""
            while len(data) < ANSWER_BYTES_MAX and (more := await answer.content.readany()):
                data += more
    except TimeoutError:
        raise _unavailable(f"STS did not answer in {STS_S:g} s") from None
    except aiohttp.ClientError as error:
        raise _unavailable(f"STS cannot be reached: {error}") from None
    if status >= 500 or status == 429:
        raise _unavailable(f"STS answered {status}")
    if status != 200:
        why = "a redirect" if 300 <= status < 400 else _error_of(data)
        text = f"join: STS refused the request: {status}, {why}"
        raise AppError(ErrorCode.DENIED, text, needs="role")
    arn = _text_of(data, "GetCallerIdentityResult", "Arn")
    if arn is None:
        raise _unavailable("the answer of STS names no identity")
    return arn


def _exactly(url: str) -> yarl.URL:
    return yarl.URL(url, encoded=True)


def _error_of(data: bytes) -> str:
    return _text_of(data, "Error", "Message") or "without a reason"


def _text_of(data: bytes, *path: str) -> str | None:
    if b"<!" in data:  # neither a document type nor entities
        return None
    try:
        # of an allowed endpoint of STS, at most 16 KiB, and without a document type
        element: ElementTree.Element | None = ElementTree.fromstring(data)  # noqa: S314
    except ElementTree.ParseError:
        return None
    for name in path:
        element = None if element is None else element.find(f"{_NAMESPACE}{name}")
    return None if element is None or element.text is None else element.text.strip()[:2000]


def _unavailable(text: str) -> AppError:
    return AppError(ErrorCode.UNAVAILABLE, f"join: {text}")
