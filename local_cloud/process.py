"""Plumbing of both programs of this package: their options, the model's clock."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from corekit.aio.clock import Clock
from corekit.aio.supervise import Nursery
from corekit.cli.settings import Option
from corekit.errors import AppError, ErrorCode


@dataclass(frozen=True, kw_only=True)
class ProgramOptions:
    """The options of both."""

    state: Annotated[Path, Option("Folder for state, code and scratch files.")]
    ready_file: Annotated[Path | None, Option("JSON file, written when it is ready.")] = None
    region: Annotated[str, Option("Region of ARNs.")] = "us-east-1"
    concurrency: Annotated[int, Option("Limit of concurrent runs.")] = 64


async def until_failed(nursery: Nursery) -> None:
    """The main wait of a program. Raises INTERNAL when a task of the nursery failed."""
    try:
        await nursery.failed()
    except Exception as error:
        text = "a background task failed; see the log"
        raise AppError(ErrorCode.INTERNAL, text) from error


class CloudClock:
    """Seconds since the epoch that never decrease while the process runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._zero_s = clock.wall_s() - clock.monotonic_s()

    def now_s(self) -> float:
        """Wall time at start plus monotonic time since."""
        return self._zero_s + self._clock.monotonic_s()
