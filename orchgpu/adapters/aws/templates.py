"""Requests like those that botocore has sent, with other values.

A template is made from one request of botocore. It serves the calls of the same kind: the same
operation on the same bucket, queue or function, with the same parameters present. Their values
alone differ; the place of each is known from botocore's model of the service.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import SplitResult, quote, urlsplit

from botocore.utils import normalize_url_path, percent_encode, percent_encode_sequence

ALGORITHM = "AWS4-HMAC-SHA256"
DATE_FORMAT = "%Y%m%dT%H%M%SZ"
_AUTHORIZATION = re.compile(
    rf"{ALGORITHM} Credential=[^,]+/\d{{8}}/(?P<region>[^/,]+)/(?P<service>[^/,]+)/aws4_request, "
    r"SignedHeaders=(?P<signed>[^,]+), Signature=[0-9a-f]{64}"
)
_PORTS = {"http": 80, "https": 443}
#: Headers that every request has a value of its own for, beside those of parameters.
_AUTHORIZED, _DATE, _TOKEN = "authorization", "x-amz-date", "x-amz-security-token"
_DIGEST, _LENGTH = "x-amz-content-sha256", "content-length"
_INVOCATION, _ATTEMPT = "amz-sdk-invocation-id", "amz-sdk-request"
_OWN = frozenset({_AUTHORIZED, _DATE, _TOKEN, _DIGEST, _LENGTH, _INVOCATION, _ATTEMPT})
_FIRST = "attempt=1"
#: botocore lets S3 look at a request before it sends the body, which is a round trip more. Bodies
#: of requests from templates are small: they go with the head.
_EXPECT = "expect"


class Keys(NamedTuple):
    access_key: str
    secret_key: str
    token: str | None


class Sent(NamedTuple):
    """A request as aiohttp gets it. Names of headers are in lower case."""

    method: str
    url: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Places:
    """The places of an operation's parameters in its requests."""

    headers: Mapping[str, str]  #: parameter → its header
    query: Mapping[str, str]
    payload: str | None  #: the parameter that is the body
    json: bool  #: the body is all parameters

    @classmethod
    def of(cls, operation: Any) -> Places:
        """`operation`: botocore's model of one."""
        headers: dict[str, str] = {}
        query: dict[str, str] = {}
        for name, shape in operation.input_shape.members.items():
            place = shape.serialization
            if place.get("location") == "header":
                headers[name] = place["name"].lower()
            elif place.get("location") == "querystring":
                query[name] = place["name"]
        return cls(
            headers=headers,
            query=query,
            payload=operation.input_shape.serialization.get("payload"),
            json=operation.service_model.metadata["protocol"] == "json",
        )

    def body(self, parameters: Mapping[str, Any]) -> bytes | None:
        if self.json:
            return json.dumps(parameters).encode()
        return None if self.payload is None else parameters.get(self.payload)


@dataclass
class Template:
    """All that the requests of one kind have in common."""

    places: Places
    method: str
    base: str  #: the URL up to the key of an object; all of it when there is no key
    signed_base: str  #: the path of `base` in the form that is signed
    headers: Mapping[str, str]
    own: frozenset[str]  #: those of `_OWN` that the requests have
    signed: tuple[str, ...]  #: names of headers
    host: str
    region: str
    service: str
    _key: tuple[str, str, bytes] = field(default=("", "", b""), repr=False)

    def fits(self, keys: Keys) -> bool:
        return bool(keys.token) == (_TOKEN in self.own)

    def fill(
        self,
        parameters: Mapping[str, Any],
        body: bytes | None,
        keys: Keys,
        date: str,
        invocation: str,
    ) -> Sent:
        """The request of one call. `date`: by `DATE_FORMAT`."""
        digest = hashlib.sha256(body or b"").hexdigest()
        headers, query = dict(self.headers), {}
        for name, value in parameters.items():
            if name in self.places.headers:
                headers[self.places.headers[name]] = value
            elif name in self.places.query:
                query[self.places.query[name]] = value
        headers[_DATE], headers[_ATTEMPT], headers[_INVOCATION] = date, _FIRST, invocation
        if keys.token:
            headers[_TOKEN] = keys.token
        if _DIGEST in self.own:
            headers[_DIGEST] = digest
        if _LENGTH in self.own:
            headers[_LENGTH] = str(len(body or b""))
        key = percent_encode(parameters["Key"], safe="/~") if "Key" in parameters else ""
        text = percent_encode_sequence(query)
        canonical = f"{self.method}\n{self.signed_base}{key}\n{_in_order(text)}"
        headers[_AUTHORIZED] = self._authorization(canonical, digest, headers, keys)
        return Sent(self.method, f"{self.base}{key}{'?' if text else ''}{text}", headers)

    def _authorization(
        self, canonical: str, digest: str, headers: Mapping[str, str], keys: Keys
    ) -> str:
        """By Signature Version 4; `canonical`: the first three lines of the canonical request."""
        values = {**headers, "host": self.host}
        lines = "".join(
            f"{name}:{' '.join(values.get(name, '').split())}\n" for name in self.signed
        )
        names, date = ";".join(self.signed), headers[_DATE]
        scope = f"{date[:8]}/{self.region}/{self.service}/aws4_request"
        whole = hashlib.sha256(f"{canonical}\n{lines}\n{names}\n{digest}".encode()).hexdigest()
        text = f"{ALGORITHM}\n{date}\n{scope}\n{whole}"
        signature = _mac(self._signing_key(keys.secret_key, date[:8]), text).hex()
        credential = f"Credential={keys.access_key}/{scope}"
        return f"{ALGORITHM} {credential}, SignedHeaders={names}, Signature={signature}"

    def _signing_key(self, secret: str, day: str) -> bytes:
        if self._key[:2] != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self.region, self.service, "aws4_request"):
                key = _mac(key, part)
            self._key = secret, day, key
        return self._key[2]


def learn(places: Places, parameters: Mapping[str, Any], sent: Sent, keys: Keys) -> Template | None:
    """The template of a request that botocore has sent.

    None when it would not make the same request with the same signature: another scheme of
    signatures, a body in chunks, a repetition, other credentials.
    """
    read = _AUTHORIZATION.fullmatch(sent.headers.get(_AUTHORIZED, ""))
    if read is None:
        return None
    url = urlsplit(sent.url)
    path = url.path
    if "Key" in parameters:
        path = path.removesuffix(percent_encode(parameters["Key"], safe="/~"))
    of_values = {places.headers[name] for name in parameters if name in places.headers}
    left_out = _OWN | of_values | {_EXPECT}
    made = Template(
        places=places,
        method=sent.method,
        base=f"{url.scheme}://{url.netloc}{path}",
        # S3 alone signs a path as it is sent
        signed_base=path if read["service"] == "s3" else quote(normalize_url_path(path), "/~"),
        headers={name: one for name, one in sent.headers.items() if name not in left_out},
        own=_OWN & sent.headers.keys(),
        signed=tuple(read["signed"].split(";")),
        host=_host(url),
        region=read["region"],
        service=read["service"],
    )
    if not made.fits(keys):
        return None
    again = made.fill(
        parameters,
        places.body(parameters),
        keys,
        sent.headers.get(_DATE, ""),
        sent.headers.get(_INVOCATION, ""),
    )
    same = again == sent._replace(headers={n: v for n, v in sent.headers.items() if n != _EXPECT})
    return made if same else None


def _host(url: SplitResult) -> str:
    host = url.netloc.rpartition("@")[2]
    return host.removesuffix(f":{_PORTS.get(url.scheme)}")


def _in_order(query: str) -> str:
    return "&".join(sorted(query.split("&")))


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
