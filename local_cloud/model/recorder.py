"""The port through which the model stores durable state: the last value of a key wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

#: A value as this program recorded it: its reader knows the shape.
Recorded: TypeAlias = Mapping[str, Any]


class Recorder(Protocol):
    """A store of durable state. The calls of one request are made before it is answered."""

    def put(self, key: str, value: object) -> None:
        """Remember plain JSON data under `key`, replacing what was there."""
        ...

    def drop(self, key: str) -> None:
        """Remove `key`; an unknown one is not an error."""
        ...


class NullRecorder:
    """Stores nothing: for the simulator and the memory adapter."""

    def put(self, key: str, value: object) -> None:
        """Nothing outlives this process."""

    def drop(self, key: str) -> None:
        """Nothing outlives this process."""


def part(text: str) -> str:
    """One component of a record key; `/` and `%` inside names are escaped."""
    return text.replace("%", "%25").replace("/", "%2F")
