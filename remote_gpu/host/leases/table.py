"""The leases installed on one host, as a pure table: calls with the time return steps to take.

    QUEUED ──fits──▶ PLACED ──session──▶ OPEN ──give back──▶ RETURNED
       └───────────────┴──────────────────┴────────────────────┴──end──▶ CLOSING ──gone──▶ forgotten

A lease occupies its shares from PLACED until its worker is gone, whatever happens to it. That alone
decides whether the next lease fits, so no share is double-booked, even when the scheduler has
meanwhile granted it again.

A lease granted ahead stays QUEUED, whatever is free: its shares are booked by a later install. Its
booking may be taken back until its first session opens.

A lease is held by its session and ends with it; under `LeaseLifetime.DEADLINE` sessions follow
each other, and only the deadline ends the lease.

Warm workers (`warm/table.py`) occupy memory beside the leases. A lease that needs it, or whose
install names some of them, is placed when their processes have ended.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from corekit.ids import DeviceId, LeaseId
from corekit.values import replace
from gpu_scheduler.model import EndReason, LeaseLifetime, LeaseState, Share
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.leases.data_here import DataHere
from remote_gpu.host.leases.entry import InstalledLease as InstalledLease
from remote_gpu.host.leases.entry import LeasePhase as LeasePhase
from remote_gpu.host.leases.fit import all_fit, left_mib
from remote_gpu.host.leases.steps import LeaseStep, LeaseStepKind
from remote_gpu.host.warm.ahead import LoadsAhead
from remote_gpu.host.warm.floors import WarmFloors
from remote_gpu.host.warm.table import WarmTable, WarmWorker
from remote_gpu.wire.errors import Refusal, Refused

#: Tombstones of ended leases: refused as ENDED, not as NOT_INSTALLED, and not reopened.
TOMBSTONES_MAX = 10_000
#: Ends of a session, which a deadline lease outlives.
_SESSION_REASONS = (EndReason.SESSION_LOST, EndReason.CAP)
#: Ends after which the worker of a lease may stay warm.
_ORDERLY = (EndReason.DONE, EndReason.RELEASED)
#: A cap above this is a mistake: a Lambda function runs for at most 900 s.
CAP_S_MAX = 86_400.0


class LeaseTable:
    """The leases of one host. `now_s` is monotonic."""

    def __init__(
        self,
        memory_mib: Mapping[DeviceId, int],
        silence_s: float,
        tombstones_max: int = TOMBSTONES_MAX,
    ) -> None:
        self.memory_mib = memory_mib  #: of each device of this host
        self._silence_s = silence_s
        self._tombstones_max = tombstones_max
        self.data = DataHere()
        self.warm = WarmTable()
        self.loads = LoadsAhead(self.warm)
        self.floors = WarmFloors(self.warm, self.loads.learned)
        self._entries: dict[LeaseId, InstalledLease] = {}
        self._tombstones: OrderedDict[LeaseId, LeaseStep] = OrderedDict()

    def __iter__(self) -> Iterator[InstalledLease]:
        return iter(self._entries.values())

    def lend(self, memory_mib: Mapping[DeviceId, int]) -> None:
        """Set the devices and their memory; leases that occupy others keep them."""
        self.memory_mib = memory_mib

    def find(self, lease: str) -> InstalledLease | None:
        """The entry of a lease that is installed and not over."""
        entry = self._entries.get(LeaseId(lease))
        return None if entry is None or entry.phase is LeasePhase.CLOSING else entry

    def knows(self, lease: str) -> bool:
        """True when the lease is or was installed; any other lease's install may be on its way."""
        return lease in self._entries or lease in self._tombstones

    def install_of(self, lease: str, fence: int) -> Install:
        """The install whose secret a client must prove, decided now: a lease that has just ended is
        refused. Raises Refused: DENIED for another fence, ENDED, NOT_INSTALLED."""
        if (entry := self.find(lease)) is None:
            if (ended := self._ended(lease)) is not None:
                raise ended
            raise Refused(Refusal.NOT_INSTALLED, f"lease {lease} is unknown on this host")
        if entry.install.fence != fence:
            raise Refused(Refusal.DENIED, f"lease {lease} has another fence")
        return entry.install

    def install(self, install: Install, now_s: float) -> list[LeaseStep]:
        """Install a lease; or book one that was granted ahead, or take the booking back, or change
        the remaining time of an installed one. None is reopened."""
        if install.lease in self._tombstones:
            # the report of its end was lost: repeat it
            return [dataclasses.replace(self._tombstones[install.lease], reported=True)]
        entry, conflict = self._entries.get(install.lease), list[LeaseStep]()
        if install.ahead:
            return self._ahead(install, entry)
        is_booked = entry is None or entry.install.ahead  # now
        if entry is None:
            entry = self._entries[install.lease] = InstalledLease(install=install)
            if install.state is LeaseState.ENDING:
                entry.phase = LeasePhase.RETURNED  # the lease occupies no shares any more
            else:
                conflict = self._conflict(entry)
        elif is_booked:
            entry.install, entry.booked_at_s = install, now_s
        if is_booked and entry.waits and not self._fits_beside_stuck(entry):
            # the lease would block all later leases permanently
            detail = "its shares exceed the part of the device that this host can lend"
            return self.end(install.lease, EndReason.DEVICE_BAD, detail)
        if install.hold is LeaseLifetime.DEADLINE and install.cap_s is not None:
            entry.ends_at_s = now_s + install.cap_s
        if install.connect_by_s is not None:
            self.staged(install.lease, install.connect_by_s, now_s)
        return [*conflict, *self._place()]

    def _ahead(self, install: Install, entry: InstalledLease | None) -> list[LeaseStep]:
        """Install a lease ahead, or take its booking back; one with a session keeps its shares."""
        if entry is None:
            self._entries[install.lease] = InstalledLease(install=install)
            return self._place()
        movable = (LeasePhase.QUEUED, LeasePhase.PLACED)
        if entry.phase not in movable or not entry.held_by_session:
            return []  # a session has opened, or may have before
        entry.install, entry.connect_by_s, entry.booked_at_s = install, None, None
        if entry.phase is LeasePhase.QUEUED:
            return self._place()  # leases behind it may fit now
        entry.phase, entry.occupying = LeasePhase.QUEUED, False
        worker, entry.warm = entry.warm, None
        if worker is not None:
            self.warm.keep(worker)
        names = () if worker is None else (worker.id,)
        return [self._step(entry, LeaseStepKind.UNPLACED, warm=names), *self._place()]

    def _conflict(self, entry: InstalledLease) -> list[LeaseStep]:
        """A step for a lease that does not fit beside others that are not over; it waits.

        The scheduler ends a lease in the same ordered channel before it grants the shares again.
        """
        over = (LeasePhase.RETURNED, LeasePhase.CLOSING)
        live = [
            other
            for other in self
            if other is not entry and other.phase not in over and not other.install.ahead
        ]
        detail = f"beside {', '.join(other.lease for other in live)}"
        if self._fits(entry, live):
            return []
        return [self._step(entry, LeaseStepKind.CONFLICT, detail=detail)]

    def staged(self, lease: LeaseId, connect_by_s: float, now_s: float) -> None:
        """Set the time by which the first session must open; only the first call counts, and none
        before the shares are booked."""
        entry = self._entries.get(lease)
        if entry is not None and entry.connect_by_s is None and not entry.install.ahead:
            entry.connect_by_s = now_s + connect_by_s

    def resize(self, lease: LeaseId, compute_limit_pct: float) -> None:
        """Set another elastic limit of its shares; an unknown lease has ended."""
        entry = self._entries.get(lease)
        if entry is not None:
            shares = tuple(
                replace(share, compute_limit_pct=compute_limit_pct)
                for share in entry.install.shares
            )
            entry.install = replace(entry.install, shares=shares)

    def _ended(self, lease: str) -> Refused | None:
        """The refusal of a lease that is over: its message begins with the reason."""
        if (end := self._tombstones.get(LeaseId(lease))) is None:
            return None
        return Refused(Refusal.ENDED, f"{end.reason}: lease {lease} ended here")

    def open(
        self,
        lease: str,
        nonce: str,
        cap_s: float,
        now_s: float,
        waited_s: float | None = None,
        new_sandbox: bool | None = None,
    ) -> list[LeaseStep]:
        """Bind the lease to the first session that is authenticated. Raises Refused: CLAIMED for
        any other session, NOT_READY before it occupies its shares, ENDED."""
        entry = self.find(lease)
        if entry is None:
            raise self._ended(lease) or Refused(Refusal.ENDED, f"lease {lease} is over")
        if entry.nonce:
            raise Refused(Refusal.CLAIMED, f"lease {lease} is held by another session")
        if entry.phase is not LeasePhase.PLACED:
            raise Refused(Refusal.NOT_READY, f"the shares of lease {lease} are not free yet")
        entry.phase, entry.nonce, entry.heard_at_s = LeasePhase.OPEN, nonce, now_s
        entry.cap_at_s = now_s + min(cap_s, CAP_S_MAX)
        opened = LeaseStepKind.OPENED
        return [self._step(entry, opened, waited_s=waited_s, new_sandbox=new_sandbox)]

    def admit_lane(self, lease: str, nonce: str) -> InstalledLease:
        """The entry of a lane's lease. Raises Refused: CLAIMED for a foreign session, ENDED."""
        entry = self.find(lease)
        if entry is None or entry.phase is not LeasePhase.OPEN:
            raise Refused(Refusal.ENDED, f"lease {lease} has no open session")
        if entry.nonce != nonce:
            raise Refused(Refusal.CLAIMED, f"lease {lease} is held by another session")
        return entry

    def heard(self, lease: LeaseId, now_s: float) -> None:
        """Record a message of its session."""
        if (entry := self._entries.get(lease)) is not None:
            entry.heard_at_s = now_s

    def give_back(self, lease: LeaseId, succeeded: bool | None = None) -> list[LeaseStep]:
        """Give the shares back and keep the session; a deadline lease keeps both. Idempotent."""
        entry = self.find(lease)
        if entry is None or entry.phase is not LeasePhase.OPEN or not entry.held_by_session:
            return []
        entry.phase = LeasePhase.RETURNED
        kill = self._kill(entry, EndReason.DONE)
        ends = {"leaves_worker": kill.keeps is not None, "succeeded": succeeded}
        return [self._step(entry, LeaseStepKind.RETURNED, **ends), kill]

    def session_over(
        self, lease: LeaseId, reason: EndReason, detail: str, succeeded: bool | None = None
    ) -> list[LeaseStep]:
        """End the session that closed or was lost, and the lease unless a deadline holds it."""
        entry = self.find(lease)
        if entry is None or not entry.nonce:
            return []
        if entry.held_by_session:
            return self.end(lease, reason, detail, succeeded=succeeded)
        unbound = self._step(entry, LeaseStepKind.UNBOUND, reason=reason, detail=detail)
        entry.phase, entry.nonce = LeasePhase.PLACED, ""
        entry.cap_at_s = entry.heard_at_s = None
        return [unbound]

    def end(
        self,
        lease: LeaseId,
        reason: EndReason,
        detail: str = "",
        *,
        reported: bool = True,
        succeeded: bool | None = None,
    ) -> list[LeaseStep]:
        """End a lease for good. Idempotent."""
        entry = self.find(lease)
        if entry is None:
            return []
        killed = entry.phase is LeasePhase.RETURNED  # its KILL step leads to one call of `gone`
        entry.phase = LeasePhase.CLOSING
        kills = entry.occupying and not killed
        leaves = kills and self._kill(entry, reason).keeps is not None
        about = {"reason": reason, "detail": detail, "reported": reported, "succeeded": succeeded}
        closed = self._step(entry, LeaseStepKind.CLOSED, **about)
        self._tombstones[lease] = closed
        while len(self._tombstones) > self._tombstones_max:
            self._tombstones.popitem(last=False)
        steps = [dataclasses.replace(closed, leaves_worker=leaves)]
        if not entry.occupying:
            del self._entries[lease]
            steps.append(self._step(entry, LeaseStepKind.CUT))
            steps += self.evict_warm(self.loads.ended(lease), f"lease {lease} is over")
        elif kills:
            steps.append(self._kill(entry, reason))
        return steps

    def gone(self, lease: LeaseId) -> list[LeaseStep]:
        """Free the shares of a lease without processes or memory; waiting ones may fit now."""
        entry = self._entries.get(lease)
        if entry is None or not entry.occupying:
            return []
        assert entry.phase in (LeasePhase.RETURNED, LeasePhase.CLOSING), "KILL comes before gone"
        entry.occupying = entry.stuck = False
        if entry.phase is LeasePhase.CLOSING:
            del self._entries[lease]
            self.loads.ended(lease)
        return [self._step(entry, LeaseStepKind.CUT), *self._place()]

    def adopt(self, lease: LeaseId, *, program: bool = False) -> str:
        """The warm worker that a lease gets for its lane, or `program` for its run; or ""."""
        entry = self.find(lease)
        if entry is None or not entry.occupying:
            return ""
        found = self.warm.candidate(entry.install, self._promised(entry), program=program)
        return "" if found is None else self.warm.take(found.id).id

    def _promised(self, entry: InstalledLease) -> list[str]:
        others = (one for one in self if one.waits and one is not entry)
        return [name for other in others for name in other.install.residents]

    def used_mib(self, device: DeviceId) -> int:
        """Memory of the shares on a device whose leases are not over."""
        using = (entry for entry in self if entry.phase in (LeasePhase.PLACED, LeasePhase.OPEN))
        shares = (share for entry in using for share in entry.install.shares)
        return sum(share.memory_mib for share in shares if share.device == device)

    def data_here(self, tenant: str, key: str) -> list[LeaseStep]:
        """Leases of the tenant can read a data set from now on; waiting ones may be placed."""
        self.data.show(tenant, key)
        return self._place()

    def warm_gone(self, name: str) -> list[LeaseStep]:
        """Forget a warm worker whose process has ended; waiting leases may fit now."""
        return self._place() if self.warm.gone(name) else []

    def warm_kept(self, worker: WarmWorker, now_s: float) -> list[LeaseStep]:
        """Add a warm worker; evict those beyond the limits."""
        self.loads.learned.kept(worker)
        self.warm.keep(worker)
        return self.limit_warm(now_s)

    def warm_loaded(self, worker: WarmWorker, lease: LeaseId, now_s: float) -> list[LeaseStep]:
        """A worker has loaded for a lease: it waits for it, or the lease has it already."""
        self.loads.learned.kept(worker)
        if self.warm.loaded(worker):
            return [*self.limit_warm(now_s), *self._place()]
        entry = self._entries.get(lease)
        if entry is not None and entry.warm is not None and entry.warm.id == worker.id:
            entry.warm = worker
        return []

    def warm_lost(self, lease: LeaseId) -> None:
        """The worker that a lease got has not loaded; it begins with a new one."""
        if (entry := self._entries.get(lease)) is not None:
            entry.warm = None

    def limit_warm(self, now_s: float) -> list[LeaseStep]:
        """Evict the warm workers that are beyond the limits."""
        queued = self._queued() if self.warm.limits.loads_max else []
        awaited = self.loads.awaited(queued).values()
        names = self.warm.beyond_limits(self.memory_mib, now_s, awaited)
        self.floors.displaced(names, now_s)
        return self.evict_warm(names, "beyond the limits of warm workers")

    def evict_warm(self, names: Iterable[str], detail: str) -> list[LeaseStep]:
        """Evict warm workers for no lease."""
        found = tuple(worker.id for worker in self.warm.evict(names))
        if not found:
            return []
        evict, none = LeaseStepKind.EVICT, LeaseId("")
        return [LeaseStep(kind=evict, lease=none, fence=0, shares=(), detail=detail, warm=found)]

    def warm_stuck(self, name: str, detail: str) -> list[LeaseStep]:
        """Mark a warm worker that cannot be killed; leases that need its memory end."""
        self.warm.stuck(name)
        return self._end_blocked(detail, name)

    def shares_of(self, lease: LeaseId) -> tuple[Share, ...]:
        """The shares of a lease that occupies or awaits them."""
        entry = self._entries.get(lease)
        return () if entry is None else entry.install.shares

    def stuck(self, lease: LeaseId, detail: str) -> list[LeaseStep]:
        """Mark a lease that cannot be killed; leases that need its shares end."""
        entry = self._entries.get(lease)
        if entry is None or not entry.occupying:
            return []
        entry.stuck = True
        return self._end_blocked(detail)

    def _end_blocked(self, detail: str, named: str = "") -> list[LeaseStep]:
        """End the waiting leases that do not fit beside what is stuck, or await the end of the warm
        worker `named`."""
        waiting = [other for other in self if other.waits]
        steps: list[LeaseStep] = []
        for other in waiting:
            if named in other.install.evict or not self._fits_beside_stuck(other):
                steps += self.end(other.lease, EndReason.DEVICE_BAD, detail)
        return [*steps, *self._place()]  # leases behind those that ended may fit

    def expire(self, now_s: float) -> list[LeaseStep]:
        """End everything whose deadline has passed; called before any request is served."""
        steps: list[LeaseStep] = []
        for entry in list(self._entries.values()):
            while (deadline := self._deadline(entry)) is not None and deadline[0] <= now_s:
                _, reason, detail = deadline
                over = self.session_over if reason in _SESSION_REASONS else self.end
                steps += over(entry.lease, reason, detail)
        return steps

    def next_deadline_s(self) -> float | None:
        """The next moment at which `expire` has an effect."""
        deadlines = (self._deadline(entry) for entry in self._entries.values())
        return min((deadline[0] for deadline in deadlines if deadline is not None), default=None)

    def full_state(self, installs: tuple[Install, ...], now_s: float) -> list[LeaseStep]:
        """Replace the installed leases: end those not in the list, then install new ones."""
        known = {install.lease for install in installs}
        steps: list[LeaseStep] = []
        for lease in [entry.lease for entry in self if entry.lease not in known]:
            steps += self.end(lease, EndReason.REVOKED, "not in the full state", reported=False)
        for install in sorted(installs, key=lambda install: install.fence):
            steps += self.install(install, now_s)
        return steps

    def _deadline(self, entry: InstalledLease) -> tuple[float, EndReason, str] | None:
        if entry.phase is LeasePhase.CLOSING:
            return None
        found: list[tuple[float, EndReason, str]] = []
        if entry.ends_at_s is not None:
            found.append((entry.ends_at_s, EndReason.EXPIRED, "its time is over"))
        if entry.cap_at_s is not None:
            found.append((entry.cap_at_s, EndReason.CAP, "the session's maximum time is over"))
        if entry.heard_at_s is not None:
            silent = f"no message for {self._silence_s:g} s"
            found.append((entry.heard_at_s + self._silence_s, EndReason.SESSION_LOST, silent))
        elif entry.connect_by_s is not None and entry.held_by_session:
            why = self.data.why_unused(entry.install)
            found.append((entry.connect_by_s, EndReason.NOT_STARTED, why))
        return min(found, default=None, key=lambda deadline: deadline[0])

    def _place(self) -> list[LeaseStep]:
        """Place waiting leases, oldest fence first; none overtakes another on its device, but one
        that lacks data blocks none: the shares of all are booked."""
        steps: list[LeaseStep] = []
        blocked: set[DeviceId] = set()
        waiting = [one for one in self if one.waits and not self.data.lacked(one.install)]
        for entry in sorted(waiting, key=lambda entry: entry.install.fence):
            devices = {share.device for share in entry.install.shares}
            if blocked.isdisjoint(devices) and self._fits(entry, self._holders()):
                steps += self._place_one(entry)
            if entry.phase is LeasePhase.QUEUED:
                blocked |= devices
        return [*steps, *self._load_ahead()]

    def _queued(self) -> list[Install]:
        """The leases without shares in the order of their placement, the booked ones first."""
        queued = (entry.install for entry in self if entry.phase is LeasePhase.QUEUED)
        return sorted(queued, key=lambda install: (install.ahead, install.fence))

    def _load_ahead(self) -> list[LeaseStep]:
        holders = [entry.install for entry in self._holders()]
        queued = [one for one in self._queued() if not self.data.lacked(one)]
        found = self.loads.changes(queued, holders, self.memory_mib)
        steps = self.evict_warm(found.evict, "a worker loads for a lease ahead")
        for worker in found.load:
            assert worker.loads_for is not None
            self.warm.keep(worker)
            entry = self._entries[worker.loads_for]
            steps.append(self._step(entry, LeaseStepKind.LOAD, warm=(worker.id,)))
        return steps

    def _place_one(self, entry: InstalledLease) -> list[LeaseStep]:
        chosen = self.warm.candidate(entry.install, self._promised(entry))
        name = None if chosen is None else chosen.id
        held = [share for one in self._holders() for share in one.install.shares]
        free_mib = left_mib(entry.install.shares, held, self.memory_mib)
        room = self.warm.room(entry.install, free_mib, name)
        if not room.ready:
            evicted = tuple(worker.id for worker in self.warm.evict(room.evict))
            detail = f"lease {entry.lease} needs its memory"
            evict = self._step(entry, LeaseStepKind.EVICT, detail=detail, warm=evicted)
            return [evict][: len(evicted)]
        entry.phase, entry.occupying = LeasePhase.PLACED, True
        if name is None:
            return [self._step(entry, LeaseStepKind.PLACED)]
        entry.warm = self.warm.take(name)
        return [self._step(entry, LeaseStepKind.PLACED, warm=(name,))]

    def _kill(self, entry: InstalledLease, reason: EndReason) -> LeaseStep:
        """The end of the processes of a lease; the worker of a workload may stay."""
        keeps = entry.install.workload is not None and reason in _ORDERLY
        return self._step(entry, LeaseStepKind.KILL, keeps=entry.install if keeps else None)

    def _holders(self) -> list[InstalledLease]:
        return [entry for entry in self if entry.occupying]

    def _fits_beside_stuck(self, entry: InstalledLease) -> bool:
        """True when it fits once all leases and warm workers that are not stuck are gone."""
        stuck_mib = {
            share.device: self.warm.stuck_mib(share.device) for share in entry.install.shares
        }
        return self._fits(entry, [other for other in self._holders() if other.stuck], stuck_mib)

    def _fits(
        self,
        entry: InstalledLease,
        holders: list[InstalledLease],
        used_mib: Mapping[DeviceId, int] | None = None,
    ) -> bool:
        held = (share for holder in holders for share in holder.install.shares)
        return all_fit(entry.install.shares, held, self.memory_mib, used_mib)

    def _step(self, entry: InstalledLease, kind: LeaseStepKind, **fields: Any) -> LeaseStep:
        return LeaseStep(
            kind=kind,
            lease=entry.lease,
            fence=entry.install.fence,
            shares=entry.install.shares,
            nonce=entry.nonce,
            **fields,
        )
