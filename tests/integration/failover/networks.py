"""The places of two daemons, and networks between them, the log and their clients that can be cut.

In namespaces each daemon has a machine of its own with two interfaces, one to the clients and one
to the log; a cut drops all frames. Where the machine allows no namespaces, every connection passes
through a link that holds its bytes back.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from orchgpu.local.ports import fixed_port
from tests.integration.failover.links import Link
from tests.namespaces import Bridge, Here, Machine

DAEMONS = ("a", "b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one daemon runs, and by which addresses it and its peers reach each other."""

    name: str
    listen: str
    http: str
    address: str  #: for clients and hosts
    log: tuple[str, int]  #: for the daemon
    prefix: tuple[str, ...] = ()  #: of its command


class Network(Protocol):
    """Two places, and the cuts between them and the rest."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Those of `DAEMONS`."""
        ...

    def cut(self, name: str, *, log_only: bool) -> None:
        """Let nothing pass between this daemon and the log, nor its clients unless `log_only`."""
        ...

    def restore(self, name: str) -> None:
        """Let everything pass again."""
        ...


class _Links:
    def __init__(self, engine: Path) -> None:
        self.links: dict[str, tuple[Link, Link]] = {}
        found = []
        for name in DAEMONS:
            listen, http, reached, log = (("127.0.0.1", fixed_port()) for _ in range(4))
            self.links[name] = Link(log, engine), Link(reached, listen)
            texts = ("{}:{}".format(*one) for one in (listen, http, reached))
            listen_text, http_text, address = texts
            place = Place(name=name, listen=listen_text, http=http_text, address=address, log=log)
            found.append(place)
        self.places = tuple(found)

    def cut(self, name: str, *, log_only: bool) -> None:
        for link in self.links[name][: 1 if log_only else 2]:
            link.cut()

    def restore(self, name: str) -> None:
        for link in self.links[name]:
            link.restore()


@contextlib.asynccontextmanager
async def by_links(engine: Path) -> AsyncIterator[Network]:
    """On this machine, through links. `engine`: a Unix socket to the engine of the log."""
    network = _Links(engine)
    async with contextlib.AsyncExitStack() as stack:
        for link in (link for both in network.links.values() for link in both):
            await stack.enter_async_context(link)
        yield network


class _Bridges:
    def __init__(self, machines: list[Machine]) -> None:
        Here().must("ip", "link", "set", "lo", "up")
        self._clients = Bridge(Here(), "clients", "198.18.0", machines, device="eth0")
        self._log = Bridge(Here(), "log", "198.18.1", machines, device="eth1")
        self.engine = (self._log.address, 5432)
        self.places = tuple(
            Place(
                name=machine.name,
                listen=f"{self._clients.address_of(machine)}:4700",
                http=f"{self._clients.address_of(machine)}:4780",
                address=f"{self._clients.address_of(machine)}:4700",
                log=self.engine,
                prefix=tuple(machine.command("env", "-C", str(Path.cwd()))),
            )
            for machine in machines
        )

    def cut(self, name: str, *, log_only: bool) -> None:
        self._log.cut(name)
        if not log_only:
            self._clients.cut(name)

    def restore(self, name: str) -> None:
        self._log.restore(name)
        self._clients.restore(name)


@contextlib.asynccontextmanager
async def by_namespaces(engine: Path) -> AsyncIterator[Network]:
    """In machines joined by bridges of this process, which is in namespaces of its own."""
    with contextlib.ExitStack() as stack:
        machines = []
        for number, name in enumerate(DAEMONS, 2):
            machines.append(Machine(name, number))
            stack.callback(machines[-1].close)
        network = _Bridges(machines)
        async with Link(network.engine, engine):
            yield network


NETWORKS: dict[str, Callable[[Path], AbstractAsyncContextManager[Network]]] = {
    "namespaces": by_namespaces,
    "links": by_links,
}
