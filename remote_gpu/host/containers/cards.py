"""The cards of this host as containers get them: names of CDI, and device files."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path

import yaml

from remote_gpu.host.containers.command import Cards

logger = logging.getLogger(__name__)

#: The folders of CDI's specification, which podman reads.
FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_GPUS = Path("/proc/driver/nvidia/gpus")
_NODES = ("nvidia*", "dri", "kfd")


def cards(
    folders: Iterable[Path] = FOLDERS, gpus: Path = _GPUS, devices: Path = Path("/dev")
) -> Cards:
    """Read now: drivers may be loaded, and CDI files be written, after gpud's start."""
    return Cards(
        cdi=frozenset(_cdi(folders)),
        minors=_minors(gpus),
        nodes=frozenset(f"/dev/{one.name}" for name in _NODES for one in devices.glob(name)),
    )


def _cdi(folders: Iterable[Path]) -> Iterable[str]:
    for folder in folders:
        for suffix in ("json", "yaml"):
            for file in sorted(folder.glob(f"*.{suffix}")):
                try:
                    found = yaml.safe_load(file.read_bytes())  # JSON is YAML too
                    yield from (f"{found['kind']}={one['name']}" for one in found["devices"])
                except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
                    about = {"file": str(file), "why": str(error)[:500]}
                    logger.warning("a CDI file cannot be read", extra=about)


def _minors(gpus: Path) -> dict[str, int]:
    """The number of each NVIDIA card's node by its UUID, from the driver."""
    found: dict[str, int] = {}
    for file in gpus.glob("*/information"):
        with contextlib.suppress(OSError, KeyError, ValueError):
            lines = os.fsdecode(file.read_bytes()).splitlines()
            values = {k.strip(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
            found[values["GPU UUID"]] = int(values["Device Minor"])
    return found
