"""JSON records with a version, the common form of envelope, result and report."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any, Self, TypeAlias

VERSION = 1
#: JSON of others: S3's events, records of a newer version. Readers check each key that they use.
JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Record:
    """A record whose reader ignores fields of newer versions."""

    def to_json(self) -> bytes:
        # `asdict` would copy every value first, which is most of the time of packing an envelope
        return json.dumps(self, default=vars, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Raises ValueError on anything but a record of this version."""
        value = json.loads(data)
        if not isinstance(value, dict) or value.get("version") != VERSION:
            raise ValueError(f"not a {cls.__name__} of version {VERSION}")
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{k: v for k, v in value.items() if k in known})
        except TypeError as error:
            raise ValueError(f"{cls.__name__}: {error}") from None
