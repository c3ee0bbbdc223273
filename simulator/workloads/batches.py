"""Batches of promised steps: jobs of one workload that begin at one moment on one device.

Their leases open one after another at that moment, and they are one execution: each further member
adds its item, and all of them end together. They share the worker of the first one.
"""

from __future__ import annotations

from collections.abc import Sequence

from corekit.ids import DeviceId
from simulator.workloads.jobs import Running
from simulator.workloads.model import timing_on

_Place = tuple[DeviceId, str, str]


class Batches:
    """The batches that begin now."""

    def __init__(self) -> None:
        self._began_s = -1.0
        self._batches: dict[_Place, list[Running]] = {}

    def join(self, running: Running, now_s: float) -> Sequence[Running]:
        """The batch of a lease that opens, itself the last member; a lone one is a batch too."""
        job = running.job
        if job.workload.batch is None:
            return (running,)
        if now_s > self._began_s:
            self._began_s, self._batches = now_s, {}
        place = job.devices[0], job.tenant, job.workload.name
        found = self._batches.setdefault(place, [])
        if found:
            running.joined, job.cold = True, min(job.cold, found[0].job.cold)
        found.append(running)
        return found


def set_end(batch: Sequence[Running], now_s: float, model: str, kind: str) -> Sequence[Running]:
    """Set the end of all members of a batch that begins now."""
    length_s = max(one.job.loading_s + one.job.execution_s for one in batch)
    of = batch[-1].job.workload.batch
    if of is not None:
        length_s += (len(batch) - 1) * timing_on(of.item, model, kind).median_s
    for one in batch:
        one.ends_s = now_s + length_s
    return batch
