"""The declared data sets that hosts have, as they publish them. Not durable: live hosts report them
again. No criterion of `fits`: a host that lacks a set fetches it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from corekit.ids import HostId
from gpu_scheduler.data_sets import HELD_MAX, DataSet, HeldData, fetch_s, held_text

_NONE: Mapping[str, int] = {}


class HeldDataSets:
    """Bytes by host and key, and the hosts by key."""

    def __init__(self) -> None:
        self._of: dict[HostId, dict[str, int]] = {}
        self._hosts: dict[str, dict[HostId, None]] = {}
        self._bytes_per_s: dict[HostId, float] = {}

    def change(self, host: HostId, change: HeldData) -> None:
        """Remove sets of a host, then add others. Idempotent, and bounded per host."""
        held = self._of.setdefault(host, {})
        for key in change.removed:
            if held.pop(key, None) is not None:
                self._drop(key, host)
        for one in change.added:
            if one.key in held or len(held) < HELD_MAX:
                held[one.key] = one.bytes
                self._hosts.setdefault(one.key, {})[host] = None
        if change.bytes_per_s is not None:
            self._bytes_per_s[host] = change.bytes_per_s
        if not held:
            del self._of[host]

    def forget(self, host: HostId) -> None:
        """Forget what a host has: it is gone, or its hello names all of it."""
        for key in self._of.pop(host, ()):
            self._drop(key, host)
        self._bytes_per_s.pop(host, None)

    def of(self, host: HostId) -> Mapping[str, int]:
        """The bytes that a host has, by key."""
        return self._of.get(host, _NONE)

    def hosts_with(self, sets: Iterable[DataSet]) -> Iterator[HostId]:
        """The hosts with some of these sets, each once."""
        yield from dict.fromkeys(host for one in sets for host in self._hosts.get(one.key, ()))

    def fetch_s(self, sets: tuple[DataSet, ...], host: HostId) -> float:
        """The seconds until a host would have these sets."""
        return fetch_s(sets, self.of(host), self._bytes_per_s.get(host))

    def text(self, sets: tuple[DataSet, ...], host: HostId) -> str:
        """What a host has of these sets, for people; "" without sets."""
        return held_text(sets, self.of(host)) if sets else ""

    def _drop(self, key: str, host: HostId) -> None:
        hosts = self._hosts[key]
        del hosts[host]
        if not hosts:
            del self._hosts[key]
