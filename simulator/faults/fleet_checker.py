"""Checks of a fleet by the journal's entries and the provider alone, independent of the core's."""

from __future__ import annotations

from collections.abc import Mapping

from corekit.ids import HostId, LeaseId
from gpu_scheduler.model import LeaseState
from gpu_scheduler.protocol import changes as to
from orchgpu.fleet.core.model import Offers

#: Longest time from an edit of the offers until no program acts by those before: a slow step.
EDITED_S = 60.0


class FleetChecker:
    """The live leases of each host, and the offers that are in force."""

    def __init__(self) -> None:
        self._hosts: dict[LeaseId, frozenset[HostId]] = {}
        self._offers: list[tuple[float, Offers]] = []  #: with the time of its edit, oldest first
        self._too_dear_s: float | None = None  #: since when the hosts cost too much

    def note(self, entry: to.Entry) -> None:
        """Apply one entry."""
        for part in entry.parts:
            match part:
                case to.LeaseGranted(lease=lease):
                    self._hosts[lease.id] = frozenset(share.host for share in lease.shares)
                case to.LeaseChanged(lease=name, state=LeaseState.ENDED):
                    self._hosts.pop(name, None)
                case _:
                    pass

    def edited(self, at_s: float, offers: Offers) -> None:
        self._offers.append((at_s, offers))

    def stopped(self, host: str) -> list[str]:
        """A sentence when a fleet stops a host with leases that are not ENDED."""
        leases = [lease for lease, hosts in self._hosts.items() if HostId(host) in hosts]
        return [f"{host} is stopped by a fleet with the leases {leases}"] if leases else []

    def grown(self, at_s: float, group: str, hosts: Mapping[str, int]) -> list[str]:
        """A sentence for a group that was made larger than its offer allows.

        `hosts`: those that are ordered, of each group.
        """
        most = max(
            (
                one.max
                for offers in self._in_force(at_s)
                for one in offers.offers
                if one.at_port == group
            ),
            default=0,
        )
        return [f"{group} is to have {hosts[group]} hosts of {most}"] if hosts[group] > most else []

    def paid(self, at_s: float, hosts: Mapping[str, int], within_s: float) -> list[str]:
        """A sentence when these hosts have cost more than is allowed for so long. Fleets that see
        different moments may order too many; they take them back."""
        usd_per_h = sum(self._price(name) * count for name, count in hosts.items())
        limit = self._offers[-1][1].rules.usd_per_hour_max
        if limit is None or usd_per_h <= limit + 1e-9:
            self._too_dear_s = None
            return []
        self._too_dear_s = at_s if self._too_dear_s is None else self._too_dear_s
        if at_s - self._too_dear_s < within_s:
            return []
        return [f"the hosts {dict(hosts)} cost {usd_per_h} USD/h of {limit} for {within_s:.0f} s"]

    def _in_force(self, at_s: float) -> list[Offers]:
        """The offers of now, and those that a program may still act by."""
        ends_s = [*(since_s for since_s, _ in self._offers[1:]), at_s]
        return [
            offers
            for (_, offers), end_s in zip(self._offers, ends_s, strict=True)
            if end_s >= at_s - EDITED_S
        ]

    def _price(self, group: str) -> float:
        known = {one.at_port: one.usd_per_h for _, offers in self._offers for one in offers.offers}
        return known.get(group, 0.0)
