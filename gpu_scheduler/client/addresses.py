"""The addresses of the schedulers of one system, and the order in which they are tried. Pure.

One of them leads, the others are standbys. A standby answers a hello with the leader's address, if
it knows it; that address is next, also when it is not on the list.
"""

from __future__ import annotations

from typing import Any

from corekit.errors import AppError
from corekit.net.addresses import Address, parse_address, parse_addresses

#: Rounds in which an address that is lost, or did not answer in time, is left out: 3.8 s at least,
#: so that no second is spent on it while its standby takes over (`Budget.granting_again_s`).
LEFT_OUT_ROUNDS = 16
#: Key of the leader's address in the details of a standby's refusal.
LEADER = "leader"
#: Key that marks a standby's refusal.
STANDBY = "standby"
#: Key of the time since the leader's last item in the log, as a standby observes it.
SILENT = "silent_s"


class SchedulerAddresses:
    """`current` is tried; `failed` and `lost` select the next one."""

    def __init__(self, text: str) -> None:
        """`text`: "host:port", or several of them, separated by commas. Raises INVALID."""
        self.given = parse_addresses(text)
        self.current: Address = self.given[0]
        self._tried: dict[Address, None] = {}  # since the last pause or welcome
        self._left_out: dict[Address, int] = {}  # for so many more rounds
        self._has_standby = False  # one was met in this round

    @property
    def several(self) -> bool:
        """True where another scheduler may take over."""
        return len(self.given) > 1

    def __str__(self) -> str:
        return ", ".join("{}:{}".format(*one) for one in self.given)

    def failed(
        self,
        leader: Address | None = None,
        *,
        standby: bool = False,
        lives: bool = False,
        silent: bool = False,
    ) -> bool:
        """Select the next address after a failure; True when all were tried: a pause is due.

        `standby`: it was one, and gave `leader`, which `lives` if it wrote to the log just now.
        When all were tried, the standby is asked again first: it is about to take over.
        `silent`: it did not answer in time. Addresses that are left out come last, and not beside
        a standby.
        """
        self._tried[self.current] = None
        self._has_standby = self._has_standby or standby
        if silent:
            self._left_out[self.current] = LEFT_OUT_ROUNDS
        if leader and lives:
            self._left_out.pop(leader, None)
        known = (*([leader] if leader else []), *self.given)
        rest = [one for one in known if one not in self._tried]
        at_once = [one for one in rest if one not in self._left_out]
        if found := at_once or ([] if self._has_standby else rest):
            self.current = found[0]
            return False
        self._end_round()
        if not standby:
            self._advance()
        return True

    def lost(self) -> None:
        """Select the next address after a connection that had been welcomed.

        The lost one is left out for some rounds: a standby may still name it.
        """
        if self.several:
            self._left_out[self.current] = LEFT_OUT_ROUNDS
        self._tried.clear()
        self._has_standby = False
        self._advance()

    def _end_round(self) -> None:
        self._tried.clear()
        self._has_standby = False
        self._left_out = {one: left - 1 for one, left in self._left_out.items() if left > 1}

    def _advance(self) -> None:
        here = self.given.index(self.current) if self.current in self.given else -1
        following = [*self.given[here + 1 :], *self.given[: here + 1]]
        self.current = next((one for one in following if one not in self._left_out), following[0])


def lives_of(error: AppError, within_s: float) -> bool:
    """Whether the leader wrote to the log so recently, by a standby's refusal."""
    silent_s: Any = error.details.get(SILENT)  # an older standby has none
    return isinstance(silent_s, int | float) and silent_s < within_s


def leader_of(error: AppError) -> Address | None:
    """The leader's address in a refusal; None without a valid one."""
    named: Any = error.details.get(LEADER)
    if not isinstance(named, str):
        return None
    try:
        return parse_address(named)
    except AppError:
        return None
