"""The provider of hosts that a command names, such as `processes:FOLDER`."""

from __future__ import annotations

from pathlib import Path

from corekit.errors import invalid
from orchgpu.fleet.ports.port import FleetPort
from orchgpu.fleet.ports.processes import ProcessFleet
from orchgpu.fleet.ports.skypilot import SkyFleet

KNOWN = "processes:FOLDER, auto-scaling[:REGION], ecs:CLUSTER[:REGION] or skypilot:FOLDER"


def open_port(provider: str) -> FleetPort:
    """The port of a provider. Raises INVALID for an unknown one."""
    kind, _, rest = provider.partition(":")
    if kind == "processes" and rest:
        return ProcessFleet(Path(rest))
    if kind == "skypilot" and rest:
        return SkyFleet(Path(rest))
    if kind == "auto-scaling":
        from orchgpu.adapters.aws.fleet import auto_scaling

        return auto_scaling(rest or None)
    if kind == "ecs" and rest:
        from orchgpu.adapters.aws.ecs_fleet import ecs

        cluster, _, region = rest.partition(":")
        return ecs(cluster, region or None)
    raise invalid(f"provider {provider!r} is unknown; use {KNOWN}")
