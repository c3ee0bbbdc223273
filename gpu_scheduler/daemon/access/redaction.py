"""Redaction of answers: the fields of jobs and leases of others that a caller may not read.

Operators read everything, as does every caller where no keys are required; so do the key that made
or owns a job or lease, and keys bound to its tenant. Other callers get a job without its block
(object names) and receipt handle, a lease without its addresses and its holder's text, a queued
request without its session, warm key and workload, learned times with the published key instead of
the workload, pools without prices and notices (the operator's guards). A receipt handle goes only
to callers that may act for the job, so never to readers. Names of keys, tenants, attempts and jobs
(a hash) are not secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from corekit.values import Value, replace
from gpu_scheduler.daemon.access.authorizer import Authorizer, Caller
from gpu_scheduler.daemon.access.keys import KeyRole
from gpu_scheduler.floors import FloorView
from gpu_scheduler.model import HIDDEN_BLOCK, Lease, Record
from gpu_scheduler.protocol import answers
from gpu_scheduler.protocol.keys import key_of
from gpu_scheduler.protocol.pools import FleetView
from gpu_scheduler.warm import workload_key

#: The part of an answer, or the whole, that a caller may read.
Form = Callable[[Caller, Any], Any]


class Redaction:
    """Removes the fields that a caller may not read; an answer without any is returned as it is."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._forms: Mapping[type[Any], Form] = {
            answers.InventoryAnswer: self._inventory_answer,
            answers.RecordAnswer: self._record_answer,
            answers.RecordsAnswer: _each("records", self._record),
            answers.LeasesAnswer: _each("leases", self._lease),
            answers.LeaseAnswer: self._lease_answer,
            answers.QueueAnswer: _each("queue", self._queued),
            answers.ExplainAnswer: self._explain_answer,
            answers.WorkloadsAnswer: _each("workloads", self._workload),
        }

    def of(self, caller: Caller, answer: Value) -> Value:
        """The answer with the fields that this caller may read."""
        form = self._forms.get(type(answer))
        if form is None or caller.sees_all:
            return answer
        seen: Value = form(caller, answer)
        return seen

    def of_details(self, caller: Caller, details: Mapping[str, object]) -> Mapping[str, object]:
        """The details of an error; those of a CONFLICT hold the current record."""
        record = details.get("record")
        if not isinstance(record, Record) or caller.sees_all:
            return details
        return {**details, "record": self._record(caller, record)}

    def of_record_push(self, caller: Caller, push: answers.RecordPush) -> answers.RecordPush:
        """A push about a record with the fields that this caller may read."""
        if push.record is None or caller.sees_all:
            return push
        return replace(push, record=self._record(caller, push.record))

    # --- ownership

    def _sees(self, caller: Caller, tenant: str | None, *names: str) -> bool:
        key = caller.key
        if key is None:
            return False
        if key.name in names or (key.tenant is not None and key.tenant == tenant):
            return True
        orphaned = not any(self._authorizer.has_key(name) for name in names)  # or made without keys
        return orphaned and key.role is KeyRole.REQUESTER and key.tenant is None

    def _record(self, caller: Caller, record: Record) -> Record:
        owner = key_of(record.owner)
        if not self._sees(caller, record.tenant, record.key, owner):
            leases = tuple(replace(lease, detail="") for lease in record.leases)
            return replace(record, handle="", block=HIDDEN_BLOCK, leases=leases)
        if record.handle and not self._authorizer.acts_for(
            caller, owner or record.key, record.tenant
        ):
            return replace(record, handle="")
        return record

    def _lease(self, caller: Caller, lease: Lease) -> Lease:
        owner = key_of(self._authorizer.owner_of(lease.id))
        if self._sees(caller, lease.tenant, owner):
            return lease
        return replace(lease, sources=(), doors={}, end_detail="")

    def _queued(self, caller: Caller, view: answers.QueuedView) -> answers.QueuedView:
        if self._sees(caller, view.request.tenant, key_of(view.session)):
            return view
        request = replace(view.request, warm_key=None, workload=None)
        return replace(view, session=None, request=request)

    def _workload(self, caller: Caller, view: answers.WorkloadView) -> answers.WorkloadView:
        if self._sees(caller, view.tenant):
            return view
        return replace(view, workload=workload_key(view.tenant, view.workload))

    def _floor(self, caller: Caller, view: FloorView) -> FloorView:
        return view if self._sees(caller, view.tenant) else view.redacted()

    # --- answers

    def _inventory_answer(
        self, caller: Caller, answer: answers.InventoryAnswer
    ) -> answers.InventoryAnswer:
        floors = tuple(self._floor(caller, view) for view in answer.floors)
        if answer.fleet is None:
            return replace(answer, floors=floors) if floors else answer
        pools = tuple(replace(pool, usd_per_h=0.0) for pool in answer.fleet.pools)
        return replace(answer, fleet=FleetView(pools=pools), floors=floors)

    def _record_answer(self, caller: Caller, answer: answers.RecordAnswer) -> answers.RecordAnswer:
        if answer.record is None:
            return answer
        return answers.RecordAnswer(record=self._record(caller, answer.record))

    def _explain_answer(
        self, caller: Caller, answer: answers.ExplainAnswer
    ) -> answers.ExplainAnswer:
        """Without the names of what is loaded, whichever caller's request it explains."""
        why = answer.explanation
        if why.floor is not None:
            why = replace(why, floor=self._floor(caller, why.floor))
        if why.largest is not None and (why.largest.warm_key or why.largest.workload):
            why = replace(why, largest=replace(why.largest, warm_key=None, workload=None))
        return answer if why is answer.explanation else replace(answer, explanation=why)

    def _lease_answer(self, caller: Caller, answer: answers.LeaseAnswer) -> answers.LeaseAnswer:
        return answers.LeaseAnswer(lease=self._lease(caller, answer.lease))


def _each(items: str, form: Form) -> Form:
    def of_answer(caller: Caller, answer: Any) -> Any:
        seen = tuple(form(caller, one) for one in getattr(answer, items))
        return msgspec.structs.replace(answer, **{items: seen})

    return of_answer
