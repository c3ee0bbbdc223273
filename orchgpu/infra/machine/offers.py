"""The offers of a stack's groups of GPU hosts, for its fleet and its scheduler."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from corekit.units import parse_memory_mib
from orchgpu.infra.costs import Prices
from orchgpu.infra.machine.model import Machine

#: From an order to the registration of its host: the image's start, then Python's packages.
_START = "5min"


def offers_text(machine: Machine, prices: Prices) -> str:
    """The offers file (docs/how-to/fleet.md)."""
    offers = list(_offers(machine, prices)) if machine.gpu_max else []
    return yaml.safe_dump({"offers": offers}, sort_keys=False)


def _offers(machine: Machine, prices: Prices) -> Iterator[dict[str, object]]:
    """An offer for each group: what every type has that the group may start, at the highest price.

    Of types with different models the offer states none.
    """
    gpus = [prices.gpus[kind] for kind in machine.gpu_types]
    models = {one.model for one in gpus}
    common = {
        "kind": "cuda",
        **({"model": models.pop()} if len(models) == 1 else {}),
        "devices": min(one.devices for one in gpus),
        "memory": min((one.memory for one in gpus), key=parse_memory_mib),
        "usd_per_h": max(prices.instance_hour[kind] for kind in machine.gpu_types),
        "spot": machine.on_demand_pct < 100,
    }
    for number, group in enumerate(machine.pools):
        name = group.removeprefix(f"{machine.stack}-")
        least = 0 if number else machine.gpu_min
        most = machine.gpu_max
        yield {"name": name, **common, "group": group, "min": least, "max": most, "start_s": _START}
