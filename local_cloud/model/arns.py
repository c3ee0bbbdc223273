"""Names: the account and region of this cloud, and the ARNs built from them."""

from __future__ import annotations

import re

from corekit.ids import IdSource
from corekit.values import Value

_FUNCTION = re.compile(
    r"(?:arn:aws[a-z-]*:lambda:[a-z0-9-]+:\d{12}:function:|\d{12}:function:|\d{12}:)?"
    r"(?P<name>[A-Za-z0-9_-]{1,64})(?::(?P<qualifier>\$LATEST|[A-Za-z0-9_-]+))?"
)


class Account(Value):
    """The account that everything belongs to, and the region it is in."""

    id: str = "000000000000"
    region: str = "us-east-1"

    def queue_arn(self, name: str) -> str:
        return f"arn:aws:sqs:{self.region}:{self.id}:{name}"

    def function_arn(self, name: str) -> str:
        return f"arn:aws:lambda:{self.region}:{self.id}:function:{name}"

    def mapping_arn(self, uuid: str) -> str:
        return f"arn:aws:lambda:{self.region}:{self.id}:event-source-mapping:{uuid}"

    def role_arn(self, name: str) -> str:
        return f"arn:aws:iam::{self.id}:role/{name}"

    @staticmethod
    def bucket_arn(name: str) -> str:
        return f"arn:aws:s3:::{name}"


def new_uuid(ids: IdSource, kind: str) -> str:
    """An id in the form of a UUID, as SQS and Lambda use them."""
    bits = f"{ids.stream(kind).getrandbits(128):032x}"
    return f"{bits[:8]}-{bits[8:12]}-4{bits[13:16]}-a{bits[17:20]}-{bits[20:]}"


def function_name(reference: str) -> str | None:
    """The name in a function's name, partial ARN or ARN (with or without a qualifier)."""
    match = _FUNCTION.fullmatch(reference)
    return match["name"] if match else None


def arn_service(arn: str) -> str:
    """`sqs`, `lambda`, `sns`, …; empty for text that is not an ARN."""
    fields = arn.split(":", 5)
    return fields[2] if len(fields) == 6 and fields[0] == "arn" else ""


def arn_name(arn: str) -> str:
    """The last component of an ARN: a queue's or a function's name."""
    return arn.rsplit(":", 1)[-1]
