"""How a run of the user's script can fail, as far as the runner's steps know it."""

from __future__ import annotations

from dataclasses import dataclass, field

from contract.states import Reason


class RunnerError(Exception):
    """The function itself cannot do its work; Lambda's failure record carries the message."""


class EnvelopeError(RunnerError):
    """The envelope is not one that an orchestrator of ours has packed."""


class LeaseNotOpen(RunnerError):
    """The lease of this attempt could not be claimed: not installed, or its host is away."""


class StorageError(RunnerError):
    """S3 refused or did not answer; `status` is the HTTP status, 0 when there was no answer."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class AttemptFailed(Exception):
    """The run is over without success, for a reason that a person can act on."""

    reason: Reason
    detail: str  #: one sentence: what, where, what to do
    exit_code: int | None = None  #: as a shell shows it: 128 + n for signal n
    log_tail: str = ""
    times: dict[str, float] = field(default_factory=dict)  #: wall clock: EStart, EEnd

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"
