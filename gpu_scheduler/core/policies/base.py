"""What a policy is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from corekit.ids import DeviceId
from gpu_scheduler.core.changes import Waiting
from gpu_scheduler.core.state import StateView


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One waiting request and the devices it should have."""

    attempt: str
    devices: tuple[DeviceId, ...]


class Policy(Protocol):
    """Stateless: everything it may go by is in the view."""

    def admit(self, view: StateView, newcomer: Waiting) -> Proposal | None:
        """A grant for a request that just came, when no queued one that fits is passed unfairly."""
        ...

    def next(self, view: StateView) -> Proposal | None:
        """The next queued request to serve; None when none should be now. Asked until None."""
        ...

    def keep(self, view: StateView, head: Waiting) -> tuple[DeviceId, ...]:
        """Devices nobody behind `head` may have from now on; empty while it can be passed."""
        ...
