"""The fleet of a seed: its offers, the edits of its file, and its faults with their times."""

from __future__ import annotations

import random

from corekit.values import Value, replace
from gpu_scheduler.model import DeviceKind
from orchgpu.fleet.core.model import Offer, Offers, Rules

#: What happens to fleet programs, to their provider, and to its hosts.
FLEET_FAULTS = (
    "kill fleet",
    "kill fleet and its memory",
    "provider refuses",
    "provider is late",
    "hosts never join",
    "host is taken",
    "spot notice",
    "edit offers",
)
BIG, SMALL = "big", "small"
_USD_PER_H = {BIG: 2.0, SMALL: 1.0}


class FleetScenario(Value):
    """The fleet of one world."""

    offers: Offers
    edits: tuple[tuple[Offer, ...], ...]  #: what an operator makes of the offers for a while
    programs: int = 1  #: fleets beside each other
    provider_fault_rate: float = 0.0  #: of its calls
    end_s_max: float = 0.0  #: from the end of a host's program until the provider has ended it

    @property
    def every_offer(self) -> tuple[Offer, ...]:
        """Of the file as it begins, and of all edits."""
        return tuple(one for some in (self.offers.offers, *self.edits) for one in some)


def draw_fleet(stream: random.Random, devices: int, memory_mib: int) -> FleetScenario:
    """A pool whose hosts serve every request, and sometimes a cheaper one with half the memory."""
    offers = [_offer(stream, BIG, devices, memory_mib)]
    if stream.random() < 0.5:
        offers.append(_offer(stream, SMALL, devices, memory_mib // 2))
    least = sum(one.min * one.usd_per_h for one in offers)
    rules = Rules(
        target_wait_s=stream.choice((0.0, 5.0, 60.0)),
        patience_s=stream.choice((0.0, 2.0)),
        usd_per_hour_max=stream.choice((None, least + _USD_PER_H[BIG], least + 5.0)),
        skip_s=stream.choice((20.0, 120.0)),
    )
    return FleetScenario(
        offers=Offers(offers=tuple(offers), rules=rules),
        edits=_edits(tuple(offers)),
        programs=stream.choice((1, 1, 2)),
        provider_fault_rate=stream.choice((0.0, 0.1)),
        end_s_max=stream.choice((0.0, 5.0)),
    )


def _offer(stream: random.Random, name: str, devices: int, memory_mib: int) -> Offer:
    return Offer(
        name=name,
        kind=DeviceKind.CPU,
        model="sim",
        devices=devices,
        memory_mib=memory_mib,
        usd_per_h=_USD_PER_H[name],
        min=stream.choice((0, 0, 1)),
        max=stream.randrange(1, 5),
        buffer=stream.choice((0, 0, 1)),
        idle_s=stream.choice((5.0, 60.0)),
        start_s=stream.choice((5.0, 30.0)),
    )


def _edits(offers: tuple[Offer, ...]) -> tuple[tuple[Offer, ...], ...]:
    first, rest = offers[0], offers[1:]
    fewer = replace(first, max=max(1, first.max - 2), min=0)
    return (
        rest,  # it is removed
        (fewer, *rest),
        (replace(first, max=first.max + 2), *rest),
        (replace(first, min=first.max), *rest),
        (replace(first, group=f"{first.name}-moved"), *rest),
        (replace(first, name=f"{first.name}-renamed", group=first.at_port), *rest),
        tuple(replace(one, group=f"{one.name}-moved", max=1, min=0) for one in offers),
    )
