"""Asynchronous invocation of a function by AWS's documented rules.

An accepted event waits in the function's internal queue. A function error is retried after one and
two minutes, a throttled event with exponential back-off from one second to five minutes, both until
the event is too old; then the failure destination gets a record. Sources: Lambda developer guide,
"Asynchronous invocation", "Configuring error handling" and "Destinations".

One exception: unless `backs_off`, a free slot ends the pause of a throttled event. On AWS it does
not, so that events wait for minutes while slots are free; a machine of one user need not copy that.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from corekit.decode import only_known
from corekit.values import Value
from local_cloud.model.arns import arn_name
from local_cloud.model.errors import refused
from local_cloud.model.json_text import read_json
from local_cloud.model.recorder import NullRecorder, Recorded, Recorder
from local_cloud.model.s3.notifications import iso_time

ERROR_RETRY_S = (60.0, 120.0)  #: before the second and the third try
THROTTLE_BASE_S = 1.0
THROTTLE_S_MAX = 300.0
PAYLOAD_BYTES_MAX = 1_048_576  #: of an asynchronous event (6 MiB synchronously)


class InvokeConfig(Value):
    """PutFunctionEventInvokeConfig, with AWS's defaults."""

    retries_max: int = 2  #: MaximumRetryAttempts, 0…2
    event_age_s_max: float = 21600.0  #: MaximumEventAgeInSeconds, 60…21600
    on_failure: str = ""  #: ARN of a queue or function
    on_success: str = ""

    def changed(self, given: Mapping[str, Any]) -> InvokeConfig:
        """This one with the fields that a call of Lambda's API gives, by AWS's names."""
        destinations = given.get("DestinationConfig")
        arns = {
            name: (destinations or {}).get(name, {}).get("Destination", "")
            for name in ("OnFailure", "OnSuccess")
        }
        return InvokeConfig(
            retries_max=given.get("MaximumRetryAttempts", self.retries_max),
            event_age_s_max=float(given.get("MaximumEventAgeInSeconds", self.event_age_s_max)),
            on_failure=self.on_failure if destinations is None else arns["OnFailure"],
            on_success=self.on_success if destinations is None else arns["OnSuccess"],
        )


class Outcome(Value):
    """The result of one run of a function."""

    payload: str  #: JSON text the function (or the sandbox, for it) answered
    error: str = ""  #: empty, Handled or Unhandled; the X-Amz-Function-Error header
    throttled: bool = False  #: it did not run: no concurrency was left


@dataclass(slots=True, kw_only=True)
class Invocation:
    """One accepted event. Read it freely; only its queue changes it."""

    request_id: str
    payload: str  #: JSON text
    accepted_at_s: float
    runs: int = 0  #: tries that ran
    throttles: int = 0
    due_at_s: float = 0.0
    running: bool = False
    throttled: bool = False  #: it waits because no concurrency was left


_INVOCATION_FIELDS = frozenset(field.name for field in fields(Invocation))
_RECORDED = ("payload", "accepted_at_s", "runs", "throttles", "due_at_s")

#: An event and its condition: Throttled (noted once), EventAgeExceeded, RetriesExhausted.
Note = Callable[[Invocation, str], None]


class DestinationRecord(Value):
    """A record for a destination: send `body` to the queue or function `arn`."""

    arn: str
    body: dict[str, object]


@dataclass(slots=True, kw_only=True)
class InvocationQueue:
    """The internal event queue of one function.

    The owner runs the invocations of `start_due` and reports each result to `ended`; both return
    destination records. `next_due_at_s` is the time of the next call.
    """

    function_arn: str
    recorder: Recorder = field(default_factory=NullRecorder)
    config: InvokeConfig = field(default_factory=InvokeConfig)
    error_retry_s: tuple[float, ...] = ERROR_RETRY_S
    time_scale: float = 1.0  #: of the event age and of every back-off
    held: Callable[[float], bool] = lambda _now_s: False  #: no event can start now
    backs_off: bool = True  #: a throttled event waits for its pause even while slots are free
    note: Note = lambda _invocation, _condition: None  #: called with why an event does not run
    _waiting: list[tuple[float, int, str]] = field(default_factory=list)  #: heap by due time
    _invocations: dict[str, Invocation] = field(default_factory=dict)
    _accepted: int = 0

    def accept(
        self, now_s: float, request_id: str, payload: str, *, arrives_in_s: float = 0.0
    ) -> Invocation:
        """Accept an event, which arrives later by a slow event source: it will run, or its failure
        is recorded.

        Raises RequestEntityTooLargeException. Events delivered twice are two invocations.
        """
        if len(payload.encode()) > PAYLOAD_BYTES_MAX:
            raise refused("RequestEntityTooLargeException", "The event is larger than 1 MiB.")
        invocation = Invocation(
            request_id=request_id, payload=payload, accepted_at_s=now_s + arrives_in_s
        )
        self._invocations[request_id] = invocation
        self._wait(invocation, invocation.accepted_at_s)
        return invocation

    def restore(self, now_s: float, request_id: str, value: Recorded) -> None:
        """Restore a recorded event; one that was running runs again, as after a crash."""
        recorded = only_known(_INVOCATION_FIELDS, value, "invocation")
        invocation = Invocation(request_id=request_id, **recorded)
        self._invocations[request_id] = invocation
        self._wait(invocation, max(now_s, invocation.due_at_s))

    def forget(self) -> None:
        """Drop all events: the function is deleted."""
        for name in list(self._invocations):
            self._forget(name)
        self._waiting.clear()

    def start_due(self, now_s: float) -> tuple[list[Invocation], list[DestinationRecord]]:
        """Invocations to run now, oldest first, and records of expired events."""
        starting: list[Invocation] = []
        records: list[DestinationRecord] = []
        while self._waiting and self._waiting[0][0] <= now_s:
            due_at_s, _, name = heapq.heappop(self._waiting)
            invocation = self._invocations.get(name)
            if invocation is None or invocation.running or invocation.due_at_s != due_at_s:
                continue
            if now_s - invocation.accepted_at_s > self._event_age_s:
                records += self._give_up(now_s, invocation, "EventAgeExceeded", None)
                continue
            if self.held(now_s):
                self._throttle(invocation, now_s)
                continue
            invocation.running, invocation.throttled = True, False
            starting.append(invocation)
        return starting, records

    def ended(self, now_s: float, request_id: str, outcome: Outcome) -> list[DestinationRecord]:
        """Take the result of a run: done, retried later, or given up."""
        invocation = self._invocations.get(request_id)
        if invocation is None:  # the function was deleted while it ran
            return []
        invocation.running = False
        if outcome.throttled:
            invocation.throttled = True
            self._throttle(invocation, now_s)
            return []
        invocation.runs += 1
        if not outcome.error:
            self._forget(request_id)
            return self._record(now_s, invocation, self.config.on_success, "Success", outcome)
        if invocation.runs > self.config.retries_max:
            return self._give_up(now_s, invocation, "RetriesExhausted", outcome)
        delays = self.error_retry_s
        delay_s = delays[min(invocation.runs, len(delays)) - 1] * self.time_scale
        self._wait(invocation, now_s + delay_s)
        return []

    def slot_free(self, now_s: float) -> bool:
        """Concurrency is left again: the oldest throttled event is due. False without one."""
        for invocation in self._invocations.values():  # in the order in which they were accepted
            if invocation.throttled and not self.backs_off:
                invocation.throttled = False
                self._wait(invocation, now_s)
                return True
        return False

    def next_due_at_s(self) -> float | None:
        """Time of the next due invocation, if none is accepted before."""
        return self._waiting[0][0] if self._waiting else None

    def waiting(self) -> int:
        """Number of accepted events that are not finished."""
        return len(self._invocations)

    @property
    def _event_age_s(self) -> float:
        return self.config.event_age_s_max * self.time_scale

    def _throttle(self, invocation: Invocation, now_s: float) -> None:
        delay_s = min(THROTTLE_BASE_S * 2**invocation.throttles, THROTTLE_S_MAX)
        invocation.throttles += 1
        if invocation.throttles == 1:
            self.note(invocation, "Throttled")
        self._wait(invocation, now_s + delay_s * self.time_scale)

    def _wait(self, invocation: Invocation, due_at_s: float) -> None:
        # An event that exceeds its age expires then, even during a longer back-off.
        age_at_s = invocation.accepted_at_s + self._event_age_s + 0.001
        invocation.due_at_s = min(due_at_s, max(age_at_s, invocation.accepted_at_s))
        self._accepted += 1
        heapq.heappush(self._waiting, (invocation.due_at_s, self._accepted, invocation.request_id))
        self.recorder.put(
            self._path(invocation.request_id),
            {name: getattr(invocation, name) for name in _RECORDED},
        )

    def _forget(self, request_id: str) -> None:
        del self._invocations[request_id]
        self.recorder.drop(self._path(request_id))

    def _path(self, request_id: str) -> str:
        return f"invocation/{arn_name(self.function_arn)}/{request_id}"

    def _give_up(
        self, now_s: float, invocation: Invocation, condition: str, outcome: Outcome | None
    ) -> list[DestinationRecord]:
        self._forget(invocation.request_id)
        self.note(invocation, condition)
        return self._record(now_s, invocation, self.config.on_failure, condition, outcome)

    def _record(
        self,
        now_s: float,
        invocation: Invocation,
        arn: str,
        condition: str,
        outcome: Outcome | None,
    ) -> list[DestinationRecord]:
        if not arn:
            return []
        body: dict[str, object] = {
            "version": "1.0",
            "timestamp": iso_time(now_s),
            "requestContext": {
                "requestId": invocation.request_id,
                "functionArn": f"{self.function_arn}:$LATEST",
                "condition": condition,
                "approximateInvokeCount": invocation.runs,
            },
            "requestPayload": _parsed(invocation.payload),
        }
        if outcome is not None:
            context: dict[str, object] = {"statusCode": 200, "executedVersion": "$LATEST"}
            if outcome.error:
                context["functionError"] = outcome.error
            body |= {"responseContext": context, "responsePayload": _parsed(outcome.payload)}
        return [DestinationRecord(arn=arn, body=body)]


def _parsed(text: str) -> object:
    try:
        return read_json(text)
    except ValueError:
        return text
