"""The rights of one browser: those of its key at the scheduler, and never more. Pure.

The scheduler decides on its own ops, which carry the browser's key. This module decides on the
shared picture and on the cloud, where the console acts with credentials of its own; where the
scheduler knows more than the console (keys that were revoked), the console allows less.
"""

from __future__ import annotations

from gpu_scheduler.protocol.keys import Role
from orchgpu.jobs.rights import KeyRights
from orchgpu.jobs.summary import JobSummary


class Viewer(KeyRights):
    """The person at one browser."""

    def sees(self, job: JobSummary) -> bool:
        """Whether the viewer may read the names of the job's objects."""
        if self.sees_all or self.name in (job.made_by, job.owned_by):
            return True
        return self.tenant is not None and self.tenant == job.tenant

    def shown(self, job: JobSummary) -> JobSummary:
        return job if self.sees(job) else job.redacted()

    def may_change(self, job: JobSummary) -> bool:
        """Whether the viewer may run the job again, or cancel it if the key may act for it."""
        return self.role is not Role.READER and self.sees(job)

    def require_job(self, job: JobSummary) -> None:
        """Raise DENIED unless the viewer may read the objects of the job."""
        if not self.sees(job):
            raise self.denied(f"job {job.job} belongs to another key")
