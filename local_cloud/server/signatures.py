"""Signatures of version 4: the key pair of a cloud, and the verification of requests.

The expiry of presigned URLs is checked always, signatures where keys are set. Without keys (the
default) every signature is accepted, and so is none. With keys a request must be signed by one of
them, over what really arrived: botocore's own signer signs it again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import string
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from corekit.errors import invalid
from corekit.values import Value
from local_cloud.model.errors import CloudError, refused

ACCESS_KEY_VARIABLE = "LOCAL_CLOUD_ACCESS_KEY_ID"
SECRET_KEY_VARIABLE = "LOCAL_CLOUD_SECRET_ACCESS_KEY"  # noqa: S105 - a name
FILE_NAME = "credentials.json"
#: Largest difference of clocks (S3: RequestTimeTooSkewed).
SKEW_MAX = timedelta(minutes=15)
_ALGORITHM = "AWS4-HMAC-SHA256"
_EXPIRES_S_MAX = 604_800  #: a week
_SHOWN = "%Y-%m-%dT%H:%M:%SZ"
_UNSIGNED = "UNSIGNED-PAYLOAD"
_HASH_HEADER = "x-amz-content-sha256"
_TOKEN = "X-Amz-Security-Token"  # noqa: S105 - a name
_EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_AMZ_DATE = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_CLAIM = re.compile(  # a key may hold slashes
    rf"{_ALGORITHM}\s+Credential=(?P<access_key>[^,\s]+)/(?P<day>\d+)/(?P<region>[^/,\s]+)"
    r"/(?P<service>[^/,\s]+)/aws4_request,?\s*SignedHeaders=(?P<headers>[^,\s]+),?\s*"
    r"Signature=(?P<signature>[^,\s]+)"
)


class KeyPair(Value):
    """An access key and its secret."""

    access_key: str
    secret_key: str


def key_pair(state: Path, environment: Mapping[str, str]) -> KeyPair:
    """The pair of the environment, else the one in the state directory, made if it is missing.

    The file is readable by its owner alone; the pair stays the same over restarts.

    Raises INVALID for half a pair, and for a file that holds no pair.
    """
    access_key = environment.get(ACCESS_KEY_VARIABLE, "")
    secret_key = environment.get(SECRET_KEY_VARIABLE, "")
    if bool(access_key) != bool(secret_key):
        raise invalid(f"set both {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}, or neither")
    if access_key:
        return KeyPair(access_key=access_key, secret_key=secret_key)
    path = state / FILE_NAME
    return _read_pair(path) if path.exists() else _new_pair(path)


def _read_pair(path: Path) -> KeyPair:
    try:
        value = json.loads(path.read_text())
        return KeyPair(access_key=str(value["access_key"]), secret_key=str(value["secret_key"]))
    except (ValueError, KeyError, TypeError):
        raise invalid(
            f"{path} holds no key pair; write access_key and secret_key as JSON, or delete the file"
        ) from None


def _new_pair(path: Path) -> KeyPair:
    letters = string.ascii_uppercase + string.digits
    pair = KeyPair(
        access_key="LKIA" + "".join(secrets.choice(letters) for _ in range(16)),
        secret_key=secrets.token_urlsafe(30),
    )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = json.dumps({"access_key": pair.access_key, "secret_key": pair.secret_key})
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as stream:
        stream.write(text + "\n")
    return pair


# --- what a request claims


class Claim(Value):
    """A signature as a request carries it."""

    access_key: str
    signature: str
    signed_at: datetime
    expires_s: int | None = None  #: of a presigned URL; None = signed in headers
    region: str
    service: str
    signed_headers: tuple[str, ...]


class ChunkSigner:
    """The chain of signatures over the chunks of one payload, begun by the request's own."""

    def __init__(self, sign: Callable[[str], str], scope: str, seed: str) -> None:
        """`scope` is the time and the scope of the request, a line each."""
        self._sign = sign
        self._scope = scope
        self._previous = seed

    def chunk(self, digest: str) -> str:
        """The signature of the next chunk with this sha256."""
        return self._next(f"{_ALGORITHM}-PAYLOAD", f"{_EMPTY_HASH}\n{digest}")

    def trailer(self, names_and_values: bytes) -> str:
        """The signature of the trailers, `name:value` and a line feed each."""
        return self._next(f"{_ALGORITHM}-TRAILER", hashlib.sha256(names_and_values).hexdigest())

    def _next(self, kind: str, rest: str) -> str:
        self._previous = self._sign(f"{kind}\n{self._scope}\n{self._previous}\n{rest}")
        return self._previous


class Temporary(Value):
    """Temporary credentials. Their token alone has all about them: a restart forgets none."""

    pair: KeyPair
    token: str


class Verifier:
    """Checks requests against access keys and their secrets; None = signatures are not verified."""

    def __init__(self, keys: Mapping[str, str] | None, now_s: Callable[[], float]) -> None:
        self._keys = keys
        self._now_s = now_s

    def issue(self, role: str, ends_s: float) -> Temporary:
        """Credentials of a role, by its ARN, until a time of the wall clock."""
        claims = json.dumps({"role": role, "ends_s": ends_s, "nonce": secrets.token_hex(8)})
        text = base64.urlsafe_b64encode(claims.encode()).decode()
        return self._temporary(f"{text}.{self._mac('token', text)}")

    def _temporary(self, token: str) -> Temporary:
        access_key = "ASIA" + self._mac("access key", token)[:16].upper()
        secret_key = self._mac("secret key", token)
        return Temporary(pair=KeyPair(access_key=access_key, secret_key=secret_key), token=token)

    def _mac(self, label: str, text: str) -> str:
        key = "".join((self._keys or {}).values()).encode()
        return hmac.new(key, f"{label} {text}".encode(), hashlib.sha256).hexdigest()

    def _secret(self, request: web.BaseRequest, claim: Claim, services: tuple[str, ...]) -> str:
        """The secret of the key that a request names. Raises CloudError."""
        known = (self._keys or {}).get(claim.access_key)
        if known is not None:
            return known
        token = request.headers.get(_TOKEN) or request.query.get(_TOKEN) or ""
        text, _, mac = token.partition(".")
        made = self._temporary(token)
        if not text or not hmac.compare_digest(mac.encode(), self._mac("token", text).encode()):
            raise _unknown_key(claim, services)
        if made.pair.access_key != claim.access_key:
            raise _unknown_key(claim, services)
        if self._now_s() >= json.loads(base64.urlsafe_b64decode(text))["ends_s"]:
            code = "ExpiredToken" if "s3" in services else "ExpiredTokenException"
            raise _denied(code, "The security token included in the request is expired")
        return made.pair.secret_key

    def check(
        self,
        request: web.BaseRequest,
        services: tuple[str, ...],
        body: bytes | None = None,
    ) -> ChunkSigner | None:
        """Raises CloudError (mostly 403) for a request that may not pass.

        `services` are the scopes that count here; `body` is the whole body, None for S3, which
        declares the body's hash in a header and checks it as the body arrives. Returns the signer
        of the chunks of a body that is signed in pieces; None for every other body.
        """
        now = datetime.fromtimestamp(self._now_s(), UTC)
        claim = _url_claim(request, now)
        if claim is not None:
            _check_time(claim, now)
        if self._keys is None:
            return None
        if claim is None:
            claim = _header_claim(request, services)
            _check_time(claim, now)
        secret = self._secret(request, claim, services)
        _check_scope(request, claim, services)
        payload_hash = _payload_hash(request, claim, body)
        signer, again = _signer(request, claim, secret, payload_hash)
        canonical = signer.canonical_request(again)
        text = signer.string_to_sign(again, canonical)
        _compare(claim, signer.signature(text, again), text, canonical)
        if not payload_hash.startswith("STREAMING-AWS4-"):
            return None
        scope = "\n".join(text.split("\n")[1:3])
        return ChunkSigner(lambda t: str(signer.signature(t, again)), scope, claim.signature)


def _url_claim(request: web.BaseRequest, now: datetime) -> Claim | None:
    given = request.query
    if "AWSAccessKeyId" in given:
        _check_older_url(given.get("Expires", ""), now)
    if "X-Amz-Algorithm" not in given:
        return None
    names = ("Credential", "SignedHeaders", "Signature")
    fields = ", ".join(f"{name}={given.get(f'X-Amz-{name}', '')}" for name in names)
    expires = given.get("X-Amz-Expires", "")
    if re.fullmatch(r"\d{1,6}", expires, re.ASCII) is None or int(expires) > _EXPIRES_S_MAX:
        message = "X-Amz-Expires must be a number of seconds, less than a week"
        raise refused("AuthorizationQueryParametersError", message)
    text = f"{given['X-Amz-Algorithm']} {fields}"
    return _claim(text, given.get("X-Amz-Date", ""), int(expires))


def _check_older_url(expires: str, now: datetime) -> None:
    # boto3 still makes URLs of version 2 in the oldest regions unless it is configured: their
    # time is checked like that of others, their signature never.
    if not re.fullmatch(r"\d{1,11}", expires, re.ASCII):
        message = "Query-string authentication requires Signature, Expires and AWSAccessKeyId"
        raise _denied("AccessDenied", message)
    if now >= datetime.fromtimestamp(int(expires), UTC):
        raise _denied("AccessDenied", "Request has expired", ServerTime=f"{now:{_SHOWN}}")


def _header_claim(request: web.BaseRequest, services: tuple[str, ...]) -> Claim:
    authorization = request.headers.get("Authorization")
    if authorization is None and "AWSAccessKeyId" in request.query:
        authorization = "a URL of version 2"
    if authorization is None:
        if "s3" in services:
            raise _denied("AccessDenied", "Access Denied")
        raise _denied("MissingAuthenticationToken", "Request is missing Authentication Token")
    if not authorization.startswith(_ALGORITHM):
        message = "The authorization mechanism you have provided is not supported."
        advice = f"Please use {_ALGORITHM}: in boto3 Config(signature_version='s3v4')."
        raise refused("InvalidRequest", f"{message} {advice}")
    date = request.headers.get("x-amz-date") or request.headers.get("Date") or ""
    return _claim(authorization, date)


def _claim(text: str, date: str, expires_s: int | None = None) -> Claim:
    try:
        if _AMZ_DATE.fullmatch(date):
            signed_at = datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        else:
            signed_at = parsedate_to_datetime(date).astimezone(UTC)
    except ValueError:
        message = "AWS authentication requires a valid Date or x-amz-date"
        raise _denied("AccessDenied", message) from None
    match = _CLAIM.fullmatch(text)
    if match is None or match["day"] != f"{signed_at:%Y%m%d}":
        in_header = "AuthorizationHeaderMalformed"
        raise refused(
            in_header if expires_s is None else "AuthorizationQueryParametersError",
            f"Expecting {_ALGORITHM}, a Credential <YOUR-AKID>/YYYYMMDD/REGION/SERVICE/aws4_request"
            " with the date of the request, SignedHeaders and Signature.",
        )
    return Claim(
        access_key=match["access_key"],
        signature=match["signature"],
        signed_at=signed_at,
        expires_s=expires_s,
        region=match["region"],
        service=match["service"],
        signed_headers=tuple(match["headers"].split(";")),
    )


# --- what is checked of it


def _check_time(claim: Claim, now: datetime) -> None:
    server = f"{now:{_SHOWN}}"
    ends = claim.signed_at + timedelta(seconds=claim.expires_s or 0)
    if claim.expires_s is not None and now >= ends:
        shown = f"{ends:{_SHOWN}}"
        raise _denied("AccessDenied", "Request has expired", Expires=shown, ServerTime=server)
    skew = claim.signed_at - now if claim.expires_s is not None else abs(now - claim.signed_at)
    if skew > SKEW_MAX:
        message = "The difference between the request time and the current time is too large."
        raise _denied("RequestTimeTooSkewed", message, ServerTime=server)


def _check_scope(request: web.BaseRequest, claim: Claim, services: tuple[str, ...]) -> None:
    """Raises AuthorizationHeaderMalformed (another service), AccessDenied (unsigned headers)."""
    if claim.service not in services:
        text = f'The credential scope names "{claim.service}"; expecting "{services[0]}".'
        raise refused("AuthorizationHeaderMalformed", text)
    needed = {n.lower() for n in request.headers if n.lower().startswith("x-amz-")} | {"host"}
    if claim.expires_s is not None:
        needed.discard(_HASH_HEADER)  # S3 does not check the payload of a presigned URL
    missing = sorted(needed.difference(claim.signed_headers))
    if missing:
        text = "There were headers present in the request which were not signed"
        raise _denied("AccessDenied", text, HeadersNotSigned=", ".join(missing))


def _payload_hash(request: web.BaseRequest, claim: Claim, body: bytes | None) -> str:
    """The hash that must have been signed; S3 does not check the payload of a presigned URL."""
    if body is not None:
        return hashlib.sha256(body).hexdigest()
    if claim.expires_s is not None and _HASH_HEADER not in claim.signed_headers:
        return _UNSIGNED
    return request.headers.get(_HASH_HEADER, _UNSIGNED)


def _compare(claim: Claim, signature: str, string_to_sign: str, canonical: str) -> None:
    if hmac.compare_digest(claim.signature.encode(), signature.encode()):
        return
    raise _denied(
        "SignatureDoesNotMatch",
        "The signature that we calculated does not match yours. Check your key and signing method.",
        AWSAccessKeyId=claim.access_key,
        StringToSign=string_to_sign,
        SignatureProvided=claim.signature,
        CanonicalRequest=canonical,
    )


def _unknown_key(claim: Claim, services: tuple[str, ...]) -> CloudError:
    if "s3" not in services:
        message = "The security token included in the request is invalid."
        return _denied("UnrecognizedClientException", message)
    message = "The AWS Access Key Id you provided does not exist in our records."
    return _denied("InvalidAccessKeyId", message, AWSAccessKeyId=claim.access_key)


def _denied(code: str, message: str, **details: str) -> CloudError:
    return CloudError(code, 403, message, details=details)


# --- signing again


def _signer(
    request: web.BaseRequest, claim: Claim, secret: str, payload_hash: str
) -> tuple[Any, Any]:
    """botocore's signer of version 4, and the request as it signs it."""
    # a tenth of the start of a cloud, most of which verify nothing
    from botocore.auth import S3SigV4Auth, SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    path, _, query = request.raw_path.partition("?")
    is_s3 = claim.service == "s3"  # S3 signs the path encoded once, every other service twice
    if is_s3:
        path = urllib.parse.quote(urllib.parse.unquote(path), safe="/~")
    pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
    again = AWSRequest(
        method=request.method,
        url=f"http://{request.host}{path}",
        headers={_HASH_HEADER: payload_hash},
        params=[(name, value) for name, value in pairs if name != "X-Amz-Signature"],
    )
    again.context["timestamp"] = f"{claim.signed_at:%Y%m%dT%H%M%SZ}"
    kind = S3SigV4Auth if is_s3 else SigV4Auth
    signer: Any = kind(Credentials(claim.access_key, secret), claim.service, claim.region)
    headers = _headers(request, claim.signed_headers)
    signer.headers_to_sign = lambda _: headers
    return signer, again


def _headers(request: web.BaseRequest, names: Iterable[str]) -> Any:
    from botocore.compat import HTTPHeaders

    headers = HTTPHeaders()
    for name in dict.fromkeys(name.lower() for name in names):
        for value in request.headers.getall(name, ()):
            headers[name] = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return headers
