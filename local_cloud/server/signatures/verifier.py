"""Verification of requests: its expiry always, its signature where keys are known.

Without keys (the default) every signature is accepted, and so is none; a presigned URL expires all
the same. With keys a request must be signed by one of them, over what really arrived.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from aiohttp import web

from corekit.values import replace
from local_cloud.model.errors import refused
from local_cloud.server.signatures import form, v2, v4
from local_cloud.server.signatures.sent import Claim, ExpectedSignature, SentRequest, denied
from local_cloud.server.signatures.v4 import ChunkSigner

#: Largest difference of clocks (S3: RequestTimeTooSkewed).
SKEW_MAX = timedelta(minutes=15)
_S3 = "s3"
_SHOWN = "%Y-%m-%dT%H:%M:%SZ"


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
        sent = _sent(request, host_bucket)
        now = datetime.fromtimestamp(self._now_s(), UTC)
        claim = _query_claim(sent)
        if claim is not None:
            _check_expiry(claim, now)
        if self._keys is None:
            return None
        if claim is None:
            claim = _header_claim(sent, services)
            _check_skew(claim, now)
        elif sent.header("authorization") is not None:
            raise refused(
                "InvalidArgument",
                "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter,"
                " Signature query string parameter or the Authorization header should be specified",
            )
        return _verified(sent, claim, self._keys, services, body)

    def is_anonymous(self, request: web.BaseRequest) -> bool:
        """Whether a request has no signature at all, where one counts."""
        sent = _sent(request, "")
        signed = sent.header("authorization") is not None or _query_claim(sent) is not None
        return self._keys is not None and not signed

    def check_form(self, fields: Mapping[str, str]) -> bool:
        """Whether the owner sent a form, by its fields; False = it is anonymous.

        A form without a policy is anonymous where keys are known. Raises InvalidArgument for a
        policy without a signature, and SignatureDoesNotMatch and InvalidAccessKeyId as `check`.
        """
        if "policy" not in fields:
            return self._keys is None
        claim = form.claim(fields)
        if self._keys is not None:
            secret = _secret(claim, self._keys, (_S3,))
            _compare(claim, form.sign(fields["policy"], claim, secret))
        return True


def _sent(request: web.BaseRequest, host_bucket: str) -> SentRequest:
    path, _, query = request.raw_path.partition("?")
    return SentRequest(
        method=request.method,
        path=path,
        query=query,
        headers=[(name.lower(), value) for name, value in request.headers.items()],
        host_bucket=host_bucket,
    )


def _query_claim(sent: SentRequest) -> Claim | None:
    """The claim of a presigned URL; None for every other request."""
    names = {name for name, _ in sent.pairs()}
    if "X-Amz-Algorithm" in names:
        return v4.query_claim(sent)
    return v2.query_claim(sent) if "AWSAccessKeyId" in names else None


def _header_claim(sent: SentRequest, services: tuple[str, ...]) -> Claim:
    """The claim of the Authorization header. Raises AccessDenied without one."""
    authorization = sent.header("authorization")
    if authorization is None:
        if _S3 in services:
            raise denied("AccessDenied", "Access Denied")
        raise denied("MissingAuthenticationToken", "Request is missing Authentication Token")
    if authorization.startswith(v4.ALGORITHM):
        return v4.header_claim(sent)
    if authorization.startswith("AWS "):
        return v2.header_claim(sent)
    message = "The authorization mechanism you have provided is not supported."
    raise refused("InvalidRequest", message)


def _check_skew(claim: Claim, now: datetime) -> None:
    """Raises RequestTimeTooSkewed for a request that was signed at another time than now."""
    if abs(now - claim.signed_at) > SKEW_MAX:
        raise denied(
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
            RequestTime=claim.amz_date,
            ServerTime=now.strftime(_SHOWN),
            MaxAllowedSkewMilliseconds=str(int(SKEW_MAX.total_seconds() * 1000)),
        )


def _check_expiry(claim: Claim, now: datetime) -> None:
    """Raises AccessDenied for a presigned URL outside of its time."""
    ends = claim.signed_at + timedelta(seconds=claim.expires_s or 0)
    server = now.strftime(_SHOWN)
    if now >= ends:
        shown = ends.strftime(_SHOWN)
        raise denied("AccessDenied", "Request has expired", Expires=shown, ServerTime=server)
    if claim.version == 4 and claim.signed_at - now > SKEW_MAX:
        raise denied("AccessDenied", "Request is not yet valid", ServerTime=server)


def _secret(claim: Claim, keys: Mapping[str, str], services: tuple[str, ...]) -> str:
    """The secret of the key that is claimed. Raises InvalidAccessKeyId."""
    secret = keys.get(claim.access_key)
    if secret is None:
        raise denied(
            "InvalidAccessKeyId" if _S3 in services else "UnrecognizedClientException",
            "The AWS Access Key Id you provided does not exist in our records.",
            AWSAccessKeyId=claim.access_key,
        )
    return secret


def _verified(
    sent: SentRequest,
    claim: Claim,
    keys: Mapping[str, str],
    services: tuple[str, ...],
    body: bytes | None,
) -> ChunkSigner | None:
    secret = _secret(claim, keys, services)
    if claim.version == 2:
        if _S3 not in services:
            raise denied("InvalidSignatureException", "Only signature version 4 is accepted here.")
        if v2.names_a_bucket(sent):  # signers write its path with a slash at the end, and without
            with_slash = v2.sign(replace(sent, path=f"{sent.path}/"), claim, secret)
            if hmac.compare_digest(claim.signature.encode(), with_slash.signature.encode()):
                return None
        _compare(claim, v2.sign(sent, claim, secret))
        return None
    _check_scope(sent, claim, services)
    body_hash = hashlib.sha256(body).hexdigest() if body is not None else v4.UNSIGNED
    declared = claim.payload_hash
    if body is not None and declared not in (None, body_hash, v4.UNSIGNED):
        message = "The provided 'x-amz-content-sha256' header does not match what was computed."
        raise refused("XAmzContentSHA256Mismatch", message)
    if body is None and declared is None:
        raise refused(
            "InvalidRequest", "Missing required header for this request: x-amz-content-sha256"
        )
    signed = v4.sign(sent, claim, secret, body_hash)
    _compare(claim, signed)
    if declared is not None and declared.startswith(f"STREAMING-{v4.ALGORITHM}-PAYLOAD"):
        key = v4.signing_key(secret, claim.scope)
        return ChunkSigner(key, claim.amz_date, claim.scope, signed.signature)
    return None


def _check_scope(sent: SentRequest, claim: Claim, services: tuple[str, ...]) -> None:
    if claim.service not in services:
        raise refused(
            "AuthorizationHeaderMalformed",
            f'The credential scope names the service "{claim.service}"; expecting "{services[0]}".',
        )
    if not claim.amz_date.startswith(claim.scope.split("/", 1)[0]):
        raise denied(
            "SignatureDoesNotMatch", "The date of the credential scope is not the request's"
        )
    missing = v4.unsigned_headers(sent, claim)
    if missing:
        raise denied(
            "AccessDenied",
            "There were headers present in the request which were not signed",
            HeadersNotSigned=", ".join(missing),
        )


def _compare(claim: Claim, signed: ExpectedSignature) -> None:
    """Raises SignatureDoesNotMatch with what should have been signed."""
    if hmac.compare_digest(claim.signature.encode(), signed.signature.encode()):
        return
    details = {
        "AWSAccessKeyId": claim.access_key,
        "StringToSign": signed.string_to_sign,
        "SignatureProvided": claim.signature,
        "StringToSignBytes": _bytes_of(signed.string_to_sign),
    }
    if signed.canonical_request:
        details["CanonicalRequest"] = signed.canonical_request
        details["CanonicalRequestBytes"] = _bytes_of(signed.canonical_request)
    raise denied(
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your"
        " key and signing method.",
        **details,
    )


def _bytes_of(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").hex(" ")
