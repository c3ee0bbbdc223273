"""The host's side of a hello, decided from the table of leases alone. Pure."""

from __future__ import annotations

from corekit.ids import LeaseId
from remote_gpu.host.leases.table import Entry, LeaseTable
from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.proof import Hello, Proving


class Verifier:
    """Decides from the current table: a lease that has just ended is refused."""

    def __init__(self, host_id: str, table: LeaseTable) -> None:
        self._host_id = host_id
        self._table = table

    def check_host(self, hello: Hello) -> None:
        """Raises Refused(DENIED) for a hello to another host."""
        if hello.host != self._host_id:
            raise Refused(Refusal.DENIED, f"this host is {self._host_id}, not {hello.host}")

    def knows(self, lease: str) -> bool:
        """True when the lease is or was installed; any other lease's install may be on its way."""
        return self._table.find(lease) is not None or bool(self._table.ended(lease))

    def proving(self, hello: Hello, nonce: str, authority: str) -> Proving:
        """The proof to demand of the client, for a `nonce` that was never used.

        Raises Refused: DENIED, ENDED, NOT_INSTALLED.
        """
        self.check_host(hello)
        install = self._installed(LeaseId(hello.lease)).install
        if install.fence != hello.fence:
            raise Refused(Refusal.DENIED, f"lease {hello.lease} has another fence")
        return Proving(bytes.fromhex(install.secret), hello, nonce, authority)

    def _installed(self, lease: LeaseId) -> Entry:
        if (entry := self._table.find(lease)) is not None:
            return entry
        if (ended := self._table.ended(lease)) is not None:
            raise Refused(Refusal.ENDED, f"lease {lease} ended here: {ended.reason}")
        raise Refused(Refusal.NOT_INSTALLED, f"lease {lease} is unknown on this host")
