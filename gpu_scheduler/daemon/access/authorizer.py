"""Authorization of ops. Every denial is a DENIED whose `details.needs` names what is missing.

Without a keys file every program of this machine may do everything. With one every connection has a
caller: the role of its key decides on the op, and the op's fields on the rest. A requester bound to
a tenant requests for that tenant only; a lease belongs to the key that requested it (and to
operators), a job to the key of its owner and to keys bound to the same tenant, and the promise of a
run to every key that is not bound to another tenant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.access.iam_join import IamKeyIssuer
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, keys_in, verified
from gpu_scheduler.daemon.access.sources import FileSecret, SecretSource
from gpu_scheduler.floors import WarmFloor
from gpu_scheduler.model import Request
from gpu_scheduler.names import is_away
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.keys import session_of

logger = logging.getLogger(__name__)

_RANK = {KeyRole.HOST: 0, KeyRole.READER: 1, KeyRole.REQUESTER: 2, KeyRole.OPERATOR: 3}

#: Ops of every role; what is in neither set needs a requester.
_READER_OPS = frozenset(
    {
        "beat",
        "watch",
        "record",
        "records",
        "orphans",
        "explain",
        "inventory",
        "leases",
        "queue",
        "workloads",
        "parameters",
    }
)
_OPERATOR_OPS = frozenset({"drain", "undrain", "forget", "set", "demand", "report_fleet"})

#: Ops that act for a job, whichever session owns its record.
_JOB_OPS = (
    ops.Finish,
    ops.FailAttempt,
    ops.HandBack,
    ops.Handle,
    ops.Reopen,
    ops.StagedOp,
    ops.StartedOp,
)
#: Ops that take a job over: the core refuses them for a job that has an owner (CONFLICT).
_TAKEOVER_OPS = (ops.Attempt, ops.Adopt)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of requests. By default one without a key and without rights."""

    key: KeyEntry | None = None
    peer: str = ""  #: address of its connection, if it has one
    trusted: bool = False  #: may do everything: no keys are required of it

    @property
    def name(self) -> str:
        """Name of the key, for logs and records; empty without one."""
        return "" if self.key is None else self.key.name

    @property
    def sees_all(self) -> bool:
        """Whether answers are unredacted: an operator, or a trusted caller."""
        return self.trusted or (self.key is not None and self.key.role is KeyRole.OPERATOR)

    def session(self, session: str) -> str:
        """The name of this session in the core."""
        return session if self.key is None else session_of(self.key.name, session)


#: A connection before its hello.
NOBODY = Caller()
#: The daemon itself, and every program of this machine while there is no keys file.
TRUSTED = Caller(trusted=True)


@dataclass(frozen=True, slots=True)
class JobOwner:
    """The owner of a job, as its record has it."""

    session: str | None  #: the session that acts for the job now
    tenant: str | None  #: of its newest request; None: it never had one
    key: str = ""  #: the key that made the record; "" = made without keys


class Closable(Protocol):
    """A connection that ends when its key is revoked."""

    def close(self) -> None: ...


class Authorizer:
    """Evaluates callers and their ops against the newest valid keys file."""

    def __init__(
        self,
        keys: Path | SecretSource,
        owner_of: Callable[[str], str | None],
        job_owner_of: Callable[[str], JobOwner | None],
        run_tenant_of: Callable[[str], str | None],
        join: IamKeyIssuer | None = None,
    ) -> None:
        """A missing file means that no keys are required. Raises what `keys_in` raises.

        `owner_of` is the session of a live lease, `job_owner_of` None for a job without a record,
        `run_tenant_of` None for a run without a promise, `join` the keys of hosts that joined by
        their IAM role.
        """
        self.join = join
        self._source = FileSecret(keys) if isinstance(keys, Path) else keys
        self._owner_of = owner_of
        self._job_owner_of = job_owner_of
        self._run_tenant_of = run_tenant_of
        self._seen = self._source.stamp()
        self._keys = None if self._seen is None else keys_in(self._source)
        self._open: dict[Closable, Caller] = {}

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    # --- authentication

    def caller(self, key: object) -> Caller:
        """The caller that sent this key (None: it sent none). Raises DENIED."""
        if self._keys is None:
            return TRUSTED
        if key is None:
            text = "a key is needed here: ask an operator for `ssgmd keys add NAME --role ROLE`"
            raise AppError(ErrorCode.DENIED, text, needs="key")
        entry = verified(key, self._entry) if isinstance(key, str) else None
        if entry is None:
            raise AppError(ErrorCode.DENIED, "this key is unknown or revoked", needs="key")
        return Caller(entry)

    def track(self, connection: Closable, caller: Caller) -> None:
        """Close it when its key is revoked or changed, or when the first key is made."""
        self._open[connection] = caller

    def untrack(self, connection: Closable) -> None:
        self._open.pop(connection, None)

    def has_key(self, name: str) -> bool:
        """Whether a key of this name is in force."""
        return self._entry(name) is not None

    def _entry(self, name: str) -> KeyEntry | None:
        entry = None if self._keys is None else self._keys.get(name)
        return entry if entry is not None or self.join is None else self.join.in_force(name)

    # --- authorization

    def owner_of(self, lease: str) -> str | None:
        """The session that a live lease belongs to."""
        return self._owner_of(lease)

    def acts_for(self, caller: Caller, name: str, tenant: str | None) -> bool:
        """Whether the caller may act for a job of that key and tenant."""
        key = caller.key
        if caller.sees_all or key is None:
            return caller.sees_all
        return key.role is KeyRole.REQUESTER and self._job_denial(key, "", name, tenant) is None

    def authorize_host(self, caller: Caller, host: str) -> None:
        """Check that the caller may act as this host. Raises DENIED."""
        if caller.trusted:
            return
        if caller.key is None or caller.key.role is not KeyRole.HOST:
            raise _role_denial(caller, KeyRole.HOST, "a session of a host")
        if caller.key.host not in (None, host):
            text = f"key {caller.name!r} is bound to host {caller.key.host!r}, not to {host!r}"
            raise AppError(ErrorCode.DENIED, text, needs="host")

    def authorize(self, caller: Caller, op: str, value: object) -> None:
        """Check that the caller may send this op with these fields. Raises DENIED."""
        if caller.trusted:
            return
        least = KeyRole.OPERATOR if op in _OPERATOR_OPS else KeyRole.REQUESTER
        least = KeyRole.READER if op in _READER_OPS else least
        what = repr(op)
        if isinstance(value, ops.Beat) and value != ops.Beat():  # it changes leases ahead of others
            least, what = KeyRole.REQUESTER, "'beat' with a limit or a pause of an account"
        if caller.key is None or _RANK[caller.key.role] < _RANK[least]:
            raise _role_denial(caller, least, what)
        if caller.key.role is KeyRole.REQUESTER and not isinstance(value, ops.KeepWarm):
            self._check_tenant(caller.key, value)
            _check_priority(caller.key, value)
            self._check_lease(caller.key, value)
            self._check_job(caller.key, value)

    def denied_floors(self, caller: Caller, op: ops.KeepWarm) -> Mapping[int, str]:
        """By number, the floors that the caller may not declare, and why; the others hold."""
        key, denied = caller.key, dict[int, str]()
        if key is None or key.role is not KeyRole.REQUESTER:
            return denied
        for number, floor in enumerate(op.floors):
            try:
                self._check_tenant(key, floor)
                _check_priority(key, floor)
            except AppError as error:
                denied[number] = error.message
        return denied

    def _check_tenant(self, key: KeyEntry, value: object) -> None:
        if key.tenant is None:
            return
        tenants = {request.tenant for request in _requests(value)}
        if isinstance(value, ops.Waive):
            tenants = {self._run_tenant_of(value.run) or key.tenant}
        for tenant in sorted(tenants - {key.tenant}):
            text = f"key {key.name!r} may request for tenant {key.tenant!r} only, not for "
            raise AppError(ErrorCode.DENIED, f"{text}{tenant!r}", needs="tenant")

    def _check_lease(self, key: KeyEntry, value: object) -> None:
        """A lease of a session without a key (older than the keys file) belongs to every key."""
        lease = getattr(value, "lease", None)
        owner = None if lease is None else self._owner_of(lease)
        name, slash, _ = (owner or "").partition("/")
        if slash and name != key.name:
            text = f"lease {lease} belongs to key {name!r}; an operator may act for it"
            raise AppError(ErrorCode.DENIED, text, needs="owner")

    def _check_job(self, key: KeyEntry, value: object) -> None:
        """A job belongs to the key of its owner; without an owner to the key that made it."""
        if not isinstance(value, (*_JOB_OPS, *_TAKEOVER_OPS)):
            return
        job = self._job_owner_of(value.holder)
        if job is None:
            return
        name, slash, _ = (job.session or "").partition("/")
        name = name if slash else job.key
        has_owner = job.session is not None and not is_away(job.session)
        conflict = has_owner and isinstance(value, _TAKEOVER_OPS)
        if conflict and self.has_key(name):
            return  # for the core to refuse
        denial = self._job_denial(key, value.holder, name, job.tenant)
        if denial is not None:
            raise denial

    def _job_denial(
        self, key: KeyEntry, holder: str, name: str, tenant: str | None
    ) -> AppError | None:
        """Why the key may not act for a job of the key `name`; None when it may.

        A job of no key in force belongs to every key that is not bound to another tenant.
        """
        owner = self._entry(name)
        if owner is not None:
            if _may_act_for(key, owner):
                return None
            text = f"job {holder} belongs to key {name!r}; a key of its tenant or an operator may "
            return AppError(ErrorCode.DENIED, f"{text}act for it", needs="owner")
        if None in (key.tenant, tenant) or key.tenant == tenant:
            return None
        text = f"key {key.name!r} acts for tenant {key.tenant!r} only; job {holder} is of "
        return AppError(ErrorCode.DENIED, f"{text}{tenant!r}", needs="tenant")

    def foreign_to(self, caller: Caller) -> tuple[str, ...]:
        """Names of the keys whose ownerless jobs the caller may not take over."""
        key = caller.key
        if key is None or self._keys is None or key.role is not KeyRole.REQUESTER:
            return ()
        return tuple(entry.name for entry in self._keys.values() if not _may_act_for(key, entry))

    # --- the source

    def reread_if_changed(self) -> None:
        """Read changed keys; the last valid ones stay in force otherwise."""
        if self.join is not None:
            self.join.reread_if_changed()
            self._close_revoked()
        if (stamp := self._source.stamp()) == self._seen:
            return
        self._seen = stamp
        try:
            self._keys = keys_in(self._source)
        except AppError as error:
            logger.error("the keys in force stay: %s", error.message, extra={"event": "keys"})
            return
        logger.info("keys read", extra={"event": "keys", "keys": len(self._keys)})
        self._close_revoked()

    def _close_revoked(self) -> None:
        if self._keys is None:
            return
        for connection, caller in list(self._open.items()):
            if caller.key is None or self._entry(caller.name) != caller.key:
                logger.info("connection closed", extra={"event": "revoked", "key": caller.name})
                connection.close()


def _check_priority(key: KeyEntry, value: object) -> None:
    """A tenant orders its own requests below the highest priority; above it passes other tenants.

    A lower one instead of an error would reverse that order without a word. `explain` is refused
    likewise, so that a deploy reports it before the first job.
    """
    requests = (value.request,) if isinstance(value, ops.Explain) else _requests(value)
    asked = [request.priority for request in requests if request is not None]
    highest = max(asked, default=key.priority_max)
    if highest <= key.priority_max:
        return
    text = f"key {key.name!r} may request priority {key.priority_max} at most, not "
    text += f"{highest}: lower the others of your requests instead (down to -100), or ask "
    text += "an operator for a key with --priority-max"
    raise AppError(ErrorCode.DENIED, text, needs="priority")


def _requests(value: object) -> tuple[Request, ...]:
    """The requests of devices: of one attempt or floor, or of all steps of a run."""
    if isinstance(value, ops.Admit):
        return tuple(step.request for step in value.steps)
    return (value.request,) if isinstance(value, ops.Attempt | ops.Reserve | WarmFloor) else ()


def _may_act_for(key: KeyEntry, owner: KeyEntry) -> bool:
    return key.name == owner.name or (key.tenant is not None and key.tenant == owner.tenant)


def _role_denial(caller: Caller, role: KeyRole, what: str) -> AppError:
    if caller.key is None:
        return AppError(ErrorCode.DENIED, f"{what} needs a key of role {role.value}", needs="key")
    text = f"key {caller.name!r} has role {caller.key.role.value}; {what} needs {role.value}"
    return AppError(ErrorCode.DENIED, text, needs=role.value)
