"""The claim of an attempt without a device: the one object that decides which start runs.

An attempt with a device is claimed by the session of its lease. Without one, the first to store
`attempts/<job_id>/<n>/claim.json` (If-None-Match) has it: a start of the function, which may then
run the user's code, or the orchestrator, after which no start of that attempt runs any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.record import VERSION, Record


@dataclass(frozen=True)
class Claim(Record):
    """The start that has the attempt. Written once, never changed."""

    job_id: str
    attempt: int
    request: str  #: Lambda's id of the start; "" = it was closed: no start may run it
    claimed_at_s: float  #: wall clock of the writer
    ends_at_s: float  #: wall clock of the writer: Lambda ends the start by then
    version: int = VERSION
