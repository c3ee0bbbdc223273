"""The addresses of the schedulers of one system, and the order in which they are tried. Pure.

One of them leads, the others are standbys. A standby answers a hello with the leader's address, if
it knows it; that address is next, also when it is not on the list.
"""

from __future__ import annotations

from typing import Any

from corekit.errors import AppError
from corekit.net.addresses import Address, parse_address, parse_addresses

#: Rounds in which a lost leader is left out, a second or two: its standby may name it until then,
#: and a stopped process costs `failover_connect_s` at each try.
LOST_ROUNDS = 6
#: Key of the leader's address in the details of a standby's refusal.
LEADER = "leader"
#: Key that marks a standby's refusal.
STANDBY = "standby"


class SchedulerAddresses:
    """`current` is tried; `failed` and `lost` select the next one."""

    def __init__(self, text: str) -> None:
        """`text`: "host:port", or several of them, separated by commas. Raises INVALID."""
        self.given = parse_addresses(text)
        self.current: Address = self.given[0]
        self._tried: dict[Address, None] = {}  # since the last pause or welcome
        self._lost: Address | None = None  # the last one that had welcomed us
        self._rounds = 0  # in which it is still left out

    @property
    def several(self) -> bool:
        """True where another scheduler may take over."""
        return len(self.given) > 1

    def __str__(self) -> str:
        return ", ".join("{}:{}".format(*one) for one in self.given)

    def failed(self, leader: Address | None = None, *, standby: bool = False) -> bool:
        """Select the next address after a failure; True when all were tried: a pause is due.

        `standby`: it was one, and gave `leader`. When all were tried, it is asked again first: it
        is about to take over.
        """
        self._tried[self.current] = None
        for one in (*([leader] if leader else []), *self.given):
            if one not in self._tried and not (one == self._lost and self._rounds):
                self.current = one
                return False
        self._tried.clear()
        self._rounds = max(0, self._rounds - 1)
        if not standby:
            self._advance()
        return True

    def lost(self) -> None:
        """Select the next address after a connection that had been welcomed.

        The lost one is left out for some rounds: a standby may still name it.
        """
        self._tried.clear()
        self._lost, self._rounds = self.current, LOST_ROUNDS if self.several else 0
        self._advance()

    def _advance(self) -> None:
        here = self.given.index(self.current) if self.current in self.given else -1
        self.current = self.given[(here + 1) % len(self.given)]


def leader_of(error: AppError) -> Address | None:
    """The leader's address in a refusal; None without a valid one."""
    named: Any = error.details.get(LEADER)
    if not isinstance(named, str):
        return None
    try:
        return parse_address(named)
    except AppError:
        return None
