"""The progress of a running attempt, and the folder that its next attempt continues from.

`attempts/<job_id>/<n>/progress.json` is overwritten while the code runs; nothing is decided by it.
`attempts/<job_id>/checkpoint.tar` is of the job: attempt n+1 continues from what attempt n saved.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.record import VERSION, Record


@dataclass(frozen=True)
class Progress(Record):
    """The last report of the code, and the last save of its folder."""

    attempt: int
    part: float | None  #: of the work, 0…1; None = it reported none
    text: str  #: of the code, for people
    at_s: float  #: wall clock of the runner
    saved_at_s: float | None = None  #: of the newest checkpoint; None = there is none
    version: int = VERSION
