"""The port of a deploy to its cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from corekit.values import Value
from fdl.model import Function
from fdl.plan.facts import Facts
from fdl.plan.plan import Observed, Step
from fdl.plan.resources import DeployTarget, Resource, Schedule
from orchgpu.deploy.revisions import Revision


class ScheduleState(Value):
    """A deployed schedule of `schedule:`."""

    function: str
    schedule: Schedule
    paused: bool


class Cloud(Protocol):
    """One account and region. Every method raises only `AppError`."""

    @property
    def place(self) -> DeployTarget:
        """Account, region and partition; read from the cloud once."""
        ...

    def observe(
        self, names: Sequence[str], wanted: Sequence[Resource], *, count: bool = False
    ) -> Observed:
        """Observe `wanted` and everything that deploys created for the functions `names`.

        `count` also counts the messages of the queues, and receives from nearly empty ones.
        """
        ...

    def schedules(self, function: str | None = None) -> tuple[ScheduleState, ...]:
        """The schedules that deploys made for `schedule:`, by name. [default: of all functions]"""
        ...

    def pause_schedule(self, name: str, *, paused: bool) -> None:
        """Pause or resume a schedule. Idempotent. Raises NOT_FOUND."""
        ...

    def warm(self, name: str) -> None:
        """Call a function once, with an event that it ignores. Raises INVALID when it fails."""
        ...

    def revisions(self, name: str) -> tuple[Revision, ...]:
        """The revisions of a function, oldest first; () before the first deploy."""
        ...

    def kept_package(self, revision: Revision) -> bytes:
        """The zip of a revision that names one. Raises NOT_FOUND."""
        ...

    def keep(self, revision: Revision, data: bytes | None) -> Revision:
        """Store a revision, under the next number when its own is taken; delete the oldest ones."""
        ...

    def forget_revisions(self, name: str) -> None:
        """Delete all revisions of a removed function."""
        ...

    def facts(self, functions: Sequence[Function]) -> Facts:
        """Read what the desired state of these functions depends on."""
        ...

    def apply(
        self, step: Step, packages: Mapping[str, bytes], notice: Callable[[str], None]
    ) -> None:
        """Do one step. Idempotent: a step that is done is done. `packages`: sha256 → zip.

        `notice` is called with a sentence while the step waits for the cloud.
        """
        ...
