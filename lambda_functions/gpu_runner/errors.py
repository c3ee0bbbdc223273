"""The errors of the runner."""

from __future__ import annotations

from dataclasses import dataclass, field

from contract.record import JsonObject
from contract.states import Reason


class RunnerError(Exception):
    """The function itself failed; Lambda's failure record carries the message."""


class EnvelopeError(RunnerError):
    """The envelope is not valid."""


class LeaseNotOpen(RunnerError):
    """The lease of this attempt cannot be claimed: not installed, or its host is unreachable."""


class StorageError(RunnerError):
    """S3 refused a request or did not answer; `status` is the HTTP status, 0 without an answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class AttemptFailed(Exception):
    """The run ended without success, for a reason that a person can act on."""

    reason: Reason
    detail: str  #: one sentence: what, where, what to do
    exit_code: int | None = None  #: as a shell shows it: 128 + n for signal n
    log_tail: str = ""
    times: dict[str, float] = field(default_factory=dict)  #: wall clock: EStart, EEnd
    provenance: JsonObject = field(default_factory=dict)  #: see `contract.provenance`

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"
