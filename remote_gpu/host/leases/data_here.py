"""The declared data sets that leases of this host can read, by tenant. Pure."""

from __future__ import annotations

from gpu_scheduler.data_sets import DataSet
from gpu_scheduler.protocol.host import Install


class DataHere:
    """The sets that are here, shown to the leases of some tenants."""

    def __init__(self) -> None:
        self._shown: set[tuple[str, str]] = set()  #: tenants, each with the key of a set

    def show(self, tenant: str, key: str) -> None:
        """Leases of the tenant can read a set from now on."""
        self._shown.add((tenant, key))

    def gone(self, key: str) -> None:
        """A set that no lease needs is evicted."""
        self._shown = {one for one in self._shown if one[1] != key}

    def has(self, tenant: str, key: str) -> bool:
        """True when leases of the tenant can read a set."""
        return (tenant, key) in self._shown

    def lacked(self, install: Install) -> list[DataSet]:
        """The sets of a lease that it cannot read yet."""
        return [one for one in install.data_sets if not self.has(install.tenant, one.key)]

    def why_unused(self, install: Install) -> str:
        """Why no session of a lease has opened in time."""
        lacked = ", ".join(one.name for one in self.lacked(install))
        return f"its data is not here yet: {lacked}" if lacked else "no session opened in time"
