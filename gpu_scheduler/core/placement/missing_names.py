"""The data sets and programs that no host has together: the nearest hosts, and a likely name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from corekit.suggest import did_you_mean
from gpu_scheduler.core.inventory.devices import permanent_mismatch
from gpu_scheduler.core.inventory.inventory import HostEntry, Inventory
from gpu_scheduler.data_names import Offered, first_missing, name_of, pinned, short
from gpu_scheduler.model import Request
from gpu_scheduler.verdicts import NoFit, Shortage

#: The most hosts, and the most names of one host, in a message.
_HOSTS_MAX, _NAMES_MAX = 3, 8


class _NamedHost(NamedTuple):
    """One host that has a fitting device, but not all names."""

    host: HostEntry
    has: tuple[str, ...]  #: `data proteins`
    lacks: tuple[str, ...]
    other: tuple[str, ...]  #: `proteins@sha256:…`: its content under a name that it lacks


def missing_names(request: Request, inventory: Inventory, what: NoFit) -> Shortage:
    """The shortage of a request whose closest devices mismatch as `what`: DATA or PROGRAM."""
    hosts = [
        _named_host(request, host)
        for host in inventory.hosts.values()
        if any(
            permanent_mismatch(request, inventory.state_of(device).device_class) is what
            for device in host.devices
        )
    ]
    hosts.sort(key=lambda one: (len(one.lacks), one.host.host))
    named = "; ".join(_text(one) for one in hosts[:_HOSTS_MAX])
    more = len(hosts) - _HOSTS_MAX
    most = named + (f" and {more} more hosts" if more > 0 else "") + _hint(request, inventory, what)
    return Shortage(what=what, wanted=" and ".join(hosts[0].lacks), most=most)


def _named_host(request: Request, host: HostEntry) -> _NamedHost:
    asked = [("data", one, host.data) for one in request.data]
    asked += [("program", one, host.programs) for one in request.programs]
    lacks = [(kind, one) for kind, one, there in asked if first_missing((one,), there) is not None]
    has = [(kind, one) for kind, one, _ in asked if (kind, one) not in lacks]
    other = [
        pinned(name, digest)
        for kind, one, there in asked
        if (kind, one) in lacks
        for name, digest in there
        if name == name_of(one)
    ]
    return _NamedHost(
        host,
        has=tuple(f"{kind} {short(one)}" for kind, one in has),
        lacks=tuple(f"{kind} {short(one)}" for kind, one in lacks),
        other=tuple(map(short, other)),
    )


def _text(one: _NamedHost) -> str:
    """`host gpu-b has data blastdb, lacks program blast`; with other content, also that content."""
    has = f"has {', '.join(one.has)}, " if one.has else ""
    other = f" (it has {', '.join(one.other)})" if one.other else ""
    return f"host {one.host.host} {has}lacks {', '.join(one.lacks)}{other}"


def _hint(request: Request, inventory: Inventory, what: NoFit) -> str:
    """A name close to the missing one, else the names that hosts have."""
    asked = request.data if what is NoFit.DATA else request.programs
    known = sorted({name for offered in _offers(inventory, what) for name, _ in offered})
    unknown = next((name for name in map(name_of, asked) if name not in known), None)
    if unknown is None:
        return ""
    listed = ", ".join(known[:_NAMES_MAX]) or "none"
    word = "data sets" if what is NoFit.DATA else "programs"
    hint = did_you_mean(unknown, known, otherwise=f"; the {word} of all hosts: {listed}")
    return f" ({hint.removeprefix('; ')})"


def _offers(inventory: Inventory, what: NoFit) -> Iterator[Offered]:
    for host in inventory.hosts.values():
        yield host.data if what is NoFit.DATA else host.programs
