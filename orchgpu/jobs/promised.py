"""Promises as users see them: given, kept or missed, by the end and the objective. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from contract.states import JobState, Reason
from corekit.decode import decode_known, encode
from corekit.errors import AppError
from corekit.values import Value
from gpu_scheduler.promises import MissCause, Slo

_REFUSED = (Reason.SLO_BUSY, Reason.SLO_IMPOSSIBLE, Reason.NO_PROMISES)


class PromiseState(StrEnum):
    """The state of the promise of a run or job."""

    PROMISED = "PROMISED"  #: it is not over, or not even admitted yet
    KEPT = "KEPT"
    MISSED = "MISSED"
    WAIVED = "WAIVED"  #: it was cancelled
    REFUSED = "REFUSED"


class Promised(Value):
    """The objectives of a run or job, and how it stands to them.

    The cost is what was planned: it is not measured against its objective.
    """

    state: PromiseState
    slo: Slo
    seconds: float  #: from the storing of its input to its end, or until now
    cause: str = ""  #: of a miss: LATE, or the state in which it ended

    @property
    def word(self) -> str:
        """For a list."""
        return " ".join(filter(None, ("slo", self.state.value.lower(), self.cause)))

    def as_json(self) -> dict[str, object]:
        return {**encode(self), "word": self.word}

    @property
    def sentence(self) -> str:
        """For people; of a refusal the reason has more."""
        latency_s = self.slo.latency_s
        if latency_s is None:
            return self.word
        return f"{self.word}: {self.seconds:.1f} s of {latency_s:g} s"


def promised(slo: Slo, seconds: float, state: str, reason: str) -> Promised:
    """`state` and `reason`: those of the job or run now."""
    found, cause = _outcome(slo, seconds, state, reason)
    return Promised(state=found, slo=slo, seconds=seconds, cause=cause)


def _outcome(slo: Slo, seconds: float, state: str, reason: str) -> tuple[PromiseState, str]:
    late = slo.latency_s is not None and seconds > slo.latency_s
    if reason in _REFUSED:
        return PromiseState.REFUSED, ""
    if state == JobState.CANCELLED:
        return PromiseState.WAIVED, ""
    if late:
        return PromiseState.MISSED, MissCause.LATE.value
    if state == JobState.SUCCEEDED:
        return PromiseState.KEPT, ""
    if state in _ENDED:
        return PromiseState.MISSED, state
    return PromiseState.PROMISED, ""


_ENDED = frozenset({*(one.value for one in JobState if one.terminal), Reason.DEADLINE.value})


def slo_in(block: Mapping[str, object]) -> Slo | None:
    """The objectives of a job, in the block of its record; None where it has none."""
    value = block.get("slo")
    if not isinstance(value, Mapping):
        return None
    try:
        return decode_known(Slo, value)[0]
    except AppError:  # an older or foreign version wrote it
        return None
