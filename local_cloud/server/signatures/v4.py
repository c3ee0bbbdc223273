"""AWS Signature Version 4: reading a claim, and computing the expected signature. Pure.

Sources: IAM user guide, "AWS Signature Version 4 for API requests"; S3 API reference,
"Authenticating requests", for its query form and for payloads that are signed in chunks.
"""

from __future__ import annotations

import hashlib
import hmac
import posixpath
import re
import urllib.parse
from dataclasses import dataclass

from local_cloud.model.errors import CloudError, refused
from local_cloud.server.signatures.sent import (
    Claim,
    ExpectedSignature,
    SentRequest,
    quoted,
    read_amz_date,
    signing_date,
)

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
EXPIRES_S_MAX = 604_800  #: a week
_HEADER = re.compile(
    rf"{ALGORITHM}\s+Credential=([^,\s]+),?\s*SignedHeaders=([^,\s]+),?\s*Signature=([^,\s]+)"
)
_QUERY = ("Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature")
_EMPTY_HASH = hashlib.sha256(b"").hexdigest()


def header_claim(sent: SentRequest) -> Claim:
    """The claim of an Authorization header. Raises AuthorizationHeaderMalformed, AccessDenied."""
    match = _HEADER.fullmatch(sent.header("authorization") or "")
    if match is None:
        raise refused("AuthorizationHeaderMalformed", "The authorization header is malformed.")
    access_key, scope = read_credential(match[1], "AuthorizationHeaderMalformed")
    return Claim(
        version=4,
        access_key=access_key,
        signature=match[3],
        signed_at=signing_date(sent),
        scope=scope,
        signed_headers=tuple(match[2].split(";")),
        payload_hash=sent.header("x-amz-content-sha256"),
    )


def query_claim(sent: SentRequest) -> Claim:
    """The claim of a presigned URL. Raises AuthorizationQueryParametersError."""
    given = {name: sent.parameter(f"X-Amz-{name}") for name in _QUERY}
    missing = [name for name, value in given.items() if value is None]
    if missing:
        needed = ", ".join(f"X-Amz-{name}" for name in _QUERY)
        raise _query_error(
            f"Query-string authentication version 4 requires the {needed} parameters."
        )
    algorithm, credential, date, expires, listed, signature = (given[n] or "" for n in _QUERY)
    if algorithm != ALGORITHM:
        raise _query_error(f'X-Amz-Algorithm only supports "{ALGORITHM}"')
    access_key, scope = read_credential(credential, "AuthorizationQueryParametersError")
    signed_at = read_amz_date(date)
    if signed_at is None:
        raise _query_error("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    names = tuple(listed.split(";"))
    declared = sent.header("x-amz-content-sha256") if "x-amz-content-sha256" in names else None
    return Claim(
        version=4,
        access_key=access_key,
        signature=signature,
        signed_at=signed_at,
        expires_s=_expires_s(expires),
        scope=scope,
        signed_headers=names,
        payload_hash=declared or UNSIGNED,
    )


def _expires_s(text: str) -> int:
    if not re.fullmatch(r"-?\d+", text, re.ASCII):
        raise _query_error("X-Amz-Expires should be a number")
    if text.startswith("-") or len(text) > 12:
        raise _query_error("X-Amz-Expires must be non-negative and less than a week")
    if int(text) > EXPIRES_S_MAX:
        raise _query_error("X-Amz-Expires must be less than a week (in seconds) that is 604800")
    return int(text)


def _query_error(message: str) -> CloudError:
    return refused("AuthorizationQueryParametersError", message)


def read_credential(text: str, code: str) -> tuple[str, str]:
    """Access key and scope; a key may hold slashes."""
    access_key, *scope = text.rsplit("/", 4)
    if len(scope) != 4 or not access_key or scope[3] != "aws4_request":
        raise refused(
            code,
            'The Credential is malformed; expecting "<YOUR-AKID>/YYYYMMDD/REGION/SERVICE/'
            'aws4_request".',
        )
    return access_key, "/".join(scope)


def unsigned_headers(sent: SentRequest, claim: Claim) -> list[str]:
    """Headers that must be signed and are not: Host, and every x-amz- one."""
    names = dict.fromkeys(name for name, _ in sent.headers)
    needed = [name for name in names if name == "host" or name.startswith("x-amz-")]
    if claim.expires_s is not None:  # S3 does not check the payload of a presigned URL
        needed = [name for name in needed if name != "x-amz-content-sha256"]
    return [name for name in needed if name not in claim.signed_headers]


def sign(sent: SentRequest, claim: Claim, secret: str, body_hash: str) -> ExpectedSignature:
    """The expected signature of a claim; `body_hash` is used where the client declares none."""
    request = canonical_request(sent, claim, body_hash)
    digest = hashlib.sha256(request.encode("utf-8", "surrogateescape")).hexdigest()
    text = f"{ALGORITHM}\n{claim.amz_date}\n{claim.scope}\n{digest}"
    return ExpectedSignature(
        signature=_hmac(signing_key(secret, claim.scope), text).hex(),
        string_to_sign=text,
        canonical_request=request,
    )


def canonical_request(sent: SentRequest, claim: Claim, body_hash: str) -> str:
    """The canonical request. S3 encodes the path once, every other service twice."""
    if claim.service == "s3":
        path = quoted(urllib.parse.unquote(sent.path, errors="surrogateescape"), safe="/") or "/"
    else:
        path = quoted(_normal(sent.path), safe="/")
    pairs = [(quoted(n), quoted(v)) for n, v in sent.pairs() if n != "X-Amz-Signature"]
    headers = "".join(f"{name}:{sent.header(name) or ''}\n" for name in claim.signed_headers)
    return "\n".join(
        (
            sent.method,
            path,
            "&".join(f"{name}={value}" for name, value in sorted(pairs)),
            headers,
            ";".join(claim.signed_headers),
            claim.payload_hash if claim.payload_hash is not None else body_hash,
        )
    )


def _normal(path: str) -> str:
    """RFC 3986 §6.2.2.3, with the slash at the end kept."""
    if not path:
        return "/"
    found = posixpath.normpath(path).lstrip("/")
    ends = path.endswith("/") and found not in ("", ".")
    return "/" + ("" if found == "." else found) + ("/" if ends else "")


def signing_key(secret: str, scope: str) -> bytes:
    """The key of one day, region and service."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode("utf-8", "surrogateescape"), "sha256")


@dataclass(slots=True)
class ChunkSigner:
    """The chain of signatures over the chunks of one payload, begun by the request's own."""

    key: bytes
    amz_date: str
    scope: str
    previous: str

    def chunk(self, digest: str) -> str:
        """The signature of the next chunk with this sha256."""
        return self._next(f"{ALGORITHM}-PAYLOAD", f"{_EMPTY_HASH}\n{digest}")

    def trailer(self, names_and_values: bytes) -> str:
        """The signature of the trailers, `name:value` and a line feed each."""
        return self._next(f"{ALGORITHM}-TRAILER", hashlib.sha256(names_and_values).hexdigest())

    def _next(self, kind: str, rest: str) -> str:
        text = f"{kind}\n{self.amz_date}\n{self.scope}\n{self.previous}\n{rest}"
        self.previous = _hmac(self.key, text).hex()
        return self.previous
