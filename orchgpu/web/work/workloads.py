"""Names of workloads, by the published keys of warm workers; asked once for all browsers."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.aio.clock import Clock
from corekit.errors import AppError
from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.warm import workload_key, workload_label

#: A workload is known once its first job has ended.
KEPT_S = 20.0


class Workloads:
    """The workloads whose times the scheduler has learned, with those of earlier revisions."""

    def __init__(self, client: SchedulerClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._labels: Mapping[str, str] = {}
        self._until_s = 0.0

    async def labels(self) -> Mapping[str, str]:
        """Published key → `label_key` of its workload; the last answer while none comes."""
        now_s = self._clock.monotonic_s()
        if now_s >= self._until_s:
            self._until_s = now_s + KEPT_S
            try:
                found = (await self._client.workloads()).workloads
            except AppError:
                return self._labels
            self._labels = {
                workload_key(one.tenant, one.workload): label_key(one.tenant, one.workload)
                for one in found
            }
        return self._labels


def label_key(tenant: str, workload: str) -> str:
    """The same for all revisions of a function of one tenant."""
    return f"{tenant}/{workload_label(workload)}"
