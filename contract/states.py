"""The states of a job, the same everywhere, and the closed set of reasons."""

from __future__ import annotations

from enum import StrEnum


class JobState(StrEnum):
    """RECEIVED → WAITING → RESERVED → STAGED → RUNNING → COMMITTED → one of the terminal six."""

    RECEIVED = "RECEIVED"  #: its message is in our hands
    WAITING = "WAITING"  #: an attempt is open, no device yet
    RESERVED = "RESERVED"  #: a lease is granted
    STAGED = "STAGED"  #: the envelope is in the intermediate bucket
    RUNNING = "RUNNING"  #: the function opened its session
    COMMITTED = "COMMITTED"  #: the result exists
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"  #: every attempt failed, or one failed for good
    REJECTED = "REJECTED"  #: refused before any attempt could run
    CANCELLED = "CANCELLED"  #: somebody asked for it
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


class Reason(StrEnum):
    """Why a job is in its state, or why an attempt failed. A closed set."""

    NONE = "NONE"  #: nothing to explain: on its way, or succeeded
    # why it waits
    BUSY = "BUSY"  #: every fitting device is lent
    QUEUED_BEHIND = "QUEUED_BEHIND"  #: earlier or higher-priority requests come first
    QUOTA = "QUOTA"  #: its tenant holds as much as it may
    OUT_OF_SERVICE = "OUT_OF_SERVICE"  #: devices for it are drained, lost or unhealthy
    SCHEDULER_FULL = "SCHEDULER_FULL"  #: as many leases live as may, or its disk is full
    HOST_UNREACHABLE = "HOST_UNREACHABLE"  #: a fitting device exists, its host is silent
    SCHEDULER_UNREACHABLE = "SCHEDULER_UNREACHABLE"
    RETRY_BACKOFF = "RETRY_BACKOFF"  #: an attempt failed, the next starts after a pause
    # why an attempt failed
    EXIT_NONZERO = "EXIT_NONZERO"  #: the user's code said so
    SCRIPT_ERROR = "SCRIPT_ERROR"  #: the user's code could not be started
    TIMEOUT = "TIMEOUT"  #: the user's code was stopped before the function's limit
    KILLED = "KILLED"  #: the user's code died by a signal it did not handle
    OUTPUT_ERROR = "OUTPUT_ERROR"  #: its outputs could not be stored
    INPUT_ERROR = "INPUT_ERROR"  #: the function could not read the input it was given
    FUNCTION_ERROR = "FUNCTION_ERROR"  #: Lambda reports that the function itself failed
    FUNCTION_TIMEOUT = "FUNCTION_TIMEOUT"  #: Lambda ended it at its limit
    FUNCTION_CRASHED = "FUNCTION_CRASHED"  #: the function's process died
    NOT_STARTED = "NOT_STARTED"  #: no session came before connect_by
    SESSION_LOST = "SESSION_LOST"  #: the session fell silent or broke
    CAP = "CAP"  #: the session passed its hard limit
    REVOKED = "REVOKED"  #: an operator or a cancel took the lease away
    HOST_LOST = "HOST_LOST"  #: the GPU host fell silent
    DEVICE_BAD = "DEVICE_BAD"  #: the device failed its health check
    RESERVATION_EXPIRED = "RESERVATION_EXPIRED"  #: granted, but nobody staged in time
    NO_OBJECT = "NO_OBJECT"  #: a foreign function did not write its object while the lease lasted
    STAGING_ERROR = "STAGING_ERROR"  #: its envelope could not be stored
    # why a job ended without success
    REQUEST_REFUSED = "REQUEST_REFUSED"  #: the scheduler says the request is wrong
    BAD_RESULT = "BAD_RESULT"  #: what stands under its result's key is no result
    IMPOSSIBLE = "IMPOSSIBLE"  #: no known device could ever hold the request
    POISON = "POISON"  #: three orchestrators died while packing it
    BAD_EVENT = "BAD_EVENT"  #: the message is no event we can act on
    BAD_KEY = "BAD_KEY"  #: the object key cannot name an input
    UNKNOWN_FUNCTION = "UNKNOWN_FUNCTION"  #: no deployed function belongs to this queue
    INPUT_DELETED = "INPUT_DELETED"
    INPUT_OVERWRITTEN = "INPUT_OVERWRITTEN"
    DEADLINE = "DEADLINE"  #: the job's own deadline passed
    CANCELLED_BY_USER = "CANCELLED_BY_USER"
