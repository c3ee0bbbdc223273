"""The changes that keys of the screen make, each behind a question; the same as the commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import closing

from corekit.values import Value
from gpu_scheduler.client import SchedulerClient
from orchgpu.cli.commands.jobs.cancel import cancel_job
from orchgpu.cli.commands.jobs.retry import retry_job
from orchgpu.cli.top.rows import TableRow
from orchgpu.jobs.cloud import JobCloud


class Target(Value):
    """The object of a change: a device, its host, or a job."""

    row: TableRow | None = None
    job: str | None = None
    whole_host: bool = False

    @property
    def place(self) -> str:
        """The device or the host, as its drain names it."""
        if self.row is None or self.row.host is None:
            return ""
        return self.row.host if self.whole_host else f"{self.row.host}/{self.row.index}"


def drain_question(target: Target) -> str:
    """The question before a drain or its end."""
    if target.row is not None and target.row.drained:
        return f"Grant leases on {target.place} again?"
    return f"Drain {target.place}? Its leases continue; it takes no new ones."


async def drain(client: SchedulerClient, target: Target) -> str:
    """Drain, or undrain what is drained; returns what was done."""
    row = target.row
    if row is None or row.host is None:
        return ""
    device = None if target.whole_host else row.device
    if row.drained:
        await client.undrain(row.host, device)
        return f"{target.place} takes leases again"
    await client.drain(row.host, device)
    return f"{target.place} is drained"


def cancel(job: str, address: str) -> str:
    """Cancel a job; it calls the cloud, so it runs in a thread."""
    with closing(JobCloud()) as cloud:
        cancel_job(cloud, address, job, None, "cancelled by its user")
    return f"{job} is cancelled"


def retry(job: str, address: str) -> str:
    """Run a failed job again; it calls the cloud, so it runs in a thread."""
    with closing(JobCloud()) as cloud:
        function = retry_job(cloud, job, address)
    return f"{job} of {function.name} runs again"


#: A change that was confirmed; its result is one sentence.
Change = Callable[[], Awaitable[str]]
