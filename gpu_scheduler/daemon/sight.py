"""What a caller is shown of others' jobs and leases: their state, not what they are about.

In full: operators, and everybody where no keys are asked for; whose key made or owns a thing; keys
bound to its tenant. Anybody else is shown a job without its block (object names) and its receipt
handle, a lease without the addresses that reach it and the words of its holder, a waiting request
without its session and the data it wants to be near. A receipt handle is for who may act for the
job, so readers are never shown one. Names of keys, tenants, attempts and jobs (a hash) are no
secrets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from corekit.values import replace
from gpu_scheduler.core import actions as do
from gpu_scheduler.core.tallies import key_of
from gpu_scheduler.daemon.gate import Caller, Gate
from gpu_scheduler.daemon.keys import Role
from gpu_scheduler.model import Lease, Record

#: What a hidden block says; the key is no orchestrator's.
HIDDEN: Mapping[str, Any] = {"hidden": True}


class Sight:
    """Answers as their askers may see them; what hides nothing is the same object."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._forms: Mapping[type[Any], Callable[[Caller, Any], Any]] = {
            do.RecordAnswer: self._record_answer, do.RecordsAnswer: self._records_answer,
            do.LeasesAnswer: self._leases_answer, do.LeaseAnswer: self._lease_answer,
            do.QueueAnswer: self._queue_answer, do.ExplainAnswer: _explain_answer,
        }  # fmt: skip

    def of(self, caller: Caller, answer: do.Answer) -> do.Answer:
        """The answer as this caller may see it."""
        form = self._forms.get(type(answer))
        if form is None or caller.sees_all:
            return answer
        seen: do.Answer = form(caller, answer)
        return seen

    def of_details(self, caller: Caller, details: Mapping[str, Any]) -> Mapping[str, Any]:
        """Of an error; a CONFLICT shows the record that stands."""
        record = details.get("record")
        if not isinstance(record, Record) or caller.sees_all:
            return details
        return {**details, "record": self._record(caller, record)}

    # --- whose it is

    def _sees(self, caller: Caller, tenant: str | None, *names: str) -> bool:
        key = caller.key
        if key is None:
            return True
        if key.name in names or (key.tenant is not None and key.tenant == tenant):
            return True
        orphaned = not any(
            self._gate.knows(name) for name in names
        )  # no key made it, or it is gone
        return orphaned and key.role is Role.REQUESTER and key.tenant is None

    def _record(self, caller: Caller, record: Record) -> Record:
        owner = key_of(record.owner)
        if not self._sees(caller, record.tenant, record.key, owner):
            return replace(record, handle="", block=HIDDEN)
        if record.handle and not self._gate.acts_for(caller, owner or record.key, record.tenant):
            return replace(record, handle="")
        return record

    def _lease(self, caller: Caller, lease: Lease) -> Lease:
        owner = key_of(self._gate.owner_of(lease.id))
        if self._sees(caller, lease.tenant, owner):
            return lease
        return replace(lease, sources=(), doors={}, end_detail="")

    def _queued(self, caller: Caller, view: do.QueuedView) -> do.QueuedView:
        if self._sees(caller, view.request.tenant, key_of(view.session)):
            return view
        return replace(view, session=None, request=replace(view.request, warm_key=None))

    # --- answers

    def _record_answer(self, caller: Caller, answer: do.RecordAnswer) -> do.RecordAnswer:
        if answer.record is None:
            return answer
        return do.RecordAnswer(record=self._record(caller, answer.record))

    def _records_answer(self, caller: Caller, answer: do.RecordsAnswer) -> do.RecordsAnswer:
        return do.RecordsAnswer(records=tuple(self._record(caller, r) for r in answer.records))

    def _leases_answer(self, caller: Caller, answer: do.LeasesAnswer) -> do.LeasesAnswer:
        return replace(answer, leases=tuple(self._lease(caller, one) for one in answer.leases))

    def _lease_answer(self, caller: Caller, answer: do.LeaseAnswer) -> do.LeaseAnswer:
        return do.LeaseAnswer(lease=self._lease(caller, answer.lease))

    def _queue_answer(self, caller: Caller, answer: do.QueueAnswer) -> do.QueueAnswer:
        return replace(answer, queue=tuple(self._queued(caller, one) for one in answer.queue))


def _explain_answer(_: Caller, answer: do.ExplainAnswer) -> do.ExplainAnswer:
    """Whose request it explains does not matter: no largest fit needs the name of data."""
    why = answer.explanation
    if why.largest is None or why.largest.warm_key is None:
        return answer
    largest = replace(why.largest, warm_key=None)
    return replace(answer, explanation=replace(why, largest=largest))
