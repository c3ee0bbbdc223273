"""What a deploy needs of a cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from fdl.plan import Observed, Step
from fdl.resources import Place, Resource


class Cloud(Protocol):
    """One account and region. Every method raises only `AppError`."""

    @property
    def place(self) -> Place:
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

    def apply(self, step: Step, packages: Mapping[str, bytes]) -> None:
        """Do one step. Idempotent: what is already so is no error. `packages`: sha256 → zip."""
        ...
