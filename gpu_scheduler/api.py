"""The public names for plug-ins: queue policies (`orchgpu.policies`), log engines (`orchgpu.logs`).

Other modules of this package may move; these names stay.
"""

from gpu_scheduler.core.policies import FIRST_FIT_COST, GROUPS_COST, LARGE
from gpu_scheduler.core.queue.booked_service import BookingPolicy
from gpu_scheduler.core.queue.bookings import job_of
from gpu_scheduler.core.queue.ordering import OrderingPolicy
from gpu_scheduler.core.queue.policy import (
    MEMORY_CHARS_MAX,
    MEMORY_MAX,
    Admission,
    Choice,
    Declaration,
    HeldReason,
    Pause,
    Policy,
    PromiseAsked,
)
from gpu_scheduler.core.queue.promising import Promising
from gpu_scheduler.core.queue.view import Values, View
from gpu_scheduler.core.state.waiting_queue import FirstByClass
from gpu_scheduler.daemon.log.port import Log, LogAddress, LogEngine, LogLimits, Snapshot
from gpu_scheduler.daemon.log.registry import only_options
from gpu_scheduler.policy_parameters import PolicyParameter
from gpu_scheduler.protocol.changes import Scalar, Waiting

__all__ = [
    "FIRST_FIT_COST",
    "GROUPS_COST",
    "LARGE",
    "MEMORY_CHARS_MAX",
    "MEMORY_MAX",
    "Admission",
    "BookingPolicy",
    "Choice",
    "Declaration",
    "FirstByClass",
    "HeldReason",
    "Log",
    "LogAddress",
    "LogEngine",
    "LogLimits",
    "OrderingPolicy",
    "Pause",
    "Policy",
    "PolicyParameter",
    "PromiseAsked",
    "Promising",
    "Scalar",
    "Snapshot",
    "Values",
    "View",
    "Waiting",
    "job_of",
    "only_options",
]
