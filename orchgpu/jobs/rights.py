"""The rights of a scheduler's key on jobs and functions, as far as a client knows them. Pure.

The scheduler decides on its own ops. A cancel and a retry begin in the cloud, with credentials of
the cloud, so they are checked here first: else the cloud would be changed, and the scheduler would
refuse the rest. The console decides by them on its shared picture, too: where the scheduler knows
more than the console (keys that were revoked), it allows less.
"""

from __future__ import annotations

from corekit.errors import AppError, ErrorCode
from corekit.values import Value
from gpu_scheduler.model import Record
from gpu_scheduler.protocol.answers import SessionWelcome
from gpu_scheduler.protocol.keys import KeyRole, key_of
from orchgpu.core.function import Function
from orchgpu.jobs.summary import JobSummary

_RANK = {
    role: rank for rank, role in enumerate((KeyRole.READER, KeyRole.REQUESTER, KeyRole.OPERATOR))
}


class KeyRights(Value):
    """The rights of one key."""

    name: str  #: of the key; "" = the scheduler needs none
    role: KeyRole
    tenant: str | None = None  #: that the key is bound to

    @property
    def sees_all(self) -> bool:
        return self.role is KeyRole.OPERATOR

    def sees(self, job: JobSummary) -> bool:
        """Whether the viewer may read the names of the job's objects."""
        if self.sees_all or self.name in (job.made_by, job.owned_by):
            return True
        return self.tenant is not None and self.tenant == job.tenant

    def shown(self, job: JobSummary) -> JobSummary:
        return job if self.sees(job) else job.redacted()

    def may_change(self, job: JobSummary) -> bool:
        """Whether the viewer may run the job again, or cancel it if the key may act for it."""
        return self.role is not KeyRole.READER and self.sees(job)

    def require_job(self, job: JobSummary) -> None:
        """Raise DENIED unless the viewer may read the objects of the job."""
        if not self.sees(job):
            raise self.denied(f"job {job.job} belongs to another key")

    def sees_function(self, function: Function) -> bool:
        """Whether the key may read the definition, the letters and the outputs of a function."""
        if self.sees_all:
            return True
        if self.tenant is None:
            return self.role is KeyRole.REQUESTER
        return self.tenant == function.request.tenant

    def require_function(self, function: Function) -> None:
        """Raise DENIED unless the key may read the function."""
        if self.tenant is None:
            self.require(KeyRole.REQUESTER, f"function {function.name}")
        elif not self.sees_function(function):
            raise self.denied(f"function {function.name} belongs to another tenant")

    def require_its_jobs(self, function: Function) -> None:
        """Raise DENIED for a key that could not read a job which it submits: it has no tenant."""
        if not self.sees_all and self.tenant is None:
            why = f"a job of {function.name} belongs to the function's tenant, and a key without a "
            why += "tenant cannot read it: use a key that was added with --tenant"
            raise self.denied(why)

    def require(self, least: KeyRole, what: str) -> None:
        """Raise DENIED below this role."""
        if _RANK[self.role] < _RANK[least]:
            raise self.denied(f"{what} needs a key of role {least.value}", needs=least.value)

    def denied(self, why: str, needs: str = "owner") -> AppError:
        """The refusal, with what is missing."""
        text = f"key {self.name!r} has role {self.role.value}: {why}"
        return AppError(ErrorCode.DENIED, text, needs=needs)


def rights_of(session: str, welcome: SessionWelcome | None) -> KeyRights | None:
    """The rights of a session's key; None where the scheduler states no role.

    It needs no keys then, or is an older one, which decides alone.
    """
    if welcome is None or not welcome.role:
        return None
    known = {role.value: role for role in _RANK}
    role = known.get(
        welcome.role, KeyRole.READER
    )  # a host's key, or a newer role: the least rights
    return KeyRights(name=key_of(session), role=role, tenant=welcome.tenant)


class JobRights(Value):
    """The rights of one key on one job.

    `record`: as the scheduler shows it to the key; None for a job that it does not know, which
    has the owner of its function then.
    """

    key: KeyRights
    job: str
    record: Record | None
    function: Function | None

    def require_cancel(self) -> None:
        """Raise DENIED unless the scheduler lets the key end the job.

        It shows a receipt handle only to keys that may act for the job.
        """
        self._require_requester("a cancel")
        record = self.record
        if record is not None and not (record.handle or self._is_owner(record)):
            raise self._of_another_key(record, "cancel it")

    def require_retry(self) -> None:
        """Raise DENIED unless the key may run the job again: a requester that may read it."""
        self._require_requester("another run")
        if self.record is not None and self.record.hidden and not self._is_owner(self.record):
            raise self._of_another_key(self.record, "run it again")

    def _require_requester(self, what: str) -> None:
        self.key.require(KeyRole.REQUESTER, f"{what} of job {self.job}")
        if self.function is not None:  # a record names whichever its key wrote
            self.key.require_function(self.function)

    def _is_owner(self, record: Record) -> bool:
        return self.key.sees_all or self.key.name == _owner(record)

    def _of_another_key(self, record: Record, what: str) -> AppError:
        text = f"job {self.job} belongs to key {_owner(record)!r}; a key of its tenant or an "
        return AppError(ErrorCode.DENIED, f"{text}operator may {what}", needs="owner")


def _owner(record: Record) -> str:
    return key_of(record.owner) or record.key
