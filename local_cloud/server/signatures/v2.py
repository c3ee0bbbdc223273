"""AWS Signature Version 2 of S3, which old clients and old presigned URLs still use. Pure.

Source: S3 developer guide, "Signing and authenticating REST requests (AWS signature version 2)".
"""

from __future__ import annotations

import base64
import hmac
import urllib.parse
from datetime import UTC, datetime

from local_cloud.model.errors import refused
from local_cloud.server.signatures.sent import (
    Claim,
    ExpectedSignature,
    SentRequest,
    denied,
    signing_date,
)

#: Query parameters that are signed, by name.
_SIGNED = frozenset(
    {
        "accelerate",
        "acl",
        "cors",
        "defaultObjectAcl",
        "location",
        "logging",
        "partNumber",
        "policy",
        "requestPayment",
        "torrent",
        "versioning",
        "versionId",
        "versions",
        "website",
        "uploads",
        "uploadId",
        "response-content-type",
        "response-content-language",
        "response-expires",
        "response-cache-control",
        "response-content-disposition",
        "response-content-encoding",
        "delete",
        "lifecycle",
        "tagging",
        "restore",
        "storageClass",
        "notification",
        "replication",
        "analytics",
        "metrics",
        "inventory",
        "select",
        "select-type",
        "object-lock",
    }
)


def header_claim(sent: SentRequest) -> Claim:
    """The claim of `Authorization: AWS KEY:SIGNATURE`. Raises InvalidArgument, AccessDenied."""
    key, colon, signature = (sent.header("authorization") or "").removeprefix("AWS ").partition(":")
    if not colon:
        raise refused("InvalidArgument", "AWS authorization header is invalid.")
    return Claim(version=2, access_key=key, signature=signature, signed_at=signing_date(sent))


def names_a_bucket(sent: SentRequest) -> bool:
    """Whether the path is a bucket's, without a slash at its end."""
    return not sent.host_bucket and len(sent.path) > 1 and sent.path.count("/") == 1


def query_claim(sent: SentRequest) -> Claim:
    """The claim of a presigned URL. Raises AccessDenied."""
    expires, signature = sent.parameter("Expires"), sent.parameter("Signature")
    if expires is None or signature is None:
        raise denied(
            "AccessDenied",
            "Query-string authentication requires the Signature, Expires and AWSAccessKeyId"
            " parameters",
        )
    if not expires.isdecimal() or len(expires) > 11:
        raise denied("AccessDenied", f"Invalid date (should be seconds since epoch): {expires:.40}")
    return Claim(
        version=2,
        access_key=sent.parameter("AWSAccessKeyId") or "",
        signature=signature,
        signed_at=datetime.fromtimestamp(int(expires), UTC),
        expires_s=0,
    )


def sign(sent: SentRequest, claim: Claim, secret: str) -> ExpectedSignature:
    """The expected signature of a claim."""
    date = sent.header("date") or ""
    if claim.expires_s is not None:
        date = sent.parameter("Expires") or ""
    elif sent.header("x-amz-date") is not None:
        date = ""
    text = "\n".join(
        (
            sent.method,
            sent.header("content-md5") or "",
            sent.header("content-type") or "",
            date,
            _amz_headers(sent) + _resource(sent),
        )
    )
    digest = hmac.digest(secret.encode(), text.encode("utf-8", "surrogateescape"), "sha1")
    return ExpectedSignature(signature=base64.b64encode(digest).decode(), string_to_sign=text)


def _amz_headers(sent: SentRequest) -> str:
    names = sorted({name for name, _ in sent.headers if name.startswith("x-amz-")})
    return "".join(f"{name}:{sent.header(name)}\n" for name in names)


def _resource(sent: SentRequest) -> str:
    """The path with its bucket, and the parameters that choose an operation, decoded."""
    path = f"/{sent.host_bucket}{sent.path}" if sent.host_bucket else sent.path
    shown: list[tuple[str, str]] = []
    for pair in sent.query.split("&"):
        name, equals, value = pair.partition("=")
        if name in _SIGNED:
            shown.append((name, name + equals + urllib.parse.unquote(value)))
    shown.sort(key=lambda item: item[0])
    return path + ("?" + "&".join(text for _, text in shown) if shown else "")
