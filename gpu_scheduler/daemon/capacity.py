"""The file of `--capacity`: devices that may register later.

It has the offers of `orchgpu fleet`, whose hosts come when they are needed, or a list of devices
as an inventory file has it, or both.

    offers:
      - {name: a10g, kind: cuda, model: NVIDIA A10G, devices: 4, memory: 24GiB, max: 3}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from corekit.decode import decode
from corekit.errors import AppError, ErrorCode, invalid
from corekit.units import parse_memory_mib
from gpu_scheduler.model import COUNT_MAX, Device
from gpu_scheduler.monitor.probes import listed_devices
from gpu_scheduler.names import POOL


def declared_devices(path: Path) -> tuple[Device, ...]:
    """The devices of the file. Raises INVALID naming file and entry; NOT_FOUND without the file."""
    import yaml  # 20 ms that a start without a file does not need

    try:
        value = yaml.safe_load(path.read_text())  # JSON is YAML
    except OSError as error:
        raise AppError(ErrorCode.NOT_FOUND, f"capacity {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise invalid(f"capacity {path}: not YAML or JSON: {error}") from None
    if not isinstance(value, Mapping) or not {"devices", "offers"} & set(value):
        raise invalid(f"capacity {path}: write `offers:` or `devices:` and a list below it")
    offers = value.get("offers") or []
    if not isinstance(offers, list):
        raise invalid(f"capacity {path}: `offers` must be a list")
    devices = listed_devices(value.get("devices") or [], str(path), "declared")
    pools = [one for i, o in enumerate(offers) for one in _of_offer(o, f"{path}: offers[{i}]")]
    found = (*devices, *pools)
    if len({one.id for one in found}) < len(found):
        raise invalid(f"capacity {path}: two offers or devices have the same name")
    return found


def _of_offer(offer: Any, path: str) -> Iterator[Device]:
    """The devices of all hosts of a pool; of a large pool as many as one request may ask for."""
    if not isinstance(offer, Mapping):
        raise invalid(f"{path}: expected an object with name, kind, memory and max")
    name, per_host, most = offer.get("name"), offer.get("devices", 1), offer.get("max")
    if not isinstance(name, str) or not name or "/" in name:
        raise invalid(f"{path}: name must be a text without a slash, got {name!r:.60}")
    for key, number in (("devices", per_host), ("max", most)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise invalid(f"{path}: {key} must be an integer, got {number!r:.60}")
    memory = offer.get("memory")
    if not isinstance(memory, str | int):
        raise invalid(f"{path}: memory must be an amount such as 24GiB, got {memory!r:.60}")
    fields = {
        "kind": offer.get("kind"),
        "model": offer.get("model", ""),
        "memory_mib": _memory_mib(memory, path),
    }
    for host in range(min(most or 0, math.ceil(COUNT_MAX / max(1, per_host)))):
        for index in range(min(per_host, COUNT_MAX)):
            yield decode(
                Device, {"id": f"{POOL}{name}/{host}/{index}", "index": index, **fields}, path
            )


def _memory_mib(memory: str | int, path: str) -> int:
    try:
        return parse_memory_mib(memory)
    except AppError as error:
        raise invalid(f"{path}: memory: {error.message}") from None
