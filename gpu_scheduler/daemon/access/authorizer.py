"""Who may do what at the doors. Denials are typed: DENIED, which says what would be needed.

Without keys everybody on this machine may do everything. With keys every connection has a caller;
its role decides about the op, and the op's own words about the rest: a requester bound to a tenant
asks for that tenant only, a lease is its own key's affair (or an operator's), and a job that of its
owner's key and of the keys bound to the same tenant.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.access.keys import KeyEntry, Role, read_keys
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.keys import session_of

logger = logging.getLogger(__name__)

_RANK = {Role.HOST: 0, Role.READER: 1, Role.REQUESTER: 2, Role.OPERATOR: 3}

#: The least role for an op; what is not named here needs a ops.
_LOOKS = frozenset(
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
        "parameters",
    }
)
_RULES = frozenset({"drain", "undrain", "forget", "set"})

#: Ops that act for a job, whoever owns its record; who may not is told so here.
_ACTS = (
    ops.Finish,
    ops.FailAttempt,
    ops.HandBack,
    ops.Handle,
    ops.Reopen,
)
#: Ops that take a job: the core keeps them from what has an owner (CONFLICT).
_TAKES = (ops.Attempt, ops.Adopt)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who speaks on a connection; `key` None: no keys are asked for here."""

    key: KeyEntry | None = None
    peer: str = ""  #: its address, where the door sees one

    @property
    def name(self) -> str:
        """For logs and records; empty without keys."""
        return "" if self.key is None else self.key.name

    @property
    def sees_all(self) -> bool:
        """An operator, or anybody while no keys are asked for."""
        return self.key is None or self.key.role is Role.OPERATOR

    def session(self, session: str) -> str:
        """How the core knows this session."""
        return session if self.key is None else session_of(self.key.name, session)


#: A program of this machine, while there are no keys.
TRUSTED = Caller()


@dataclass(frozen=True, slots=True)
class JobOwner:
    """Whose a job is, as its record knows it."""

    session: str | None  #: that acts for it now
    tenant: str | None  #: of its newest request; None: it never had one
    key: str = ""  #: that made it; "" = none did


class Closable(Protocol):
    """A connection that ends when its key is revoked."""

    def close(self) -> None: ...


class Authorizer:
    """Judges callers and their ops against the keys file as it stands now."""

    def __init__(
        self,
        path: Path,
        owner_of: Callable[[str], str | None],
        job_owner_of: Callable[[str], JobOwner | None],
    ) -> None:
        """A missing file: no keys, until it is there. `owner_of`: the session of a live lease.

        `job_owner_of`: None for a job without a record. Raises what `read_keys` raises.
        """
        self._path = path
        self._owner_of = owner_of
        self._job_owner_of = job_owner_of
        self._seen = _stamp(path)
        self._keys = None if self._seen is None else read_keys(path)
        self._open: dict[Closable, Caller] = {}

    @property
    def has_keys(self) -> bool:
        return self._keys is not None

    # --- who

    def caller(self, key: object) -> Caller:
        """Whose key this is (None: none was shown). Raises DENIED."""
        if self._keys is None:
            return TRUSTED
        if key is None:
            text = "a key is needed here: ask an operator for `ssgmd keys add NAME --role ROLE`"
            raise AppError(ErrorCode.DENIED, text, needs="key")
        entry = self._keys.entry_of(key) if isinstance(key, str) else None
        if entry is None:
            text = "this key is not known here, or it was revoked"
            raise AppError(ErrorCode.DENIED, text, needs="key")
        return Caller(entry)

    def entered(self, connection: Closable, caller: Caller) -> None:
        """Close it when its key is revoked or changed, or the first key is made."""
        self._open[connection] = caller

    def left(self, connection: Closable) -> None:
        self._open.pop(connection, None)

    def knows(self, name: str) -> bool:
        """Is there a key of this name now?"""
        return bool(name) and self._keys is not None and name in self._keys.by_name

    # --- what

    def owner_of(self, lease: str) -> str | None:
        """The session that a live lease belongs to."""
        return self._owner_of(lease)

    def acts_for(self, caller: Caller, name: str, tenant: str | None) -> bool:
        """May the caller act for a job of that key and tenant? As `may` decides for its ops."""
        key = caller.key
        if caller.sees_all or key is None:
            return True
        if key.role is not Role.REQUESTER:
            return False
        owner = self._keys.by_name.get(name) if self._keys is not None else None
        if owner is not None:
            return _may_act_for(key, owner)
        return None in (key.tenant, tenant) or key.tenant == tenant

    def host_may(self, caller: Caller, host: str) -> None:
        """May the caller speak for this host? Raises DENIED."""
        if caller.key is None:
            return
        if caller.key.role is not Role.HOST:
            raise _needs(caller.key, Role.HOST, "speak for a host")
        if caller.key.host not in (None, host):
            text = f"key {caller.name!r} speaks for host {caller.key.host!r}, not for {host!r}"
            raise AppError(ErrorCode.DENIED, text, needs="host")

    def may(self, caller: Caller, op: str, value: Any) -> None:
        """May the caller do this op with these words? Raises DENIED."""
        if caller.key is None:
            return
        least = Role.READER if op in _LOOKS else Role.OPERATOR if op in _RULES else Role.REQUESTER
        if _RANK[caller.key.role] < _RANK[least]:
            raise _needs(caller.key, least, f"{op!r}")
        if caller.key.role is Role.REQUESTER:
            self._own_tenant(caller.key, value)
            self._own_lease(caller.key, value)
            self._own_job(caller.key, value)

    def _own_tenant(self, key: KeyEntry, value: Any) -> None:
        asks = isinstance(value, (ops.Attempt, ops.Reserve))
        if asks and key.tenant not in (None, value.request.tenant):
            text = f"key {key.name!r} asks for tenant {key.tenant!r} only, not for "
            text += repr(value.request.tenant)
            raise AppError(ErrorCode.DENIED, text, needs="tenant")

    def _own_lease(self, key: KeyEntry, value: Any) -> None:
        """A session of no key (older than the keys) is everybody's."""
        lease = getattr(value, "lease", None)
        owner = None if lease is None else self._owner_of(lease)
        name, slash, _ = (owner or "").partition("/")
        if slash and name != key.name:
            text = f"lease {lease} belongs to key {name!r}; an operator may act for it"
            raise AppError(ErrorCode.DENIED, text, needs="owner")

    def _own_job(self, key: KeyEntry, value: Any) -> None:
        """A job is its owner's key's; without an owner its first one's, while there is that key.

        What no key made is everybody's, but for who is bound to another tenant than it.
        """
        if not isinstance(value, (*_ACTS, *_TAKES)):
            return
        job = self._job_owner_of(value.holder)
        if job is None:
            return
        name, slash, _ = (job.session or "").partition("/")
        name = name if slash else job.key
        owner = self._keys.by_name.get(name) if self._keys is not None else None
        if owner is not None:
            taken = job.session is not None and isinstance(value, _TAKES)  # the core's to refuse
            if not taken and not _may_act_for(key, owner):
                text = f"job {value.holder} belongs to key {name!r}; a key of its tenant or an "
                text += "operator may act for it"
                raise AppError(ErrorCode.DENIED, text, needs="owner")
        elif None not in (key.tenant, job.tenant) and key.tenant != job.tenant:
            text = f"key {key.name!r} acts for tenant {key.tenant!r} only; job {value.holder} is "
            text += f"of {job.tenant!r}"
            raise AppError(ErrorCode.DENIED, text, needs="tenant")

    def foreign_to(self, caller: Caller) -> tuple[str, ...]:
        """The keys whose ownerless jobs the caller may not take."""
        key = caller.key
        if key is None or self._keys is None or key.role is not Role.REQUESTER:
            return ()
        return tuple(
            entry.name for entry in self._keys.by_name.values() if not _may_act_for(key, entry)
        )

    # --- the file

    def reread_if_changed(self) -> None:
        """Take a changed keys file; a broken or missing one leaves the last good one in force."""
        if (stamp := _stamp(self._path)) == self._seen:
            return
        self._seen = stamp
        try:
            self._keys = read_keys(self._path)
        except AppError as error:
            logger.error("the keys in force stay: %s", error.message, extra={"event": "keys"})
            return
        known = self._keys.by_name
        logger.info("keys read", extra={"event": "keys", "keys": len(known)})
        for connection, caller in list(self._open.items()):
            if caller.key is None or known.get(caller.name) != caller.key:
                logger.info("cut off", extra={"event": "revoked", "key": caller.name})
                connection.close()


def _may_act_for(key: KeyEntry, owner: KeyEntry) -> bool:
    """May the one act for the other's jobs?"""
    return key.name == owner.name or (key.tenant is not None and key.tenant == owner.tenant)


def _needs(key: KeyEntry, role: Role, what: str) -> AppError:
    text = f"key {key.name!r} has role {key.role.value}; {what} needs {role.value}"
    return AppError(ErrorCode.DENIED, text, needs=role.value)


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino
