"""The scheduler's full state of one host, page by page, and the pushes in between.

Pushes that arrive before the last page are newer than the state: they wait until it is complete and
are then applied in order. Pure; `link.py` requests the pages.
"""

from __future__ import annotations

from corekit.errors import invalid
from gpu_scheduler.protocol.codec import Body
from gpu_scheduler.protocol.host import HostWelcome, Install, InstallsAsked, InstallsPage

#: Most pushes that wait; with more of them the host requests the full state again.
WAITING_MAX = 10_000


class FullState:
    """A full state that begins with a welcome, and is complete when that announces no more."""

    def __init__(self, welcome: HostWelcome) -> None:
        self.welcome = welcome
        self.installs: list[Install] = list(welcome.installs)
        self.is_whole = not welcome.more
        self.waiting: list[tuple[str, Body]] = []

    @property
    def fence(self) -> int:
        """Highest fence of its leases; every later grant has a higher one."""
        return max((install.fence for install in self.installs), default=0)

    def next_page(self) -> InstallsAsked:
        """The request of the next page."""
        return InstallsAsked(after=self.fence, until=self.welcome.until)

    def add(self, page: InstallsPage) -> None:
        """Add a page. Raises INVALID for an empty one that is not the last."""
        if page.more and not page.installs:
            raise invalid("a page of the full state is without an install, but more are announced")
        self.installs += page.installs
        self.is_whole = not page.more

    def hold(self, name: str, body: Body) -> bool:
        """Keep a push until the state is complete; False when too many wait already."""
        self.waiting.append((name, body))
        return len(self.waiting) <= WAITING_MAX


def pages_of(leases: list[str], bytes_max: int) -> list[list[str]]:
    """The names in lists of at most so many bytes each; one empty list when there are none."""
    pages: list[list[str]] = [[]]
    used = 0
    for lease in leases:
        size = len(lease.encode()) + 3  # quotes and a comma
        if used + size > bytes_max and pages[-1]:
            pages.append([])
            used = 0
        pages[-1].append(lease)
        used += size
    return pages
