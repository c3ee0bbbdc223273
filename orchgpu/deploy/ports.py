"""What a deploy needs of a cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fdl.plan.plan import Observed, Step
from fdl.plan.resources import DeployTarget, Resource
from orchgpu.deploy.revisions import Revision


class Cloud(Protocol):
    """One account and region. Every method raises only `AppError`."""

    @property
    def place(self) -> DeployTarget:
        """Account, region and partition; asks the cloud once."""
        ...

    def observe(
        self, names: Sequence[str], wanted: Sequence[Resource], *, count: bool = False
    ) -> Observed:
        """What exists of `wanted` and of all that was ever created for the functions `names`.

        `count` also counts the messages of the queues, which looks into nearly empty ones.
        """
        ...

    def warm(self, name: str) -> None:
        """Call a function once, with an event that means nothing to it. Raises what that raises."""
        ...

    def revisions(self, name: str) -> tuple[Revision, ...]:
        """What is kept of a function's deploys, oldest first; () before the first one."""
        ...

    def kept_package(self, revision: Revision) -> bytes:
        """The zip of a revision that names one. Raises NOT_FOUND."""
        ...

    def keep(self, revision: Revision, data: bytes | None) -> Revision:
        """Keep one; it gets the next number when its own is taken. The oldest ones go."""
        ...

    def forget_revisions(self, name: str) -> None:
        """Delete all of a function that is gone."""
        ...

    def apply(self, step: Step, packages: Mapping[str, bytes]) -> None:
        """Do one step. Idempotent: what is already so is no error. `packages`: sha256 → zip."""
        ...
