"""The leases installed on one host, as a pure table: time comes in, steps to take come out.

    QUEUED ──fits──▶ PLACED ──session──▶ OPEN ──give back──▶ RETURNED
       └───────────────┴──────────────────┴────────────────────┴──end──▶ CLOSING ──gone──▶ forgotten

A lease occupies its shares from PLACED until its worker is gone, whatever else has happened to it:
that alone decides whether the next one fits, so no two leases ever overlap on one share, even when
the scheduler promised the share again long ago.

A lease is held by its session, and over with it; under `LeaseLifetime.DEADLINE` sessions come and go, one at
a time, and only the deadline ends it.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import DeviceKind, EndReason, LeaseLifetime, LeaseState, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.wire.errors import Refusal, Refused

#: Ended leases are remembered to say ENDED in place of NOT_INSTALLED, and never to reopen one.
_REMEMBERED_MAX = 10_000
#: Deadlines of a session, which a deadline lease outlives.
_OF_SESSIONS = (EndReason.SESSION_LOST, EndReason.CAP)
#: A cap above this is a mistake: Lambda's longest function is 900 s.
CAP_S_MAX = 86_400.0


class Phase(StrEnum):
    QUEUED = "QUEUED"  #: known, but older leases still hold its shares
    PLACED = "PLACED"  #: its shares are its own; no session yet
    OPEN = "OPEN"
    RETURNED = "RETURNED"  #: given back; the session is still open
    CLOSING = "CLOSING"  #: over; its worker may still be dying


class StepKind(StrEnum):
    """What the shell must do, in this order."""

    PLACED = "placed"  #: log; let a waiting session in
    OPENED = "opened"  #: tell the scheduler
    UNBOUND = "unbound"  #: its session is over, the lease is not; drop session, lanes and doors
    RETURNED = "returned"  #: tell the scheduler: the shares may be promised again
    KILL = "kill"  #: end the worker and the lanes, then call `gone`
    CLOSED = "closed"  #: tell the scheduler, with the reason; drop the session
    CUT = "cut"  #: log and tell: nothing of it is left on its shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One consequence, for the shell."""

    kind: StepKind
    lease: LeaseId
    fence: int
    shares: tuple[Share, ...]
    nonce: str = ""
    reason: EndReason | None = None
    detail: str = ""
    reported: bool = True  #: False: the scheduler ended it and knows


@dataclass(slots=True, kw_only=True)
class Entry:
    """One installed lease."""

    install: Install
    phase: Phase = Phase.QUEUED
    occupying: bool = False
    stuck: bool = False  #: its worker cannot be killed; the shares are gone until it is
    nonce: str = ""  #: of the session that bound the lease
    connect_by_s: float | None = None  #: monotonic deadlines; None = none
    ends_at_s: float | None = None  #: of a deadline lease
    cap_at_s: float | None = None  #: of the session
    heard_at_s: float | None = None  #: when the session spoke last

    @property
    def lease(self) -> LeaseId:
        return self.install.lease

    @property
    def held_by_session(self) -> bool:
        return self.install.hold is LeaseLifetime.SESSION

    @property
    def last_s(self) -> float | None:
        """When its work will be over at the latest; a deadline lease's outlives its sessions."""
        return self.cap_at_s if self.held_by_session else self.ends_at_s


class LeaseTable:
    """See the module. `now_s` is monotonic and never goes back."""

    def __init__(self, memory_mib: Mapping[DeviceId, int], silence_s: float) -> None:
        self._memory_mib = memory_mib  #: of each device of this host
        self._silence_s = silence_s
        self._entries: dict[LeaseId, Entry] = {}
        self._ended: OrderedDict[LeaseId, Step] = OrderedDict()

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def lend(self, memory_mib: Mapping[DeviceId, int]) -> None:
        """From now on these devices, with so much memory; what is lent stays lent."""
        self._memory_mib = memory_mib

    def find(self, lease: str) -> Entry | None:
        """The entry while its door is open: installed and not over."""
        entry = self._entries.get(LeaseId(lease))
        return None if entry is None or entry.phase is Phase.CLOSING else entry

    def ended(self, lease: str) -> Step | None:
        """How a lease ended, if it did so here and lately."""
        return self._ended.get(LeaseId(lease))

    def install(self, install: Install, now_s: float) -> list[Step]:
        """Open the door of a lease. An ended one is not reopened; of a known one only the end of
        its length may change."""
        if install.lease in self._ended:
            # the scheduler has not heard of the end: say it again
            return [dataclasses.replace(self._ended[install.lease], reported=True)]
        entry = self._entries.get(install.lease)
        if entry is None:
            entry = self._entries[install.lease] = Entry(install=install)
            if install.state is LeaseState.ENDING:
                entry.phase = Phase.RETURNED  # its shares are no longer its own
            elif not self._fits_beside_stuck(entry):
                # it would block all that come after it, for ever
                detail = "its shares exceed what this host has left of the device to lend"
                return self.end(install.lease, EndReason.DEVICE_BAD, detail)
        if install.hold is LeaseLifetime.DEADLINE and install.cap_s is not None:
            entry.ends_at_s = now_s + install.cap_s
        if install.connect_by_s is not None:
            self.staged(install.lease, install.connect_by_s, now_s)
        return self._place()

    def staged(self, lease: LeaseId, connect_by_s: float, now_s: float) -> None:
        """From now on a first session must come in time; only the first such word counts."""
        entry = self._entries.get(lease)
        if entry is not None and entry.connect_by_s is None:
            entry.connect_by_s = now_s + connect_by_s

    def resize(self, lease: LeaseId, compute_limit_pct: int) -> None:
        """Its shares have another elastic limit; unknown leases are over."""
        entry = self._entries.get(lease)
        if entry is not None:
            shares = tuple(
                replace(share, compute_limit_pct=compute_limit_pct)
                for share in entry.install.shares
            )
            entry.install = replace(entry.install, shares=shares)

    def open(self, lease: str, nonce: str, cap_s: float, now_s: float) -> list[Step]:
        """Bind the lease to the first session that proved itself.

        Raises Refused: CLAIMED for any other, NOT_READY while its shares are not its own, ENDED.
        """
        entry = self.find(lease)
        if entry is None:
            raise Refused(Refusal.ENDED, f"lease {lease} is over")
        if entry.nonce:
            raise Refused(Refusal.CLAIMED, f"lease {lease} is held by another session")
        if entry.phase is not Phase.PLACED:
            raise Refused(Refusal.NOT_READY, f"the shares of {lease} are not free yet")
        entry.phase, entry.nonce, entry.heard_at_s = Phase.OPEN, nonce, now_s
        entry.cap_at_s = now_s + min(cap_s, CAP_S_MAX)
        return [self._step(entry, StepKind.OPENED)]

    def admit_lane(self, lease: str, nonce: str) -> Entry:
        """The entry a lane may work on. Raises Refused: CLAIMED for a foreign session, ENDED."""
        entry = self.find(lease)
        if entry is None or entry.phase is not Phase.OPEN:
            raise Refused(Refusal.ENDED, f"lease {lease} has no open session")
        if entry.nonce != nonce:
            raise Refused(Refusal.CLAIMED, f"lease {lease} is held by another session")
        return entry

    def heard(self, lease: LeaseId, now_s: float) -> None:
        """Its session spoke."""
        if (entry := self._entries.get(lease)) is not None:
            entry.heard_at_s = now_s

    def give_back(self, lease: LeaseId) -> list[Step]:
        """The session stays, the shares go; a deadline lease keeps them. Safe to repeat."""
        entry = self.find(lease)
        if entry is None or entry.phase is not Phase.OPEN or not entry.held_by_session:
            return []
        entry.phase = Phase.RETURNED
        return [self._step(entry, StepKind.RETURNED), self._step(entry, StepKind.KILL)]

    def session_over(self, lease: LeaseId, reason: EndReason, detail: str) -> list[Step]:
        """Its session closed or was lost: so is the lease, unless a deadline holds it."""
        entry = self.find(lease)
        if entry is None or not entry.nonce:
            return []
        if entry.held_by_session:
            return self.end(lease, reason, detail)
        unbound = self._step(entry, StepKind.UNBOUND, reason, detail)
        entry.phase, entry.nonce = Phase.PLACED, ""
        entry.cap_at_s = entry.heard_at_s = None
        return [unbound]

    def end(
        self, lease: LeaseId, reason: EndReason, detail: str = "", *, reported: bool = True
    ) -> list[Step]:
        """The lease is over; nothing opens it again. Safe to repeat."""
        entry = self.find(lease)
        if entry is None:
            return []
        dying = entry.phase is Phase.RETURNED  # and told to: who kills it calls `gone`, once
        entry.phase = Phase.CLOSING
        closed = self._step(entry, StepKind.CLOSED, reason, detail, reported=reported)
        self._remember(closed)
        steps = [closed]
        if not entry.occupying:
            del self._entries[lease]
            steps.append(self._step(entry, StepKind.CUT))
        elif not dying:
            steps.append(self._step(entry, StepKind.KILL))
        return steps

    def gone(self, lease: LeaseId) -> list[Step]:
        """No process of it is left and its memory is back; what waited may fit now."""
        entry = self._entries.get(lease)
        if entry is None or not entry.occupying:
            return []
        assert entry.phase in (Phase.RETURNED, Phase.CLOSING), "only what was killed is gone"
        entry.occupying = entry.stuck = False
        if entry.phase is Phase.CLOSING:
            del self._entries[lease]
        return [self._step(entry, StepKind.CUT), *self._place()]

    def devices_of(self, lease: LeaseId, kind: DeviceKind | None = None) -> tuple[DeviceId, ...]:
        """The devices, of one kind, of a lease that is here, over or not."""
        entry = self._entries.get(lease)
        shares = () if entry is None else entry.install.shares
        return tuple(share.device for share in shares if kind in (None, share.kind))

    def stuck(self, lease: LeaseId, detail: str) -> list[Step]:
        """Its worker cannot be killed: what waits for its shares waits for nothing, and ends."""
        entry = self._entries.get(lease)
        if entry is None or not entry.occupying:
            return []
        entry.stuck = True
        waiting = [other for other in self if other.phase is Phase.QUEUED]
        steps: list[Step] = []
        for other in waiting:
            if not self._fits_beside_stuck(other):
                steps += self.end(other.lease, EndReason.DEVICE_BAD, detail)
        return [*steps, *self._place()]  # what waited behind those that ended may fit

    def expire(self, now_s: float) -> list[Step]:
        """End everything whose own deadline has passed. Called before anything is served."""
        steps: list[Step] = []
        for entry in list(self._entries.values()):
            while (deadline := self._deadline(entry)) is not None and deadline[0] <= now_s:
                _, reason, detail = deadline
                over = self.session_over if reason in _OF_SESSIONS else self.end
                steps += over(entry.lease, reason, detail)
        return steps

    def next_deadline_s(self) -> float | None:
        """When `expire` will next have work."""
        deadlines = (self._deadline(entry) for entry in self._entries.values())
        return min((deadline[0] for deadline in deadlines if deadline is not None), default=None)

    def full_state(self, installs: tuple[Install, ...], now_s: float) -> list[Step]:
        """The scheduler's truth: end what is not in it, then install what is new."""
        known = {install.lease for install in installs}
        steps: list[Step] = []
        for lease in [entry.lease for entry in self if entry.lease not in known]:
            steps += self.end(lease, EndReason.REVOKED, "not in the full state", reported=False)
        for install in sorted(installs, key=lambda one: one.fence):
            steps += self.install(install, now_s)
        return steps

    def _deadline(self, entry: Entry) -> tuple[float, EndReason, str] | None:
        if entry.phase is Phase.CLOSING:
            return None
        found: list[tuple[float, EndReason, str]] = []
        if entry.ends_at_s is not None:
            found.append((entry.ends_at_s, EndReason.EXPIRED, "its length is over"))
        if entry.cap_at_s is not None:
            found.append((entry.cap_at_s, EndReason.CAP, "the session's longest time is over"))
        if entry.heard_at_s is not None:
            silent = f"silent for {self._silence_s:g} s"
            found.append((entry.heard_at_s + self._silence_s, EndReason.SESSION_LOST, silent))
        elif entry.connect_by_s is not None and entry.held_by_session:
            found.append((entry.connect_by_s, EndReason.NOT_STARTED, "no session came in time"))
        return min(found, default=None, key=lambda one: one[0])

    def _place(self) -> list[Step]:
        """Give shares to what waits, oldest fence first; nothing overtakes on the same device."""
        steps: list[Step] = []
        blocked: set[DeviceId] = set()
        waiting = [entry for entry in self if entry.phase is Phase.QUEUED]
        for entry in sorted(waiting, key=lambda one: one.install.fence):
            devices = {share.device for share in entry.install.shares}
            if blocked.isdisjoint(devices) and self._fits(entry, self._holders()):
                entry.phase, entry.occupying = Phase.PLACED, True
                steps.append(self._step(entry, StepKind.PLACED))
            else:
                blocked |= devices
        return steps

    def _holders(self) -> list[Entry]:
        return [entry for entry in self if entry.occupying]

    def _fits_beside_stuck(self, entry: Entry) -> bool:
        """True when it will fit at last: once all are gone that ever go."""
        return self._fits(entry, [other for other in self._holders() if other.stuck])

    def _fits(self, entry: Entry, holders: list[Entry]) -> bool:
        held = [share for holder in holders for share in holder.install.shares]
        return all(self._share_fits(share, held) for share in entry.install.shares)

    def _share_fits(self, share: Share, all_held: list[Share]) -> bool:
        held = [other for other in all_held if other.device == share.device]
        if held and (share.exclusive or any(other.exclusive for other in held)):
            return False
        memory_mib = share.memory_mib + sum(other.memory_mib for other in held)
        compute = share.compute_guarantee_pct + sum(o.compute_guarantee_pct for o in held)
        return memory_mib <= self._memory_mib.get(share.device, 0) and compute <= 100

    def _remember(self, closed: Step) -> None:
        self._ended[closed.lease] = closed
        while len(self._ended) > _REMEMBERED_MAX:
            self._ended.popitem(last=False)

    def _step(
        self,
        entry: Entry,
        kind: StepKind,
        reason: EndReason | None = None,
        detail: str = "",
        *,
        reported: bool = True,
    ) -> Step:
        return Step(
            kind=kind,
            lease=entry.lease,
            fence=entry.install.fence,
            shares=entry.install.shares,
            nonce=entry.nonce,
            reason=reason,
            detail=detail,
            reported=reported,
        )
