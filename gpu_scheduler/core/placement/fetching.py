"""The device of a request with declared data sets: where they would be soonest, then as for others.

Beside the devices of hosts that have some of the sets and those with warm workers, a sample of the
others is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from corekit.ids import DeviceId
from gpu_scheduler.core.inventory.index import DeviceGroup, preference
from gpu_scheduler.core.placement.candidates import Score, Search, score

#: The number of devices of each kind of host compared.
FETCH_SAMPLE_MAX = 64
#: Whole seconds of fetching, then the score.
FetchScore = tuple[int, Score]


def soonest(search: Search, groups: tuple[DeviceGroup, ...]) -> DeviceId | None:
    """The device of one rank whose host has the request's data soonest; None when none fits."""
    best: tuple[FetchScore, DeviceId] | None = None
    for device in _candidates(search, groups):
        found = fetch_score(search, device)
        if best is None or found < best[0]:
            best = found, device
    return None if best is None else best[1]


def with_data(search: Search, groups: tuple[DeviceGroup, ...]) -> Iterator[DeviceId]:
    """The devices of one rank that fit, on hosts with some of the request's data."""
    request, inventory, _ = search
    if not request.data_sets:
        return
    rank = preference(request, groups[0].device_class)
    for host in inventory.held.hosts_with(request.data_sets):
        for device in inventory.hosts[host].devices:
            device_class = inventory.state_of(device).device_class
            if search.fits(device) and preference(request, device_class) == rank:
                yield device


def fetch_score(search: Search, device: DeviceId) -> FetchScore:
    """The criteria for one device that fits; lower is better."""
    request, inventory, _ = search
    fetch_s = inventory.held.fetch_s(request.data_sets, inventory.devices[device].host)
    return round(fetch_s), score(request, inventory, device, warm=search.is_warm(device))


def _candidates(search: Search, groups: tuple[DeviceGroup, ...]) -> Iterator[DeviceId]:
    warm = (one for index in search.warm_indexes() for one in search.same_rank(index, groups[0]))
    here = with_data(search, groups)
    known = chain(islice(here, FETCH_SAMPLE_MAX), islice(search.of_groups(warm), FETCH_SAMPLE_MAX))
    yield from dict.fromkeys(chain(known, islice(search.of_groups(groups), FETCH_SAMPLE_MAX)))
