"""Hosts in memory: for tests and simulations of what uses the port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from corekit.errors import AppError, ErrorCode
from orchgpu.fleet.ports.port import PortGroup, PortHost


@dataclass
class MemoryFleet:
    """`FleetPort` without machines. `refusing` groups deliver nothing until they are removed."""

    wall_s: Callable[[], float]
    groups: Sequence[str]
    refusing: dict[str, str] = field(default_factory=dict)  #: group → its reason
    hosts: dict[str, list[PortHost]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)  #: hosts that each group shall have
    _number: int = 0

    async def list(self, groups: Sequence[str]) -> tuple[PortGroup, ...]:
        return tuple(self._group(self._known(name)) for name in groups)

    async def grow(self, group: str, size: int) -> None:
        self.sizes[group] = max(size, self.sizes.get(self._known(group), 0))

    async def withdraw(self, group: str) -> None:
        self.sizes[group] = len(self.hosts.get(self._known(group), ()))

    async def stop(self, group: str, host: str) -> None:
        hosts = self.hosts.get(self._known(group), [])
        left = [one for one in hosts if one.id != host]
        self.sizes[group] = self.sizes.get(group, 0) - (len(hosts) - len(left))
        self.hosts[group] = left

    async def close(self) -> None:
        """Do nothing: no connection is held."""

    def _known(self, group: str) -> str:
        if group not in self.groups:
            raise AppError(ErrorCode.NOT_FOUND, f"there is no group {group!r}")
        return group

    def _group(self, name: str) -> PortGroup:
        hosts = self.hosts.setdefault(name, [])
        size = self.sizes.get(name, 0)
        while name not in self.refusing and len(hosts) < size:
            self._number += 1
            hosts.append(PortHost(id=f"{name}-{self._number}", launched_s=self.wall_s()))
        refusal = self.refusing.get(name, "") if len(hosts) < size else ""
        return PortGroup(name=name, size=size, hosts=tuple(hosts), refusal=refusal)
