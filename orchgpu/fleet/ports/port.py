"""The port of a fleet to a provider of hosts.

A host's name at the port is its id at the scheduler. Every call may be repeated. Errors are
AppError: UNAVAILABLE when the provider does not answer now, DENIED, NOT_FOUND for an unknown group,
which may come later: a stack makes its groups after the machines that the fleet runs on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from corekit.values import Value


class PortHost(Value):
    """One host that has come; it may not have joined yet."""

    id: str
    launched_s: float | None = None  #: wall clock; None: the provider does not say


class PortGroup(Value):
    """One group of hosts."""

    name: str
    size: int  #: hosts that it has been asked to have
    hosts: tuple[PortHost, ...]
    refusal: str = ""  #: why the provider cannot deliver the missing ones now; "" = not stated


class FleetPort(Protocol):
    """Hosts of one provider."""

    async def list(self, groups: Sequence[str]) -> tuple[PortGroup, ...]:
        """The state of these groups, in their order."""
        ...

    async def grow(self, group: str, size: int) -> None:
        """Let the group have at least this many hosts. Never makes it smaller."""
        ...

    async def withdraw(self, group: str) -> None:
        """Let the group have no more hosts than have come; ends none of them."""
        ...

    async def stop(self, group: str, host: str) -> None:
        """End this host, and let the group have one less. An unknown host is not an error."""
        ...

    async def close(self) -> None:
        """Release connections; hosts stay."""
        ...
