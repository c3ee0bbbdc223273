"""The place of an attempt: Lambda, the host of its device, AWS Batch or a service. Pure.

For `execution: auto` Lambda is first: it is there at once, and a host's processors serve its
devices. A host runs what Lambda cannot, and what Lambda had too little time for.
"""

from __future__ import annotations

from enum import StrEnum

from contract.states import Reason
from corekit.values import Value
from fdl.model import LAMBDA_MEMORY_MIB_MAX, LAMBDA_TIMEOUT_S_MAX
from orchgpu.core.function import Function

#: Reports of an attempt that Lambda's time was too short for.
OUT_OF_TIME = frozenset({Reason.TIMEOUT, Reason.FUNCTION_TIMEOUT, Reason.CAP})
#: A learned time that takes more of Lambda's limit leaves no room for loading and uploads.
LAMBDA_PART = 0.8
_MIB = 2**20


class Place(StrEnum):
    """The place of an attempt's code."""

    LAMBDA = "lambda"
    HOST = "host"
    BATCH = "batch"
    SERVICE = "service"  #: HTTP, in place of Lambda


class HostFacts(Value):
    """Facts of the scheduler about a function that hosts may run."""

    offered: bool = True  #: whether a host has the programs of its run
    run_s: float | None = None  #: the learned time of its runs, of the slowest model; None = none


class Choice(Value):
    """A place, and the reason for it in one sentence."""

    place: Place
    why: str


def place_of(function: Function, facts: HostFacts, *, size: int, ran_out: bool) -> Choice:
    """The place of a job's next attempt.

    `size`: bytes of its input; `ran_out`: an earlier attempt of it ran out of Lambda's time.
    """
    if function.host is not None and function.host.service:
        return Choice(place=Place.SERVICE, why="it is declared so")
    if function.host is None or function.execution == Place.LAMBDA:
        return Choice(place=Place.LAMBDA, why="it is declared so")
    if function.execution == Place.HOST:
        place = Place.HOST if function.host.batch is None else Place.BATCH
        return Choice(place=place, why="it is declared so")
    if why := _beyond_lambda(function, function.host.storage_mib, size):
        return Choice(place=Place.HOST, why=why)
    why = _too_long(function, facts, ran_out)
    if not why:
        return Choice(place=Place.LAMBDA, why="it fits Lambda")
    if not facts.offered:
        return Choice(place=Place.LAMBDA, why=f"no host offers to run it, although {why}")
    return Choice(place=Place.HOST, why=why)


def _beyond_lambda(function: Function, storage_mib: int, size: int) -> str:
    """Why Lambda can never run it; "" = it can."""
    if function.memory_mib > LAMBDA_MEMORY_MIB_MAX:
        memory = f"{function.memory_mib} MiB of memory"
        return f"it needs {memory}, and Lambda has {LAMBDA_MEMORY_MIB_MAX} MiB"
    if size > storage_mib * _MIB:
        return f"its input has {size / _MIB:.0f} MiB, and Lambda's /tmp {storage_mib} MiB"
    return ""


def _too_long(function: Function, facts: HostFacts, ran_out: bool) -> str:
    """Why it takes too long for Lambda; "" = it does not, as far as is known."""
    if ran_out and function.timeout_s > LAMBDA_TIMEOUT_S_MAX:  # else a host gives it no more
        return f"an earlier attempt ran out of Lambda's {LAMBDA_TIMEOUT_S_MAX} s"
    if facts.run_s is not None and facts.run_s > LAMBDA_PART * LAMBDA_TIMEOUT_S_MAX:
        return f"its runs take {facts.run_s:.0f} s, and Lambda has {LAMBDA_TIMEOUT_S_MAX} s"
    return ""
