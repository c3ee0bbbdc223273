"""The provider of hosts that a command names: `processes:FOLDER`."""

from __future__ import annotations

from pathlib import Path

from corekit.errors import invalid
from orchgpu.fleet.ports.port import FleetPort
from orchgpu.fleet.ports.processes import ProcessFleet


def open_port(provider: str) -> FleetPort:
    """The port of a provider. Raises INVALID for an unknown one."""
    kind, _, rest = provider.partition(":")
    if kind == "processes" and rest:
        return ProcessFleet(Path(rest))
    raise invalid(f"provider {provider!r} is unknown; use processes:FOLDER")
