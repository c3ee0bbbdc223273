"""Who may stay connected: pure bookkeeping for a server whose peers say who they are after they
connect.

A connection is a *stranger* until its peer has proved who it is, then a *member* under a name (of a
key, say). Strangers never keep anybody out: when there are too many of one source, or of all, the
oldest one of the source that has the most makes room for the newest. So a flood only pushes out its
own connections, and an honest peer, which proves itself at once, gets in. Members are refused above
their limit, a part of the room being kept for those that the server lives by (`kept`). Bytes that
connections make the server hold are bounded too: above it whoever holds the most goes.

No I/O and no clock: the caller closes what it is told to close, and times the proof.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

#: Source of every peer on this machine: its programs cannot be told apart by their address.
LOOPBACK = "loopback"
#: Descriptors for what is no peer: files, listeners, the loop itself, and a margin.
OWN_DESCRIPTORS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Limits. Members and strangers have room of their own: neither takes the other's."""

    members_max: int  #: of them `kept_max` are kept for members that are `kept`
    kept_max: int
    strangers_max: int
    #: Of one source. Hosts behind one address translation connect within seconds of each other.
    strangers_per_source_max: int
    stranger_bytes_max: int = 16 * 2**20  #: held for all strangers together
    stranger_bytes_per_source_max: int = 4 * 2**20
    member_bytes_max: int = 64 * 2**20  #: held for all members together

    @classmethod
    def of(cls, descriptors: int, connections_max: int) -> Room:
        """For a process that may open so many descriptors: a quarter of its connections strangers,
        a quarter of the members' room kept."""
        connections = max(8, min(connections_max, descriptors - OWN_DESCRIPTORS))
        strangers = max(2, min(1024, connections // 4))
        members = connections - strangers
        return cls(
            members_max=members, kept_max=members // 4, strangers_max=strangers,
            strangers_per_source_max=max(1, min(64, strangers // 2)),
        )  # fmt: skip


@dataclass(slots=True)
class _Entry:
    source: str
    member: bool = False
    kept: bool = False
    held: int = 0  #: bytes


@dataclass(slots=True)
class _Source(Generic[T]):
    strangers: dict[T, None] = field(default_factory=dict)  #: oldest first
    held: int = 0


class Admission(Generic[T]):
    """All connections of a server, each under a token of the caller's."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._entries: dict[T, _Entry] = {}
        self._sources: dict[str, _Source[T]] = {}
        self.strangers = 0
        self.members = 0
        self._kept = 0
        self.stranger_bytes = 0
        self.member_bytes = 0

    def arrived(self, token: T, source: str) -> T | None:
        """A new stranger. Who must go for it (close it, and say `left`); None: nobody."""
        goes = self._in_the_way(source)
        if goes is not None:
            self.left(goes)
        self._entries[token] = _Entry(source)
        self._sources.setdefault(source, _Source()).strangers[token] = None
        self.strangers += 1
        return goes

    def _in_the_way(self, source: str) -> T | None:
        theirs = self._sources.get(source)
        count = 0 if theirs is None else len(theirs.strangers)
        if source != LOOPBACK and count >= self._room.strangers_per_source_max:
            return self._oldest_of(source)
        if self.strangers < self._room.strangers_max:
            return None
        most = max(self._sources, key=lambda name: len(self._sources[name].strangers))
        return self._oldest_of(most)

    def _oldest_of(self, source: str) -> T:
        return next(iter(self._sources[source].strangers))

    def known(self, token: T, *, kept: bool = False) -> bool:
        """It proved who it is. False: there is no room for one more member (close it).

        Idempotent, and True for a connection that has left meanwhile.
        """
        entry = self._entries.get(token)
        if entry is None or entry.member:
            return True
        room = self._room
        others = self.members - self._kept
        if self.members >= room.members_max:
            return False
        if not kept and others >= room.members_max - room.kept_max:
            return False
        self._no_stranger(token, entry)
        entry.member, entry.kept = True, kept
        self.members += 1
        self._kept += kept
        self.member_bytes += entry.held
        return True

    def holds(self, token: T, held: int) -> T | None:
        """So many bytes are held for it now. Who must go for them; None: nobody."""
        entry = self._entries.get(token)
        if entry is None or entry.held == held:
            return None
        more, entry.held = held - entry.held, held
        if entry.member:
            self.member_bytes += more
            if more <= 0 or self.member_bytes <= self._room.member_bytes_max:
                return None
            return self._largest(one for one, known in self._entries.items() if known.member)
        source = self._sources[entry.source]
        source.held += more
        self.stranger_bytes += more
        if more > 0 and source.held > self._room.stranger_bytes_per_source_max:
            return self._largest(source.strangers)
        if more > 0 and self.stranger_bytes > self._room.stranger_bytes_max:
            most = max(self._sources.values(), key=lambda one: one.held)
            return self._largest(most.strangers)
        return None

    def _largest(self, tokens: Iterable[T]) -> T:
        return max(tokens, key=lambda token: self._entries[token].held)

    def left(self, token: T) -> None:
        """Its connection is over; idempotent."""
        entry = self._entries.get(token)
        if entry is None:
            return
        if entry.member:
            self.members -= 1
            self._kept -= entry.kept
            self.member_bytes -= entry.held
        else:
            self._no_stranger(token, entry)
        del self._entries[token]

    def _no_stranger(self, token: T, entry: _Entry) -> None:
        source = self._sources[entry.source]
        del source.strangers[token]
        source.held -= entry.held
        self.strangers -= 1
        self.stranger_bytes -= entry.held
        if not source.strangers:
            del self._sources[entry.source]


def source_of(address: str) -> str:
    """What counts as one source: an IPv4 address, an IPv6 network of 64 bits (one machine may have
    all of it), or this machine, whatever its own address of it is. "" is a Unix socket's peer."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return LOOPBACK
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = ip if mapped is None else mapped
    if ip.is_loopback:
        return LOOPBACK
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))
