"""Functions without jobs (`job: none`): objects start them, and no orchestrator serves them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from corekit.values import Value
from fdl.plan.resources import Notification


class DirectFunction(Value):
    """A function without jobs, as it is deployed."""

    name: str
    inputs: Sequence[Notification]  #: the rules by which objects start it
    dead_letters: str = ""  #: name of the queue of events that it could not run; "" = it has none

    @property
    def places(self) -> list[str]:
        """Locations whose new objects start it, as `s3://bucket/prefix`."""
        return list(dict.fromkeys(f"s3://{rule.bucket}/{rule.prefix}" for rule in self.inputs))

    def takes(self, file: Path) -> bool:
        """True when a file of that name starts the function."""
        return any(file.name.endswith(rule.suffix) for rule in self.inputs)
