"""The scheduler that jobs are followed at: its address, and one request to it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from corekit.aio.environment import budget_from_environment
from corekit.errors import AppError, ErrorCode, invalid
from corekit.net.addresses import parse_addresses
from gpu_scheduler.client import SchedulerClient
from orchgpu.cloud_services import Address
from orchgpu.jobs.stack import stack_scheduler
from orchgpu.local.home import default_home
from orchgpu.local.system import SCHEDULER_VARIABLE

T = TypeVar("T")

#: A person waits for the answer; a restarting scheduler is back sooner.
ANSWER_WITHIN_S = 5.0
#: Codes of a scheduler that is down or not reachable: the cloud's records can still be shown.
NO_ANSWER = (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)
#: That of the environment.
DEFAULT_CLOUD = Address()
#: "address:port[,…]" of the schedulers' HTTP endpoints.
HTTP_VARIABLE = "ORCHGPU_SCHEDULER_HTTP"


def scheduler_address(given: str | None, cloud: Address = DEFAULT_CLOUD) -> str:
    """The scheduler to ask: the option, the variable, the local system, the stack's in this cloud.

    Raises UNAVAILABLE when there is none, or the stack's cannot be used from here.
    """
    address = given or os.environ.get(SCHEDULER_VARIABLE)
    if not address:
        system = default_home().read_system()
        found = stack_scheduler(cloud) if system is None else system.scheduler
        if found is None:
            raise AppError(
                ErrorCode.UNAVAILABLE,
                f"no scheduler is known: start a local system with `orchgpu up`, or give "
                f"--scheduler or {SCHEDULER_VARIABLE}",
            )
        return found
    try:
        ports = [port for _, port in parse_addresses(address)]
    except AppError as error:
        raise invalid(f"--scheduler: {error.message}") from None
    if 0 in ports:
        raise invalid(f"--scheduler {address!r} is not an address to connect to: its port is 0")
    return address


def events_of(scheduler: str | None, http: str | None) -> str | None:
    """The HTTP endpoints of `scheduler_address(scheduler)`, for its event stream; None: unknown.

    The option, the variable unless the scheduler was given by the option, the local system's.
    Raises INVALID for a wrong address.
    """
    found = http or (None if scheduler else os.environ.get(HTTP_VARIABLE))
    if found:
        try:
            parse_addresses(found)
        except AppError as error:
            given = "--scheduler-http" if http else HTTP_VARIABLE
            raise invalid(f"{given}: {error.message}") from None
        return found
    system = default_home().read_system()
    if system is None or system.scheduler != scheduler_address(scheduler):
        return None
    return system.scheduler_http


def scheduler_or_none(given: str | None, cloud: Address = DEFAULT_CLOUD) -> str | None:
    """`scheduler_address`, or None where only the cloud can be reached."""
    try:
        return scheduler_address(given, cloud)
    except AppError as error:
        if error.code is not ErrorCode.UNAVAILABLE:
            raise
        return None


def ask(
    address: str,
    question: Callable[[SchedulerClient], Awaitable[T]],
    *,
    within_s: float | None = None,
) -> T:
    """One connection, one request. Raises the scheduler's error, or UNAVAILABLE.

    `within_s` is for the connection and again for each call. [default: `ANSWER_WITHIN_S`]
    """
    limit_s = ANSWER_WITHIN_S if within_s is None else within_s

    async def asked() -> T:
        budget = budget_from_environment()
        async with SchedulerClient(address, budget=budget, deadline_s=limit_s) as client:
            await client.wait_connected(limit_s)
            return await question(client)

    return asyncio.run(asked())


def answering_scheduler(
    given: str | None, notice: Callable[[str], None], cloud: Address = DEFAULT_CLOUD
) -> str | None:
    """The scheduler to follow jobs; None, with a notice, where none can be used from here: results
    show the end as well.

    Raises UNAVAILABLE when a configured one does not answer: nothing is uploaded then.
    """
    try:
        address = scheduler_address(given, cloud)
    except AppError as error:
        if error.code not in (ErrorCode.UNAVAILABLE, ErrorCode.NOT_FOUND):  # of a stack
            raise
        notice(f"jobs are followed by their results: {error.message}")
        return None

    async def nothing(_client: SchedulerClient) -> None:
        """Do nothing: the connection itself is the check."""

    ask(address, nothing)
    return address
