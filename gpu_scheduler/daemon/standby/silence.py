"""When a standby takes over. Pure.

Only liveness depends on it: a take-over may come too early or too late, the log has one writer for
each item. Silence is counted between two reads that worked, by this machine's own clock; a standby
that was suspended, or could not read the log, has observed nothing meanwhile.
"""

from __future__ import annotations


class Silence:
    """The time since the log's last news."""

    def __init__(self, takeover_s: float, at_s: float) -> None:
        self._takeover_s = takeover_s
        self._since_s = at_s

    def read(self, began_s: float, ended_s: float, *, news: bool) -> bool:
        """Note a read of the log up to its end; True when the leader has been silent for too long.

        A leader that lived while this standby was suspended left news, which this read found.
        """
        if news:
            self._since_s = ended_s
            return False
        return began_s - self._since_s >= self._takeover_s

    def silent_s(self, at_s: float) -> float:
        """The time since the last news."""
        return max(0.0, at_s - self._since_s)

    def due_in_s(self, at_s: float) -> float:
        """The time until a read may begin that finds the leader silent for too long."""
        return max(0.0, self._since_s + self._takeover_s - at_s)

    def unknown(self, at_s: float) -> None:
        """Note a read that failed: the leader may have written."""
        self._since_s = at_s
