"""The rights of one browser: those of its key at the scheduler, and never more. Pure.

The scheduler decides on its own ops, which carry the browser's key. This module decides on the
shared picture and on the cloud, where the console acts with credentials of its own; where the
scheduler knows more than the console (keys that were revoked), the console allows less.
"""

from __future__ import annotations

from enum import StrEnum

from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from orchgpu.core.function import Function
from orchgpu.web.model.jobs import JobSummary


class Role(StrEnum):
    """The role of a key, in ascending order of rights; `host` keys have no console."""

    READER = "reader"
    REQUESTER = "requester"
    OPERATOR = "operator"


class Viewer(Value):
    """The person at one browser."""

    name: str  #: of the key; "" = the scheduler needs none
    role: Role
    tenant: str | None = None  #: that the key is bound to

    @property
    def sees_all(self) -> bool:
        return self.role is Role.OPERATOR

    def sees(self, job: JobSummary) -> bool:
        """Whether the viewer may read the names of the job's objects."""
        if self.sees_all or self.name in (job.made_by, job.owned_by):
            return True
        return self.tenant is not None and self.tenant == job.tenant

    def shown(self, job: JobSummary) -> JobSummary:
        """The job as the viewer may read it."""
        return job if self.sees(job) else job.redacted()

    def may_change(self, job: JobSummary) -> bool:
        """Whether the viewer may cancel the job or run it again."""
        return self.role is not Role.READER and self.sees(job)

    def sees_function(self, function: Function) -> bool:
        """Whether the viewer may read the definition, the letters and the outputs of a function."""
        if self.sees_all:
            return True
        if self.tenant is None:
            return self.role is Role.REQUESTER
        return self.tenant == function.request.tenant

    def require_job(self, job: JobSummary) -> None:
        """Raise DENIED unless the viewer may read the objects of the job."""
        if not self.sees(job):
            raise _denied(self, f"job {job.job} belongs to another key")

    def require_change(self, job: JobSummary) -> None:
        """Raise DENIED unless the viewer may change the job."""
        self.require(Role.REQUESTER, f"a change of job {job.job}")
        self.require_job(job)

    def require_function(self, function: Function) -> None:
        """Raise DENIED unless the viewer may read the function."""
        if not self.sees_function(function):
            raise _denied(self, f"function {function.name} belongs to another tenant")

    def require(self, least: Role, what: str) -> None:
        """Raise DENIED below this role."""
        if _RANK[self.role] < _RANK[least]:
            raise _denied(self, f"{what} needs a key of role {least.value}", needs=least.value)


_RANK = {role: rank for rank, role in enumerate(Role)}


def _denied(viewer: Viewer, why: str, needs: str = "owner") -> AppError:
    text = f"key {viewer.name!r} has role {viewer.role.value}: {why}"
    return AppError(ErrorCode.DENIED, text, needs=needs)
