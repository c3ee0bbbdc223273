"""The policy of a form upload (POST Object): its expiration and the fields it allows. Pure.

Source: S3 API reference, "POST Policy" (browser-based uploads).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from corekit.values import Value
from local_cloud.model.errors import CloudError, refused
from local_cloud.model.json_text import read_json

#: form fields that need no condition; of names with this prefix none does either
_FREE = frozenset({"awsaccesskeyid", "signature", "policy", "x-amz-signature", "file"})
_FREE_PREFIX = "x-ignore-"
_EXPIRATION = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_RANGE = "content-length-range"


class Condition(Value):
    """The required value of one form field."""

    field: str  #: in lower case
    value: str
    prefix: bool  #: the field must begin with the value; otherwise be equal to it

    def holds(self, given: str) -> bool:
        """Whether the field's value satisfies it; of a list of content types each must."""
        if not self.prefix:
            return given == self.value
        if self.field == "content-type" and "," in given:
            return all(one.strip().startswith(self.value) for one in given.split(","))
        return given.startswith(self.value)

    def __str__(self) -> str:
        return f'["{"starts-with" if self.prefix else "eq"}", "${self.field}", "{self.value}"]'


class PostPolicy(Value):
    """A policy as the client signed it."""

    expires_at: datetime
    conditions: tuple[Condition, ...]
    sizes: tuple[tuple[int, int], ...]  #: the file's size lies in each, both ends included

    def check(self, fields: Mapping[str, str], now: datetime) -> None:
        """Compare with the form, names in lower case. Raises AccessDenied (403).

        `fields` holds `bucket`, too: the one that the request is sent to.
        """
        if now >= self.expires_at:
            raise _denied("Policy expired.")
        for condition in self.conditions:
            if not condition.holds(fields.get(condition.field, "")) or (
                condition.field not in fields
            ):
                raise _denied(f"Policy Condition failed: {condition}")
        allowed = {condition.field for condition in self.conditions} | _FREE
        extra = [n for n in fields if n not in allowed and not n.startswith(_FREE_PREFIX)]
        if extra:
            raise _denied(f"Extra input fields: {', '.join(extra)}")

    @property
    def size_max(self) -> int | None:
        """The largest file, in bytes; None = no limit."""
        return min((high for _, high in self.sizes), default=None)

    def check_size(self, size: int) -> None:
        """Compare the file's size in bytes. Raises EntityTooSmall, EntityTooLarge."""
        for low, high in self.sizes:
            if size < low:
                message = "Your proposed upload is smaller than the minimum allowed size"
                raise refused("EntityTooSmall", message)
            if size > high:
                message = "Your proposed upload exceeds the maximum allowed size"
                raise refused("EntityTooLarge", message)


def read_policy(text: str) -> PostPolicy:
    """A policy document in base64. Raises InvalidPolicyDocument (400)."""
    try:
        document = read_json(base64.b64decode(text, validate=True).decode())
    except (binascii.Error, ValueError):
        raise _invalid("Invalid Policy: Invalid JSON.") from None
    if not isinstance(document, dict):
        raise _invalid("Invalid Policy: Expecting an object.")
    for name in ("expiration", "conditions"):
        if name not in document:
            raise _invalid(f"Invalid Policy: Policy missing {name}.")
    if not isinstance(document["conditions"], list):
        raise _invalid("Invalid Policy: Invalid 'conditions' value: must be a List.")
    conditions: list[Condition] = []
    sizes: list[tuple[int, int]] = []
    for entry in document["conditions"]:
        if _is_range(entry):
            sizes.append(_size_range(entry))
        else:
            conditions.append(_condition(entry))
    return PostPolicy(
        expires_at=_expiration(document["expiration"]),
        conditions=tuple(conditions),
        sizes=tuple(sizes),
    )


def _expiration(value: object) -> datetime:
    text = str(value)
    try:
        if _EXPIRATION.fullmatch(text):
            return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)
    except ValueError:
        pass
    raise _invalid(f"Invalid Policy: Invalid 'expiration' value: '{text:.80}'")


def _is_range(entry: object) -> bool:
    return isinstance(entry, list) and bool(entry) and str(entry[0]).lower() == _RANGE


def _size_range(entry: list[object]) -> tuple[int, int]:
    numbers = [str(value) for value in entry[1:]]
    if len(numbers) != 2 or not all(re.fullmatch(r"\d{1,18}", n, re.ASCII) for n in numbers):
        raise _invalid(f"Invalid Policy: Invalid {_RANGE}: two whole numbers of bytes are needed.")
    return int(numbers[0]), int(numbers[1])


def _condition(entry: object) -> Condition:
    if isinstance(entry, dict):
        if len(entry) != 1:
            raise _invalid(
                "Invalid Policy: Invalid Simple-Condition: Simple-Conditions must have exactly one"
                " property specified."
            )
        [(name, value)] = entry.items()
        kind, name = "eq", f"${name}"
    elif isinstance(entry, list) and len(entry) == 3:
        kind, name, value = str(entry[0]).lower(), str(entry[1]), entry[2]
    else:
        raise _invalid("Invalid Policy: Invalid Condition: an object or three values are needed.")
    if kind not in ("eq", "starts-with"):
        raise _invalid(f"Invalid Policy: Invalid Condition: unknown operation '{kind:.80}'.")
    if not name.startswith("$") or not isinstance(value, str):
        message = "Invalid Policy: Invalid Condition: a field begins with $, its value is a String."
        raise _invalid(message)
    return Condition(field=name[1:].lower(), value=value, prefix=kind == "starts-with")


def _invalid(message: str) -> CloudError:
    return refused("InvalidPolicyDocument", message)


def _denied(message: str) -> CloudError:
    return CloudError("AccessDenied", 403, f"Invalid according to Policy: {message}")
