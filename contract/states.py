"""The states of a job, of a run and of its steps, and the closed set of reasons."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """RECEIVED → WAITING → RESERVED → STAGED → RUNNING → COMMITTED → one of the terminal six.

    A job without a device goes from RECEIVED to STAGED.
    """

    RECEIVED = "RECEIVED"  #: an orchestrator holds its message
    WAITING = "WAITING"  #: an attempt is open, no device yet
    RESERVED = "RESERVED"  #: a lease is granted
    STAGED = "STAGED"  #: the envelope is in the intermediate bucket
    RUNNING = "RUNNING"  #: the function opened its session, or claimed its attempt
    COMMITTED = "COMMITTED"  #: the result exists
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"  #: every attempt failed, or one cannot be retried
    REJECTED = "REJECTED"  #: refused before any attempt could run
    CANCELLED = "CANCELLED"  #: cancelled by a user or operator
    SUPERSEDED = "SUPERSEDED"  #: the input was overwritten before it was read
    INPUT_GONE = "INPUT_GONE"  #: the input was deleted before it was read

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL


_TERMINAL = frozenset(
    {
        JobState.SUCCEEDED,
        JobState.FAILED,
        JobState.REJECTED,
        JobState.CANCELLED,
        JobState.SUPERSEDED,
        JobState.INPUT_GONE,
    }
)


class RunState(StrEnum):
    """RUNNING → one of the terminal five, until a retry begins it again."""

    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"  #: every step is DONE or SKIPPED
    FAILED = "FAILED"  #: a step failed
    CANCELLED = "CANCELLED"  #: by a user: the run, or a job of it
    DEADLINE = "DEADLINE"  #: its workflow's deadline passed
    REJECTED = "REJECTED"  #: its promise was refused, before any step began

    @property
    def terminal(self) -> bool:
        return self is not RunState.RUNNING


class StepState(StrEnum):
    """BLOCKED → READY → STARTED → DONE, FAILED or CANCELLED; or BLOCKED → SKIPPED."""

    BLOCKED = "BLOCKED"  #: a step that feeds it has not ended
    READY = "READY"  #: its jobs can start
    STARTED = "STARTED"  #: its jobs were sent
    DONE = "DONE"  #: all its jobs succeeded
    SKIPPED = "SKIPPED"  #: it got no file of the steps that feed it, or its run was refused
    FAILED = "FAILED"  #: a job of it failed, or its inputs are not valid
    CANCELLED = "CANCELLED"  #: its run ends before it did

    @property
    def terminal(self) -> bool:
        return self not in (StepState.BLOCKED, StepState.READY, StepState.STARTED)


class Reason(StrEnum):
    """The reason for a job's state or an attempt's failure. A closed set."""

    NONE = "NONE"  #: none needed: in progress, or succeeded
    # why it waits
    BUSY = "BUSY"  #: every feasible device is leased
    QUEUED_BEHIND = "QUEUED_BEHIND"  #: earlier or higher-priority requests come first
    AHEAD = "AHEAD"  #: its function waits for a device that an earlier lease still has
    QUOTA = "QUOTA"  #: its tenant's quota is used up
    HELD_BY_POLICY = "HELD_BY_POLICY"  #: the queue policy lets it wait, although devices are free
    OUT_OF_SERVICE = "OUT_OF_SERVICE"  #: devices for it are drained, lost or unhealthy
    SCHEDULER_FULL = "SCHEDULER_FULL"  #: its limit of leases is reached, or its disk is full
    HOST_STARTS = "HOST_STARTS"  #: a host of a pool starts, and is expected before another is free
    HOST_UNREACHABLE = "HOST_UNREACHABLE"  #: a device exists, but its host is not connected
    SCHEDULER_UNREACHABLE = "SCHEDULER_UNREACHABLE"
    CONCURRENCY = "CONCURRENCY"  #: as many jobs of its function run as may at once
    RETRY_BACKOFF = "RETRY_BACKOFF"  #: an attempt failed, the next starts after a pause
    # why an attempt failed
    EXIT_NONZERO = "EXIT_NONZERO"  #: the user's code exited with another status than 0
    SCRIPT_ERROR = "SCRIPT_ERROR"  #: the user's code could not be started
    TIMEOUT = "TIMEOUT"  #: the user's code was stopped before the function's limit
    KILLED = "KILLED"  #: a signal ended the user's code
    OUTPUT_ERROR = "OUTPUT_ERROR"  #: its outputs could not be stored
    INPUT_ERROR = "INPUT_ERROR"  #: the function could not read the input it was given
    SECRET_ERROR = "SECRET_ERROR"  # noqa: S105 #: a secret cannot be read; not tried again
    SECRET_UNAVAILABLE = "SECRET_UNAVAILABLE"  # noqa: S105 #: a store of secrets is unavailable
    FUNCTION_ERROR = "FUNCTION_ERROR"  #: Lambda reports that the function itself failed
    FUNCTION_TIMEOUT = "FUNCTION_TIMEOUT"  #: Lambda ended it at its limit
    FUNCTION_CRASHED = "FUNCTION_CRASHED"  #: the function's process died
    NOT_STARTED = "NOT_STARTED"  #: the function did not start before connect_by
    EVENT_EXPIRED = "EVENT_EXPIRED"  #: Lambda dropped the event that starts it: it was too old
    THROTTLED = "THROTTLED"  #: Lambda started nothing: the concurrency was used up
    START_TIMED_OUT = "START_TIMED_OUT"  #: the function's own start took longer than Lambda allows
    OUT_OF_MEMORY = "OUT_OF_MEMORY"  #: the function needed more memory than it has
    SESSION_LOST = "SESSION_LOST"  #: the session timed out or its connection broke
    CAP = "CAP"  #: the session reached its hard limit
    REVOKED = "REVOKED"  #: an operator, a cancel or its host (too much memory) revoked the lease
    PREEMPTED = "PREEMPTED"  #: its lease ended for a request of higher priority; not counted
    WITHDRAWN = "WITHDRAWN"  #: it waited for a device that did not become free; not counted
    HOST_LOST = "HOST_LOST"  #: the GPU host stopped responding
    NOT_ON_HOST = "NOT_ON_HOST"  #: its host lacks a data set or program; not counted
    DATA_ERROR = "DATA_ERROR"  #: a declared data set is gone, or has changed; not tried again
    DEVICE_BAD = "DEVICE_BAD"  #: the device failed its health check
    RESERVATION_EXPIRED = "RESERVATION_EXPIRED"  #: granted, but not staged in time
    NO_OBJECT = "NO_OBJECT"  #: a foreign function did not write its object during the lease
    STAGING_ERROR = "STAGING_ERROR"  #: its envelope could not be stored
    # why a job ended without success
    REQUEST_REFUSED = "REQUEST_REFUSED"  #: the scheduler rejected the request as not valid
    BAD_RESULT = "BAD_RESULT"  #: the object at its result key is not a result
    IMPOSSIBLE = "IMPOSSIBLE"  #: the request is permanently infeasible
    SLO_IMPOSSIBLE = "SLO_IMPOSSIBLE"  #: no known device meets its objectives
    NO_PROMISES = "NO_PROMISES"  #: the queue policy in force gives no promises
    SLO_BUSY = "SLO_BUSY"  #: devices are booked: no plan meets its objectives now
    POISON = "POISON"  #: four orchestrators ended while packing it, the last one packed it alone
    BAD_EVENT = "BAD_EVENT"  #: the message is not a supported event
    BAD_KEY = "BAD_KEY"  #: the object key is not valid for an input
    UNKNOWN_FUNCTION = "UNKNOWN_FUNCTION"  #: no deployed function belongs to this queue
    INPUT_DELETED = "INPUT_DELETED"
    INPUT_OVERWRITTEN = "INPUT_OVERWRITTEN"
    DEADLINE = "DEADLINE"  #: the job's own deadline passed
    MAX_COST = "MAX_COST"  #: it cost as much as it, or its run, may
    CANCELLED_BY_USER = "CANCELLED_BY_USER"
    RUN_ENDED = "RUN_ENDED"  #: another step of its run failed or was cancelled
    TOO_MANY_FILES = "TOO_MANY_FILES"  #: more files for a step than one step may get
    CONDITION_ERROR = "CONDITION_ERROR"  #: `when` of its input is neither true nor false
