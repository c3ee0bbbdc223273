"""A scheduler's full state of one host, page by page, and what is pushed in between.

Pushes that come before the last page wait until the state is whole and are then taken in their
order: they are newer than it. Pure; `link.py` asks for the pages.
"""

from __future__ import annotations

from corekit.errors import invalid
from gpu_scheduler.protocol.codec import Body
from gpu_scheduler.protocol.host import HostWelcome, Install, InstallsAsked, InstallsPage

#: Pushes that wait at most; with more of them the host asks for the full state again.
WAITING_MAX = 10_000


class FullState:
    """Begun by a welcome; whole at once unless that says there is more."""

    def __init__(self, welcome: HostWelcome) -> None:
        self.welcome = welcome
        self.installs: list[Install] = list(welcome.installs)
        self.is_whole = not welcome.more
        self.waiting: list[tuple[str, Body]] = []

    @property
    def fence(self) -> int:
        """Above every lease of it; whatever is granted later has a higher one."""
        return max((install.fence for install in self.installs), default=0)

    def next_page(self) -> InstallsAsked:
        """What to ask for."""
        return InstallsAsked(after=self.fence, until=self.welcome.until)

    def add(self, page: InstallsPage) -> None:
        """The next page. Raises INVALID for an empty one that is not the last: it leads nowhere."""
        if page.more and not page.installs:
            raise invalid("a page of the full state is without an install, but more are announced")
        self.installs += page.installs
        self.is_whole = not page.more

    def hold(self, name: str, body: Body) -> bool:
        """Keep a push for later; False when too many wait already."""
        self.waiting.append((name, body))
        return len(self.waiting) <= WAITING_MAX


def pages_of(leases: list[str], bytes_max: int) -> list[list[str]]:
    """Names in lists of about that many bytes each; one empty list when there are none."""
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
