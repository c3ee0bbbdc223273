"""Runs of attempts in AWS Batch, as Batch shows them. Pure.

A run is one job of Batch's. Its runner claims the attempt by Batch's id; its name is that of job
and attempt, by which an owner finds runs that it has not submitted itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from contract.states import Reason
from corekit.values import Value

#: States after which a run never changes (AWS Batch user guide, "Job states").
_OVER = frozenset({"SUCCEEDED", "FAILED"})
#: States in which a run waits for a machine.
_QUEUED = frozenset({"SUBMITTED", "PENDING", "RUNNABLE"})
#: What Batch's reasons begin with → the attempt's.
_REASONS = {
    "Host EC2": Reason.HOST_LOST,
    "Job attempt duration exceeded timeout": Reason.FUNCTION_TIMEOUT,
    "OutOfMemoryError": Reason.OUT_OF_MEMORY,
}


class BatchRun(Value):
    """One job of Batch's."""

    id: str
    state: str  #: SUBMITTED, PENDING, RUNNABLE, STARTING, RUNNING, SUCCEEDED or FAILED
    why: tuple[str, ...] = ()  #: reasons of the state and of the container's end
    ran: bool = False  #: its container was started

    @property
    def over(self) -> bool:
        return self.state in _OVER

    @property
    def words(self) -> str:
        """Its state, and the reasons of it."""
        return f"job {self.id} is {': '.join((self.state, *dict.fromkeys(self.why)))}"

    @property
    def queued(self) -> bool:
        return self.state in _QUEUED


def run_name(job: str, attempt: int) -> str:
    """The name of an attempt's runs."""
    return f"{job}-{attempt}"


def reason_of(
    runs: Iterable[BatchRun], *, claimed: bool, log_group: str = ""
) -> tuple[Reason, str]:
    """Why an attempt failed whose runs are over without a result and a report, and in words.

    One whose container never ran was not started, which does not count. `log_group` has the words
    of one that ran.
    """
    ended = [*runs]
    last = next((one for one in ended if one.ran), ended[0])
    words = "; ".join(dict.fromkeys(last.why)) or "it gives no reason"
    detail = f"Batch's job {last.id} ended as {last.state}: {words}"
    if not claimed and not last.ran:
        return Reason.NOT_STARTED, detail
    if not claimed:
        detail += "; its container never claimed the attempt"
        detail += f", and its output is in {log_group}" if log_group else ""
    known = (_REASONS[start] for start in _REASONS for why in last.why if why.startswith(start))
    return next(known, Reason.FUNCTION_CRASHED), detail
