"""The device of a lease on which the next run of a graph begins: affinity with its contents. Pure.

It is the half of Kernel-as-a-service's policy that chooses a device. The other half, whose run is
next on a device, is that of the time slices of its host: the least virtual time over the leases'
guarantees. A run is compared in runs of its own length: on a busy device it lasts as many times
longer as its lease has less than the whole device, and follows the runs that the program has there
already. A device without the graph counts as if `PENALTY_RUNS` more runs were to be waited for.

* Work-conserving: a device that no other lease uses and that has no run of this program is chosen
  before any other, one with the graph first.
* Else the least number of runs to wait for, with the penalty; equal ones in the order of the lease.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

#: Runs that a device without a graph's contents is set back by, as in Kernel-as-a-service.
PENALTY_RUNS = 10


@dataclass(frozen=True, slots=True)
class Load:
    """The use of a device by other leases."""

    free: bool = True  #: a call begins at once
    slowdown: float = 1.0  #: how many times longer a call takes than alone


class Affinity:
    """The runs of one program on the devices of its lease, by their numbers. Not thread-safe."""

    def __init__(self, devices: Sequence[int]) -> None:
        self._runs = dict.fromkeys(devices, 0)
        self._refused: set[tuple[int, str]] = set()

    def begin(self, graph: str, loaded: Collection[int], loads: Mapping[int, Load]) -> int:
        """The device of a run that begins. `loaded`: devices with the graph; `loads`: as their
        hosts report them, those without a report count as free."""
        usable = self._usable(graph) or list(self._runs)
        idle = [one for one in usable if not self._runs[one] and loads.get(one, Load()).free]
        if idle:
            chosen = min(idle, key=lambda one: one not in loaded)
        else:
            chosen = min(usable, key=lambda one: self._score(one, one in loaded, loads))
        self._runs[chosen] += 1
        return chosen

    def end(self, device: int) -> None:
        self._runs[device] -= 1

    def refuse(self, device: int, graph: str) -> bool:
        """Note that a device lacks memory for a graph. False: so do all others."""
        self._refused.add((device, graph))
        return bool(self._usable(graph))

    def _usable(self, graph: str) -> list[int]:
        return [device for device in self._runs if (device, graph) not in self._refused]

    def _score(self, device: int, loaded: bool, loads: Mapping[int, Load]) -> float:
        waits = (self._runs[device] + 1) * loads.get(device, Load()).slowdown
        return waits if loaded else waits + PENALTY_RUNS
