"""Admission of connections to a server whose peers authenticate after they connect. Pure.

Unauthenticated and authenticated connections have limits of their own. An unauthenticated one is
never refused: above the limit of its source, or of all, the oldest connection of the source with
the most is evicted. So a flood evicts its own connections, and a peer that authenticates at once
gets in. Authenticated connections are refused above their limit, a part of which is reserved for
peers that the server depends on. Bytes buffered for connections are limited too: above that limit
the connection with the most is evicted.

The caller closes evicted connections, and limits the time until authentication.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from corekit.net.addresses import parse_ip

T = TypeVar("T", bound=Hashable)

#: Source of every peer on this machine: its programs share one address.
LOOPBACK = "loopback"
#: Descriptors for files, listeners and the event loop, with a margin.
OWN_DESCRIPTORS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionLimits:
    """Limits of connections and of the bytes buffered for them."""

    authenticated_max: int  #: `reserved_max` of them for reserved peers only
    reserved_max: int
    unauthenticated_max: int
    #: For one source. Hosts behind one address translation connect within seconds of each other.
    unauthenticated_per_source_max: int
    unauthenticated_bytes_max: int = 16 * 2**20  #: buffered for all of them
    unauthenticated_bytes_per_source_max: int = 4 * 2**20
    authenticated_bytes_max: int = 64 * 2**20  #: buffered for all of them

    @classmethod
    def of(cls, descriptors: int, connections_max: int) -> AdmissionLimits:
        """Limits for a process with so many descriptors: a quarter of the connections may be
        unauthenticated, a quarter of the others is reserved."""
        connections = max(8, min(connections_max, descriptors - OWN_DESCRIPTORS))
        unauthenticated = max(2, min(1024, connections // 4))
        authenticated = connections - unauthenticated
        return cls(
            authenticated_max=authenticated,
            reserved_max=authenticated // 4,
            unauthenticated_max=unauthenticated,
            unauthenticated_per_source_max=max(1, min(64, unauthenticated // 2)),
        )


@dataclass(slots=True)
class _Entry:
    source: str
    authenticated: bool = False
    reserved: bool = False
    held: int = 0  #: bytes


@dataclass(slots=True)
class _Source(Generic[T]):
    unauthenticated: dict[T, None] = field(default_factory=dict)  #: oldest first
    held: int = 0


class Admission(Generic[T]):
    """All connections of a server, each under a token of the caller's."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self._entries: dict[T, _Entry] = {}
        self._sources: dict[str, _Source[T]] = {}
        self.unauthenticated = 0
        self.authenticated = 0
        self._reserved = 0
        self.unauthenticated_bytes = 0
        self.authenticated_bytes = 0

    def connected(self, token: T, source: str) -> T | None:
        """Add an unauthenticated connection; returns the one to evict for it (close it), if any."""
        evicted = self._evicted_for(source)
        if evicted is not None:
            self.disconnected(evicted)
        self._entries[token] = _Entry(source)
        self._sources.setdefault(source, _Source()).unauthenticated[token] = None
        self.unauthenticated += 1
        return evicted

    def _evicted_for(self, source: str) -> T | None:
        theirs = self._sources.get(source)
        count = 0 if theirs is None else len(theirs.unauthenticated)
        if source != LOOPBACK and count >= self._limits.unauthenticated_per_source_max:
            return self._oldest_of(source)
        if self.unauthenticated < self._limits.unauthenticated_max:
            return None
        most = max(self._sources, key=lambda name: len(self._sources[name].unauthenticated))
        return self._oldest_of(most)

    def _oldest_of(self, source: str) -> T:
        return next(iter(self._sources[source].unauthenticated))

    def authenticate(self, token: T, *, reserved: bool = False) -> bool:
        """Count it as authenticated. False: the limit is reached (close it).

        Idempotent, and True for a connection that has ended meanwhile.
        """
        entry = self._entries.get(token)
        if entry is None or entry.authenticated:
            return True
        limits = self._limits
        others = self.authenticated - self._reserved
        if self.authenticated >= limits.authenticated_max:
            return False
        if not reserved and others >= limits.authenticated_max - limits.reserved_max:
            return False
        self._forget_unauthenticated(token, entry)
        entry.authenticated, entry.reserved = True, reserved
        self.authenticated += 1
        self._reserved += reserved
        self.authenticated_bytes += entry.held
        return True

    def buffers(self, token: T, held: int) -> T | None:
        """Set the bytes buffered for it; returns the connection to evict for them, if any."""
        entry = self._entries.get(token)
        if entry is None or entry.held == held:
            return None
        more, entry.held = held - entry.held, held
        if entry.authenticated:
            self.authenticated_bytes += more
            if more <= 0 or self.authenticated_bytes <= self._limits.authenticated_bytes_max:
                return None
            return self._largest(t for t, other in self._entries.items() if other.authenticated)
        source = self._sources[entry.source]
        source.held += more
        self.unauthenticated_bytes += more
        if more > 0 and source.held > self._limits.unauthenticated_bytes_per_source_max:
            return self._largest(source.unauthenticated)
        if more > 0 and self.unauthenticated_bytes > self._limits.unauthenticated_bytes_max:
            most = max(self._sources.values(), key=lambda each: each.held)
            return self._largest(most.unauthenticated)
        return None

    def _largest(self, tokens: Iterable[T]) -> T:
        return max(tokens, key=lambda token: self._entries[token].held)

    def disconnected(self, token: T) -> None:
        """Remove a connection that has ended. Idempotent."""
        entry = self._entries.get(token)
        if entry is None:
            return
        if entry.authenticated:
            self.authenticated -= 1
            self._reserved -= entry.reserved
            self.authenticated_bytes -= entry.held
        else:
            self._forget_unauthenticated(token, entry)
        del self._entries[token]

    def _forget_unauthenticated(self, token: T, entry: _Entry) -> None:
        source = self._sources[entry.source]
        del source.unauthenticated[token]
        source.held -= entry.held
        self.unauthenticated -= 1
        self.unauthenticated_bytes -= entry.held
        if not source.unauthenticated:
            del self._sources[entry.source]


def source_of(address: str) -> str:
    """The source of an address: an IPv4 address, an IPv6 network of 64 bits (one machine may have
    all of it), or this machine, by any address of it. "" is a Unix socket's peer."""
    ip = parse_ip(address)
    if ip is None or ip.is_loopback:
        return LOOPBACK
    return str(ip) if ip.version == 4 else str(ipaddress.ip_network((ip, 64), strict=False))
