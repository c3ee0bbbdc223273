"""What a policy is: who goes next. It says in which order to look; the machine looks and commits.

Under every policy nothing waits that fits and that no rule holds back, and the head of the queue
is passed a bounded number of times (`keep`): so no request starves while priorities age.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from corekit.budget import Budget
from corekit.ids import DeviceId
from gpu_scheduler.core.queue.queue import FirstByClass
from gpu_scheduler.core.state import StateView
from gpu_scheduler.protocol.changes import Waiting


class View(Protocol):
    """What a policy may read."""

    @property
    def state(self) -> StateView: ...
    @property
    def budget(self) -> Budget: ...
    @property
    def at_s(self) -> float: ...
    @property
    def wall_s(self) -> float: ...


class Policy(Protocol):
    """Stateless: everything it may go by is in the view."""

    def first_by_class(self, view: View) -> Iterator[FirstByClass]:
        """Waiting requests, group by group: who fits is served from the first that has somebody."""
        ...

    def keep(self, view: View, head: Waiting) -> tuple[DeviceId, ...]:
        """Devices nobody behind `head` may have from now on; empty while it can be passed."""
        ...

    def lend_until_s(self, view: View) -> float | None:
        """Who is sure to be done by then (monotonic) may have what is kept for the head."""
        ...
