"""Promises as users see them: given, kept or missed, by the end and the objective. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from contract.states import JobState, Reason
from corekit.decode import decode_known, encode
from corekit.errors import AppError
from corekit.values import Value
from gpu_scheduler.promises import MissCause, Slo

#: The cause of a miss: the job or run cost more than its objective.
COST = "COST"
#: Dollars: sums of results are rounded.
_SAME_USD = 1e-9
_REFUSED = (Reason.SLO_BUSY, Reason.SLO_IMPOSSIBLE, Reason.NO_PROMISES)


class PromiseState(StrEnum):
    """The state of the promise of a run or job."""

    PROMISED = "PROMISED"  #: it is not over, or not even admitted yet
    KEPT = "KEPT"
    MISSED = "MISSED"
    WAIVED = "WAIVED"  #: it was cancelled
    REFUSED = "REFUSED"


class Promised(Value):
    """The objectives of a run or job, and how it stands to them."""

    state: PromiseState
    slo: Slo
    seconds: float  #: from the storing of its input to its end, or until now
    cause: str = ""  #: of a miss: LATE, COST, or the state in which it ended
    cost_usd: float | None = None  #: of the results until now; None = not known

    @property
    def word(self) -> str:
        """For a list."""
        return " ".join(filter(None, ("slo", self.state.value.lower(), self.cause)))

    @property
    def outcome(self) -> str:
        """For a counter: `kept`, `missed_CAUSE`, `waived`, `refused`, `promised`."""
        return "_".join(filter(None, (self.state.value.lower(), self.cause)))

    def as_json(self) -> dict[str, object]:
        return {**encode(self), "word": self.word}

    @property
    def sentence(self) -> str:
        """For people; of a refusal the reason has more."""
        parts: list[str] = []
        if self.slo.latency_s is not None:
            parts.append(f"{self.seconds:.1f} s of {self.slo.latency_s:g} s")
        if self.slo.cost_usd is not None and self.cost_usd is not None:
            parts.append(f"{self.cost_usd:.4g} of {self.slo.cost_usd:.4g} USD")
        return ": ".join(filter(None, (self.word, ", ".join(parts))))


def promised(
    slo: Slo, seconds: float, state: str, reason: str, cost_usd: float | None = None
) -> Promised:
    """`state` and `reason`: those of the job or run now; `cost_usd`: of its results until now."""
    found, cause = _outcome(slo, seconds, state, reason, cost_usd)
    return Promised(state=found, slo=slo, seconds=seconds, cause=cause, cost_usd=cost_usd)


def _outcome(
    slo: Slo, seconds: float, state: str, reason: str, cost_usd: float | None
) -> tuple[PromiseState, str]:
    late = slo.latency_s is not None and seconds > slo.latency_s
    most_usd = slo.cost_usd
    costly = most_usd is not None and cost_usd is not None and cost_usd > most_usd + _SAME_USD
    if reason in _REFUSED:
        return PromiseState.REFUSED, ""
    if state == JobState.CANCELLED:
        return PromiseState.WAIVED, ""
    if late:
        return PromiseState.MISSED, MissCause.LATE.value
    if costly:
        return PromiseState.MISSED, COST
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


def cost_in(block: Mapping[str, object]) -> float | None:
    """The cost of an ended job with an objective of cost, in the block of its record."""
    value = block.get("cost_usd")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)
