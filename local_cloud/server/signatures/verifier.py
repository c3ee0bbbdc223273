"""Verification of requests: the expiry of presigned URLs always, signatures where keys are set.

Without keys (the default) every signature is accepted, and so is none. With keys a request must be
signed by one of them, over what really arrived: botocore's own signer signs it again. Version 4 is
verified in headers and in presigned URLs, version 2 in presigned URLs alone: boto3 still makes such
ones in the oldest regions unless it is configured otherwise.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from aiohttp import web

from corekit.values import Value
from local_cloud.model.errors import CloudError, refused

#: Largest difference of clocks (S3: RequestTimeTooSkewed).
SKEW_MAX = timedelta(minutes=15)
_ALGORITHM = "AWS4-HMAC-SHA256"
_EXPIRES_S_MAX = 604_800  #: a week
_AMZ_DATE = "%Y%m%dT%H%M%SZ"
_SHOWN = "%Y-%m-%dT%H:%M:%SZ"
_UNSIGNED = "UNSIGNED-PAYLOAD"
_HASH_HEADER = "x-amz-content-sha256"
_EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_HEADER = re.compile(
    rf"{_ALGORITHM}\s+Credential=([^,\s]+),?\s*SignedHeaders=([^,\s]+),?\s*Signature=([^,\s]+)"
)


class Claim(Value):
    """A signature as a request carries it."""

    access_key: str
    signature: str
    signed_at: datetime  #: of a presigned URL of version 2: when it expires
    expires_s: int | None = None  #: of a presigned URL; None = signed in headers
    region: str = ""  #: empty in version 2
    service: str = ""  #: empty in version 2
    signed_headers: tuple[str, ...] = ()


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


class Verifier:
    """Checks requests against access keys and their secrets; None = signatures are not verified."""

    def __init__(self, keys: Mapping[str, str] | None, now_s: Callable[[], float]) -> None:
        self._keys = keys
        self._now_s = now_s

    def check(
        self,
        request: web.BaseRequest,
        services: tuple[str, ...],
        body: bytes | None = None,
        host_bucket: str = "",
    ) -> ChunkSigner | None:
        """Raises CloudError (mostly 403) for a request that may not pass.

        `services` are the scopes that count here; `body` is the whole body, None for S3, which
        declares the body's hash in a header and checks it as the body arrives. Returns the signer
        of the chunks of a body that is signed in pieces; None for every other body.
        """
        now = datetime.fromtimestamp(self._now_s(), UTC)
        claim = _url_claim(request)
        if claim is not None:
            _check_expiry(claim, now)
        if self._keys is None:
            return None
        if claim is None:
            claim = _header_claim(request, services)
            _check_skew(claim, now)
        secret = self._keys.get(claim.access_key)
        if secret is None:
            raise _unknown_key(claim, services)
        if not claim.service:
            _compare(claim, *_sign_url_again(request, claim, secret, host_bucket))
            return None
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


# --- what a request claims


def _url_claim(request: web.BaseRequest) -> Claim | None:
    """The claim of a presigned URL; None for every other request."""
    given = request.query
    if "X-Amz-Algorithm" in given:
        return _url_claim_4(given)
    if "AWSAccessKeyId" not in given:
        return None
    expires = given.get("Expires", "")
    if not re.fullmatch(r"\d{1,11}", expires, re.ASCII) or "Signature" not in given:
        message = "Query-string authentication requires the Signature, Expires and AWSAccessKeyId"
        raise _denied("AccessDenied", f"{message} parameters")
    return Claim(
        access_key=given["AWSAccessKeyId"],
        signature=given["Signature"],
        signed_at=datetime.fromtimestamp(int(expires), UTC),
        expires_s=0,
    )


def _url_claim_4(given: Mapping[str, str]) -> Claim:
    names = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
    algorithm, credential, date, expires, headers, signature = (
        given.get(f"X-Amz-{name}", "") for name in names
    )
    signed_at = _amz_date(date)
    valid = re.fullmatch(r"\d{1,6}", expires, re.ASCII) and int(expires) <= _EXPIRES_S_MAX
    if algorithm != _ALGORITHM or not headers or not signature or signed_at is None or not valid:
        raise refused(
            "AuthorizationQueryParametersError",
            "Query-string authentication version 4 requires X-Amz-Algorithm (AWS4-HMAC-SHA256),"
            " X-Amz-Credential, X-Amz-Date, X-Amz-Expires (less than a week, in seconds),"
            " X-Amz-SignedHeaders and X-Amz-Signature",
        )
    return _claim(credential, signed_at, headers, signature, int(expires))


def _header_claim(request: web.BaseRequest, services: tuple[str, ...]) -> Claim:
    """The claim of the Authorization header. Raises AccessDenied without one, …"""
    authorization = request.headers.get("Authorization")
    if authorization is None:
        if "s3" in services:
            raise _denied("AccessDenied", "Access Denied")
        raise _denied("MissingAuthenticationToken", "Request is missing Authentication Token")
    match = _HEADER.fullmatch(authorization)
    if match is None:
        message = "The authorization mechanism you have provided is not supported."
        raise refused("InvalidRequest", f"{message} Please use {_ALGORITHM}.")
    date = request.headers.get("x-amz-date") or request.headers.get("Date") or ""
    try:
        signed_at = _amz_date(date) or parsedate_to_datetime(date).astimezone(UTC)
    except ValueError:
        message = "AWS authentication requires a valid Date or x-amz-date header"
        raise _denied("AccessDenied", message) from None
    return _claim(match[1], signed_at, match[2], match[3])


def _claim(
    credential: str, signed_at: datetime, headers: str, signature: str, expires_s: int | None = None
) -> Claim:
    access_key, *scope = credential.rsplit("/", 4)  # a key may hold slashes
    if len(scope) != 4 or scope[::3] != [f"{signed_at:%Y%m%d}", "aws4_request"] or not access_key:
        in_header = "AuthorizationHeaderMalformed"
        raise refused(
            in_header if expires_s is None else "AuthorizationQueryParametersError",
            "The Credential is malformed; expecting <YOUR-AKID>/YYYYMMDD/REGION/SERVICE/"
            "aws4_request with the date of the request.",
        )
    return Claim(
        access_key=access_key,
        signature=signature,
        signed_at=signed_at,
        expires_s=expires_s,
        region=scope[1],
        service=scope[2],
        signed_headers=tuple(headers.split(";")),
    )


def _amz_date(text: str) -> datetime | None:
    """`20260131T120000Z`; None for anything else."""
    try:
        return datetime.strptime(text, _AMZ_DATE).replace(tzinfo=UTC)
    except ValueError:
        return None


# --- what is checked of it


def _check_skew(claim: Claim, now: datetime) -> None:
    """Raises RequestTimeTooSkewed for a request that was signed at another time than now."""
    if abs(now - claim.signed_at) > SKEW_MAX:
        raise _denied(
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
            RequestTime=f"{claim.signed_at:{_SHOWN}}",
            ServerTime=f"{now:{_SHOWN}}",
        )


def _check_expiry(claim: Claim, now: datetime) -> None:
    """Raises AccessDenied for a presigned URL outside of its time."""
    ends = claim.signed_at + timedelta(seconds=claim.expires_s or 0)
    server = f"{now:{_SHOWN}}"
    if now >= ends:
        shown = f"{ends:{_SHOWN}}"
        raise _denied("AccessDenied", "Request has expired", Expires=shown, ServerTime=server)
    if claim.service and claim.signed_at - now > SKEW_MAX:
        raise _denied("AccessDenied", "Request is not yet valid", ServerTime=server)


def _check_scope(request: web.BaseRequest, claim: Claim, services: tuple[str, ...]) -> None:
    """Raises AuthorizationHeaderMalformed (another service), AccessDenied (unsigned headers)."""
    if claim.service not in services:
        raise refused(
            "AuthorizationHeaderMalformed",
            f'The credential scope names the service "{claim.service}"; expecting "{services[0]}".',
        )
    needed = {n.lower() for n in request.headers if n.lower().startswith("x-amz-")} | {"host"}
    if claim.expires_s is not None:
        needed.discard(_HASH_HEADER)  # S3 does not check the payload of a presigned URL
    missing = sorted(needed.difference(claim.signed_headers))
    if missing:
        raise _denied(
            "AccessDenied",
            "There were headers present in the request which were not signed",
            HeadersNotSigned=", ".join(missing),
        )


def _payload_hash(request: web.BaseRequest, claim: Claim, body: bytes | None) -> str:
    """The hash that was signed. Raises XAmzContentSHA256Mismatch, InvalidRequest without one."""
    actual = None if body is None else hashlib.sha256(body).hexdigest()
    declared = request.headers.get(_HASH_HEADER) if _HASH_HEADER in claim.signed_headers else None
    if declared is None and claim.expires_s is not None and claim.service == "s3":
        return _UNSIGNED
    if declared is None and actual is None:
        message = f"Missing required header for this request: {_HASH_HEADER}"
        raise refused("InvalidRequest", message)
    if actual is not None and declared not in (None, actual, _UNSIGNED):
        message = "The provided 'x-amz-content-sha256' header does not match what was computed."
        raise refused("XAmzContentSHA256Mismatch", message)
    return declared or actual or _UNSIGNED


def _compare(claim: Claim, signature: str, string_to_sign: str, canonical: str = "") -> None:
    """Raises SignatureDoesNotMatch with what should have been signed."""
    if hmac.compare_digest(claim.signature.encode(), signature.encode()):
        return
    details = {"StringToSign": string_to_sign, "SignatureProvided": claim.signature}
    if canonical:
        details["CanonicalRequest"] = canonical
    raise _denied(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your"
        " key and signing method.",
        AWSAccessKeyId=claim.access_key,
        **details,
    )


def _unknown_key(claim: Claim, services: tuple[str, ...]) -> CloudError:
    if "s3" not in services:
        message = "The security token included in the request is invalid."
        return _denied("UnrecognizedClientException", message)
    message = "The AWS Access Key Id you provided does not exist in our records."
    return _denied("InvalidAccessKeyId", message, AWSAccessKeyId=claim.access_key)


def _denied(code: str, message: str, **details: str) -> CloudError:
    return CloudError(code, 403, message, details=details)


# --- signing again; botocore is imported by a server that verifies, and by no other: 0.15 s


def _signer(
    request: web.BaseRequest, claim: Claim, secret: str, payload_hash: str
) -> tuple[Any, Any]:
    """botocore's signer of version 4, and the request as it signs it."""
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
    again.context["timestamp"] = f"{claim.signed_at:{_AMZ_DATE}}"
    kind = S3SigV4Auth if is_s3 else SigV4Auth
    signer: Any = kind(Credentials(claim.access_key, secret), claim.service, claim.region)
    headers = _headers(request, claim.signed_headers)
    signer.headers_to_sign = lambda _: headers
    return signer, again


def _sign_url_again(
    request: web.BaseRequest, claim: Claim, secret: str, host_bucket: str
) -> tuple[str, str]:
    """Signature and string to sign of a presigned URL of version 2."""
    from botocore.auth import HmacV1Auth
    from botocore.credentials import Credentials

    path, _, query = request.raw_path.partition("?")
    signer = HmacV1Auth(Credentials(claim.access_key, secret))
    amz_names = [name for name in request.headers if name.lower().startswith("x-amz-")]
    amz_headers = signer.canonical_custom_headers(_headers(request, amz_names))
    lines = [
        request.method,
        request.headers.get("Content-MD5", ""),
        request.headers.get("Content-Type", ""),
        request.query["Expires"],
        *([amz_headers] if amz_headers else []),
        signer.canonical_resource(
            urllib.parse.SplitResult("", "", path, query, ""),
            auth_path=f"/{host_bucket}{path}" if host_bucket else path,
        ),
    ]
    text = "\n".join(lines)
    return signer.sign_string(text), text


def _headers(request: web.BaseRequest, names: Iterable[str]) -> Any:
    """These headers of a request as botocore has them. Raises InvalidRequest for one not UTF-8."""
    from botocore.compat import HTTPHeaders

    headers = HTTPHeaders()
    for name in dict.fromkeys(name.lower() for name in names):
        for value in request.headers.getall(name, ()):
            if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
                raise refused("InvalidRequest", f"The header {name} is not UTF-8.")
            headers[name] = value
    return headers
