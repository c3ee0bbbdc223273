"""All that the screen shows, as it was read last. Each part has its own age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from contract.states import Reason
from corekit.errors import AppError
from corekit.ids import AttemptId
from corekit.values import Value, field
from gpu_scheduler.model import Lease, Record
from gpu_scheduler.protocol.answers import HostView, QueueAnswer
from gpu_scheduler.protocol.pools import PoolView
from gpu_scheduler.verdicts import Explanation
from orchgpu.jobs.joblog import Line
from orchgpu.jobs.known import Known
from orchgpu.jobs.summary import state_of
from orchgpu.jobs.waiting import reason_of_wait


class Story(Value):
    """One job, with its last log lines."""

    known: Known
    lines: tuple[Line, ...] = ()


class ScreenData(Value):
    """The state of the system; None for a part that was not read yet."""

    hosts: tuple[HostView, ...] | None = None
    pools: tuple[PoolView, ...] = ()
    leases: tuple[Lease, ...] = ()
    queue: QueueAnswer | None = None
    #: Attempt → the reason of its wait, for the first of the queue.
    waits: Mapping[AttemptId, Explanation] = field(default_factory=dict)
    records: tuple[Record, ...] | None = None  #: the newest first
    story: Story | None = None  #: of the job that is shown
    story_error: AppError | None = None  #: the reason why no story is known
    scheduler_error: AppError | None = None  #: while the scheduler does not answer

    def reasons(self) -> dict[AttemptId, str]:
        """The reason why each waiting attempt waits.

        One that was not asked has that of an equal request before it, where a rule holds both back;
        else its place in the queue is the reason.
        """
        queue = self.queue.queue if self.queue is not None else ()
        held = {
            one.request: reason_of_wait(why).value
            for one in queue
            if (why := self.waits.get(one.attempt)) is not None and why.held_back is not None
        }
        behind = Reason.QUEUED_BEHIND.value
        found = {
            one.attempt: "" if one.position is None else held.get(one.request, behind)
            for one in queue
        }
        return found | {name: reason_of_wait(why).value for name, why in self.waits.items()}

    def overview(self) -> str:
        """The counts of hosts, devices, waiting requests and jobs, in one line."""
        parts = []
        if self.hosts is not None:
            devices = [view for host in self.hosts for view in host.devices]
            lent = sum(bool(view.leases) for view in devices)
            parts.append(f"{len(self.hosts)} hosts  {lent}/{len(devices)} devices lent")
        parts += [f"pool {pool.name} {pool.hosts}/{pool.max}" for pool in self.pools]
        if self.queue is not None:
            parts.append(f"{len(self.queue.queue) + self.queue.left_out} waiting")
        if self.records is not None:
            counts = Counter(state_of(record) for record in self.records)
            parts += [f"{number} {state}" for state, number in sorted(counts.items())]
        return "  ".join(parts)
