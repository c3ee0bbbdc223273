"""Hosts, devices and live leases: what is lent, to whom, and what each device reports. Pure.

Leases are current to the moment, because each change is an event; reports of hosts (use, warm
workers) are as old as the last page of the inventory that held them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from corekit.errors import AppError, ErrorCode
from corekit.values import Value, replace
from gpu_scheduler.data_names import offers_text
from gpu_scheduler.model import Health, HostState, Lease, Share
from gpu_scheduler.protocol.answers import DeviceView, HostView
from orchgpu.web.model.pages import Page, SortedKeys, search

#: Hosts that one request looks at while it searches: each has several devices.
HOSTS_SCANNED_MAX = 1_000
#: Drained hosts and devices that are named.
DRAINED_MAX = 200


class LentShare(Value):
    """A part of one device that a lease has."""

    lease: str
    attempt: str
    job: str | None
    tenant: str
    state: str
    memory_mib: int
    compute_pct: int | float
    exclusive: bool
    ends_s: float | None  #: wall clock, at the latest; None = no stated length


class WarmWorker(Value):
    """A workload that stays loaded without a lease."""

    workload: str  #: the published key: a hash
    tenant: str | None
    memory_mib: int


class DeviceEntry(Value):
    """One device as the page shows it."""

    device: str
    index: int
    model: str
    kind: str
    state: str  #: idle, busy, draining, drained, suspect, bad or lost
    health: str
    symptoms: tuple[str, ...]
    detail: str
    drained: bool
    memory_mib: int
    memory_used_mib: int  #: lent
    compute_pct: int | float  #: of which leases may use parts
    compute_used_pct: int | float  #: lent
    utilisation_pct: int | None
    temperature_c: int | None
    power_w: int | None
    leases: tuple[LentShare, ...]
    residents: tuple[WarmWorker, ...]


class HostEntry(Value):
    """One host with its devices as the page shows it."""

    host: str
    state: str  #: UP, STALE, LOST, DRAINED, or DRAINING while leases continue there
    address: str | None
    last_seen_s: float  #: wall clock
    draining: str | None  #: the reason of a drain of its own
    offers: str  #: its data sets and programs, which requests may name; "" without any
    devices: tuple[DeviceEntry, ...]


class HostSummary(Value):
    """One host in a few figures."""

    host: str
    state: str
    devices: int
    busy: int
    states: Mapping[str, int]
    memory_used_ratio: float
    compute_used_ratio: float
    utilisation_ratio: float | None  #: of the devices that report it


class PoolEntry(Value):
    """One pool of hosts that come and go, as the page shows it."""

    pool: str
    model: str
    hosts: int
    states: Mapping[str, int]
    size: int
    min: int
    max: int
    usd_per_h: float
    spot: bool
    start_s: float  #: from the start of a host to its registration
    expected_s: float | None  #: wall clock: the next host; None = none comes
    closed: str


class FleetQuery(Value):
    """The conditions of a list of hosts."""

    host: str | None = None
    state: str | None = None  #: of the host, or of one of its devices
    text: str = ""  #: in the host's name, or in the model of one of its devices
    limit: int = 50
    after: str | None = None


class Fleet:
    """All hosts by name, with their devices, and all live leases."""

    def __init__(self) -> None:
        self._hosts: dict[str, HostView] = {}
        self._seen_s: dict[str, float] = {}  #: host → wall clock of its last message
        self._names: SortedKeys[str] = SortedKeys()
        self._leases: dict[str, Lease] = {}
        self._ends_s: dict[str, float] = {}
        self._on_device: dict[str, dict[str, Share]] = {}  #: device → lease → share
        self._host_of: dict[str, str] = {}  #: device → host
        self._counts: Counter[str] = Counter()

    # ------------------------------------------------------------------ changes

    def put_host(self, view: HostView, now_s: float) -> tuple[str, ...]:
        """Add or replace a host; returns the devices of which something visible changed."""
        old = self._hosts.get(view.host)
        self._seen_s[view.host] = now_s - view.silent_s
        if old is None:
            self._names.add(view.host)
        else:
            self._count(old, -1)
        self._hosts[view.host] = view
        self._count(view, 1)
        before = {} if old is None else {one.device.id: one for one in old.devices}
        self._host_of.update((one.device.id, view.host) for one in view.devices)
        changed = [one.device.id for one in view.devices if before.pop(one.device.id, None) != one]
        if old is None or _standing(old) != _standing(view):
            changed = [one.device.id for one in view.devices]
        self._leave(before, view.host)
        return (*changed, *before)

    def forget_host(self, host: str) -> bool:
        """Remove a host; False: there was none."""
        old = self._hosts.pop(host, None)
        if old is None:
            return False
        self._count(old, -1)
        self._names.remove(host)
        del self._seen_s[host]
        self._leave((one.device.id for one in old.devices), host)
        return True

    def _leave(self, devices: Iterable[str], host: str) -> None:
        """Forget where devices were, unless another host has them now."""
        for device in devices:
            if self._host_of.get(device) == host:
                del self._host_of[device]

    def put_lease(self, lease: Lease, ends_s: float | None) -> bool:
        """Add or replace a live lease; False: nothing about it changed."""
        if ends_s is not None:
            self._ends_s[lease.id] = ends_s
        if self._leases.get(lease.id) == lease:
            return False
        self.end_lease(lease.id)
        self._leases[lease.id] = lease
        if ends_s is not None:
            self._ends_s[lease.id] = ends_s
        for share in () if lease.after else lease.shares:
            self._lend(share, lease.id, lent=True)
        return True

    def end_lease(self, lease: str) -> Lease | None:
        """Remove a lease; None: there was none."""
        self._ends_s.pop(lease, None)
        old = self._leases.pop(lease, None)
        for share in () if old is None or old.after else old.shares:
            self._lend(share, lease, lent=False)
        return old

    # ------------------------------------------------------------------ views

    @property
    def leases(self) -> Mapping[str, Lease]:
        return self._leases

    def host_names(self) -> Iterator[str]:
        return iter(self._names)

    def target_of(self, name: str) -> tuple[str, str | None]:
        """The host of that name, or the host and id of a device, given as id or HOST/INDEX.

        Raises NOT_FOUND.
        """
        if name in self._hosts:
            return name, None
        if (host := self._host_of.get(name)) is not None:
            return host, name
        host, _, index = name.rpartition("/")
        view = self._hosts.get(host)
        for one in () if view is None else view.devices:
            if str(one.device.index) == index:
                return host, one.device.id
        raise AppError(ErrorCode.NOT_FOUND, f"there is no host or device {name!r:.80}")

    def drained(self) -> list[str]:
        """The first hosts and devices that an operator drained."""
        found: list[str] = []
        for view in self._hosts.values():
            if view.state is HostState.DRAINED:
                found.append(view.host)
            found += (one.device.id for one in view.devices if one.drained)
            if len(found) >= DRAINED_MAX:
                break
        return sorted(found[:DRAINED_MAX])

    def counts(self) -> dict[str, int]:
        """Sums over all hosts and devices: `hosts`, `devices`, `device_<state>`, `memory_mib` …"""
        return {name: count for name, count in sorted(self._counts.items()) if count}

    def page(self, query: FleetQuery) -> Page:
        """Hosts by name, with their devices."""
        return self._page(query, self.host)

    def summaries(self, query: FleetQuery) -> Page:
        """Hosts by name, in a few figures each."""
        return self._page(query, lambda name: self._summary(self._hosts[name]))

    def _page(self, query: FleetQuery, shown: Callable[[str], object]) -> Page:
        found, more = search(
            iter((query.host,)) if query.host is not None else self._names.after(query.after),
            query.limit,
            lambda name: self._matching(query, name),
            scanned_max=HOSTS_SCANNED_MAX,
        )
        is_all = query.host is None and query.state is None and not query.text
        total = len(self._names) if is_all else None
        return Page(items=tuple(shown(one) for one in found), next=more, total=total)

    def host(self, name: str) -> HostEntry:
        """One host. Raises NOT_FOUND."""
        view = self._hosts.get(name)
        if view is None:
            raise AppError(ErrorCode.NOT_FOUND, f"there is no host {name!r:.80}")
        return HostEntry(
            host=view.host,
            state=self._host_state(view),
            address=view.gateway,
            last_seen_s=self._seen_s[name],
            draining=None if view.draining is None else view.draining.reason,
            offers=offers_text(view.data, view.programs),
            devices=tuple(self._device(view, one) for one in view.devices),
        )

    def device(self, host: str, device: str) -> DeviceEntry | None:
        """One device; None where it left the inventory."""
        view = self._hosts.get(host)
        found = () if view is None else view.devices
        one = next((one for one in found if one.device.id == device), None)
        return None if view is None or one is None else self._device(view, one)

    def _matching(self, query: FleetQuery, name: str) -> str | None:
        view = self._hosts.get(name)
        if view is None:
            return None
        if query.state is None and not query.text:
            return name
        states = {view.state.value, *(self._state(view, one) for one in view.devices)}
        if "draining" in states:
            states.add("drained")  # a condition of lists: closed to new leases
        text = query.text.lower()
        names = (view.host, *(one.device.model for one in view.devices))
        fits = query.state is None or query.state in states
        return name if fits and any(text in one.lower() for one in names) else None

    def _device(self, host: HostView, view: DeviceView) -> DeviceEntry:
        device, usage, lent = view.device, view.usage, self._shares(view.device.id)
        return DeviceEntry(
            device=device.id,
            index=device.index,
            model=device.model,
            kind=device.kind.value,
            state=self._state(host, view),
            health=device.health.value,
            symptoms=tuple(one.value for one in device.symptoms),
            detail=device.detail,
            drained=view.drained,
            memory_mib=device.memory_mib,
            memory_used_mib=_memory_mib(lent.values(), device.memory_mib),
            compute_pct=100,
            compute_used_pct=_compute_pct(lent.values()),
            utilisation_pct=None if usage is None else usage.utilisation_pct,
            temperature_c=None if usage is None else usage.temperature_c,
            power_w=None if usage is None else usage.power_w,
            leases=tuple(self._lent(lease, share) for lease, share in lent.items()),
            residents=tuple(
                WarmWorker(workload=one.workload, tenant=None, memory_mib=one.memory_mib)
                for one in view.residents
            ),
        )

    def _lent(self, lease: str, share: Share) -> LentShare:
        found = self._leases[lease]
        return LentShare(
            lease=found.id,
            attempt=found.attempt,
            job=found.holder,
            tenant=found.tenant,
            state=found.state.value,
            memory_mib=share.memory_mib,
            compute_pct=100 if share.exclusive else share.compute_guarantee_pct,
            exclusive=share.exclusive,
            ends_s=self._ends_s.get(lease),
        )

    def _summary(self, view: HostView) -> HostSummary:
        figures = self._figures(view, 1)
        used = [one.usage.utilisation_pct for one in view.devices if one.usage is not None]
        devices = len(view.devices)
        states = Counter(self._state(view, one) for one in view.devices)
        return HostSummary(
            host=view.host,
            state=self._host_state(view),
            devices=devices,
            busy=figures["busy"],
            states=dict(sorted(states.items())),
            memory_used_ratio=_ratio(figures["memory_used_mib"], figures["memory_mib"]),
            compute_used_ratio=_ratio(figures["compute_used_permille"], 1000 * devices),
            utilisation_ratio=sum(used) / len(used) / 100 if used else None,
        )

    # ------------------------------------------------------------------ counts

    def _count(self, view: HostView, sign: int) -> None:
        self._counts.update(self._figures(view, sign))

    def _lend(self, share: Share, lease: str, *, lent: bool) -> None:
        """Note that a lease has this share, or no longer; the counts of the host follow."""
        view = self._hosts.get(share.host)
        if view is not None:
            self._count(view, -1)
        shares = self._on_device.setdefault(share.device, {})
        if lent:
            shares[lease] = share
        else:
            shares.pop(lease, None)
        if not shares:
            del self._on_device[share.device]
        if view is not None:
            self._count(view, 1)

    def _figures(self, view: HostView, sign: int) -> Counter[str]:
        found = Counter({"hosts": sign, f"host_{view.state.value}": sign})
        for one in view.devices:
            found["devices"] += sign
            found[f"device_{self._state(view, one)}"] += sign
            shares = self._shares(one.device.id)
            found["busy"] += sign * bool(shares)
            found["memory_mib"] += sign * one.device.memory_mib
            used_mib = _memory_mib(shares.values(), one.device.memory_mib)
            found["memory_used_mib"] += sign * used_mib
            found["compute_used_permille"] += sign * round(10 * _compute_pct(shares.values()))
            if one.usage is not None:
                found["measured"] += sign
                found["utilisation_pct"] += sign * one.usage.utilisation_pct
        return found

    def _shares(self, device: str) -> Mapping[str, Share]:
        return self._on_device.get(device, {})

    def _state(self, host: HostView, view: DeviceView) -> str:
        if host.state in (HostState.LOST, HostState.STALE):
            return "lost"
        if view.device.health is not Health.OK:
            return view.device.health.value.lower()
        lent = bool(self._shares(view.device.id))
        if view.drained or host.state is HostState.DRAINED:
            return "draining" if lent else "drained"
        return "busy" if lent else "idle"

    def _host_state(self, view: HostView) -> str:
        lent = any(self._shares(one.device.id) for one in view.devices)
        return "DRAINING" if view.state is HostState.DRAINED and lent else view.state.value


def _standing(view: HostView) -> HostView:
    """The host without its devices and without what changes all the time."""
    return replace(view, devices=(), silent_s=0.0, forgotten_in_s=None)


def _memory_mib(shares: Iterable[Share], whole_mib: int) -> int:
    return min(whole_mib, sum(share.memory_mib for share in shares))


def _compute_pct(shares: Iterable[Share]) -> int | float:
    lent = sum(100 if share.exclusive else share.compute_guarantee_pct for share in shares)
    return min(100, lent)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
