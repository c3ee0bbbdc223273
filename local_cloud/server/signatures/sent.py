"""A request as its signer saw it, and the claim of its signature. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from corekit.values import Value
from local_cloud.model.errors import CloudError

AMZ_DATE = "%Y%m%dT%H%M%SZ"


class SentRequest(Value):
    """One request: everything as it came over the wire."""

    method: str
    path: str  #: percent-encoded
    query: str  #: percent-encoded, without `?`
    headers: Sequence[tuple[str, str]]  #: names in lower case, in order
    host_bucket: str = ""  #: the bucket that the host names, which version 2 signs

    def header(self, name: str) -> str | None:
        """All values of a header, joined as signers do; None without one."""
        found = [value for given, value in self.headers if given == name]
        return ",".join(" ".join(value.split()) for value in found) if found else None

    def pairs(self) -> list[tuple[str, str]]:
        """The query, decoded."""
        return urllib.parse.parse_qsl(self.query, keep_blank_values=True, errors="surrogateescape")

    def parameter(self, name: str) -> str | None:
        """The last value of a query parameter."""
        return dict(self.pairs()).get(name)


class Claim(Value):
    """The claim of a signature: key, time and scope."""

    version: int  #: 2 or 4
    access_key: str
    signature: str
    signed_at: datetime  #: of a presigned URL of version 2: when it expires
    expires_s: int | None = None  #: of a presigned URL; None = signed in headers
    scope: str = ""  #: `20260131/us-east-1/s3/aws4_request`, version 4 alone
    signed_headers: tuple[str, ...] = ()
    payload_hash: str | None = None  #: in the client's header; None = the hash of the body

    @property
    def amz_date(self) -> str:
        """The time in the form that is signed."""
        return self.signed_at.strftime(AMZ_DATE)

    @property
    def service(self) -> str:
        """The service of the scope; empty in version 2."""
        return self.scope.split("/")[2] if self.scope else ""


class ExpectedSignature(Value):
    """The expected signature, and the text it is computed from."""

    signature: str
    string_to_sign: str
    canonical_request: str = ""  #: version 4 alone


def denied(code: str, message: str, **details: str) -> CloudError:
    """A refusal for want of authority (403)."""
    return CloudError(code, 403, message, details=details)


def quoted(text: str, safe: str = "") -> str:
    """URI-encoded as signatures want it: all but letters, digits, `-._~`."""
    return urllib.parse.quote(text, safe=f"{safe}~", errors="surrogateescape")


def read_amz_date(text: str) -> datetime | None:
    """`20260131T120000Z`; None for anything else."""
    try:
        return datetime.strptime(text, AMZ_DATE).replace(tzinfo=UTC)
    except ValueError:
        return None


def signing_date(sent: SentRequest) -> datetime:
    """The time of signing by `x-amz-date` or `Date`. Raises AccessDenied without one."""
    text = sent.header("x-amz-date") or sent.header("date") or ""
    try:
        return read_amz_date(text) or parsedate_to_datetime(text).astimezone(UTC)
    except ValueError:
        message = "AWS authentication requires a valid Date or x-amz-date header"
        raise denied("AccessDenied", message) from None
