"""The signature in the fields of a form upload, by version 4 and by version 2. Pure.

Source: S3 API reference, "Calculating a signature" for browser-based uploads using POST: what is
signed is the policy in base64.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime

from local_cloud.model.errors import refused
from local_cloud.server.signatures import v4
from local_cloud.server.signatures.sent import Claim, ExpectedSignature, read_amz_date

_V4 = ("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature")
_V2 = ("awsaccesskeyid", "signature")
_NEVER = datetime.fromtimestamp(0, UTC)


def claim(fields: Mapping[str, str]) -> Claim:
    """The claim of a form that has a policy; names in lower case. Raises InvalidArgument."""
    names = _V4 if any(name in fields for name in _V4) else _V2
    for name in names:
        if name not in fields:
            raise refused(
                "InvalidArgument",
                f"Bucket POST must contain a field named '{name}'.  If it is specified, please"
                " check the order of the fields.",
            )
    if names is _V2:
        return Claim(
            version=2,
            access_key=fields["awsaccesskeyid"],
            signature=fields["signature"],
            signed_at=_NEVER,  # a form of version 2 is not dated; its policy expires
        )
    algorithm, credential, date, signature = (fields[name] for name in _V4)
    if algorithm != v4.ALGORITHM:
        raise refused("InvalidArgument", f'X-Amz-Algorithm only supports "{v4.ALGORITHM}"')
    access_key, scope = v4.read_credential(credential, "AuthorizationQueryParametersError")
    signed_at = read_amz_date(date)
    if signed_at is None or not date.startswith(scope.split("/", 1)[0]):
        message = "X-Amz-Date must be in the form yyyyMMdd'T'HHmmss'Z', on the credential's date"
        raise refused("InvalidArgument", message)
    return Claim(
        version=4, access_key=access_key, signature=signature, signed_at=signed_at, scope=scope
    )


def sign(policy: str, claimed: Claim, secret: str) -> ExpectedSignature:
    """The expected signature of a claim; `policy` as the form holds it."""
    text = policy.encode("utf-8", "surrogateescape")
    if claimed.version == 2:
        digest = hmac.new(secret.encode(), text, hashlib.sha1).digest()
        return ExpectedSignature(signature=base64.b64encode(digest).decode(), string_to_sign=policy)
    key = v4.signing_key(secret, claimed.scope)
    return ExpectedSignature(
        signature=hmac.new(key, text, hashlib.sha256).hexdigest(), string_to_sign=policy
    )
