"""The roles of the schedulers of one system: each given address is asked for itself.

A leader answers the hello, a standby refuses it with the leader's address and its own lag.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from enum import StrEnum

from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import Address, parse_addresses
from corekit.values import Value
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.addresses import LEADER, STANDBY
from gpu_scheduler.client.client import new_session
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.codec import (
    HELLO_OLDEST_VERSION,
    LINE_BYTES_MAX,
    VERSION,
    AnswerFrame,
    BrokenFrame,
    hello_line,
    read_answer,
)


class SchedulerRole(StrEnum):
    """The role of one scheduler."""

    LEADER = "LEADER"
    STANDBY = "STANDBY"
    UNKNOWN = "UNKNOWN"  #: it does not answer, or refuses this caller


class SchedulerStatus(Value):
    """One scheduler, as it answered."""

    address: str
    role: SchedulerRole
    epoch: int | None = None  #: of a standby: its leader's
    lag_s: float | None = None  #: of a standby: its state is at most this old
    leader: str | None = None  #: of a standby: the leader that it follows, if it knows one
    problem: str | None = None  #: of UNKNOWN


class SystemStatus(Value):
    """All schedulers of a system, in the order of the addresses."""

    schedulers: tuple[SchedulerStatus, ...]

    @property
    def leader(self) -> SchedulerStatus | None:
        """The one with the newest epoch of those that answer as leaders."""
        leaders = [one for one in self.schedulers if one.role is SchedulerRole.LEADER]
        return max(leaders, key=lambda one: one.epoch or 0, default=None)


async def system_status(addresses: str, access: Access, within_s: float) -> SystemStatus:
    """Ask every address at once. Raises INVALID for a malformed address or CA."""
    tls = access.tls()
    found = (_status(one, access, tls, within_s) for one in parse_addresses(addresses))
    return SystemStatus(schedulers=tuple(await asyncio.gather(*found)))


async def _status(
    address: Address, access: Access, tls: ssl.SSLContext | None, within_s: float
) -> SchedulerStatus:
    name = "{}:{}".format(*address)
    try:
        async with asyncio.timeout(within_s):
            frame = await _hello(address, access, tls)
        if frame.error is not None:
            return _refused(name, frame.error)
        welcome = frame.body.read_known(answers.SessionWelcome)[0]
        return SchedulerStatus(address=name, role=SchedulerRole.LEADER, epoch=welcome.epoch)
    except TimeoutError:
        problem = f"no answer in {within_s:g} s"
    except OSError as error:
        problem = _reason_of(error)
    except AppError as error:
        problem = error.message
    return SchedulerStatus(address=name, role=SchedulerRole.UNKNOWN, problem=problem)


def _reason_of(error: OSError) -> str:
    """The system's own words; asyncio puts the address into them, which stands beside already."""
    if error.errno is None or error.errno <= 0 or isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    return os.strerror(error.errno)


def _refused(name: str, error: AppError) -> SchedulerStatus:
    details = error.details
    if error.code is not ErrorCode.UNAVAILABLE or not details.get(STANDBY):
        return SchedulerStatus(address=name, role=SchedulerRole.UNKNOWN, problem=error.message)
    return SchedulerStatus(
        address=name,
        role=SchedulerRole.STANDBY,
        epoch=int(details.get("epoch", 0)),
        lag_s=float(details.get("lag_s", 0.0)),
        leader=str(details[LEADER]) if details.get(LEADER) else None,
    )


async def _hello(address: Address, access: Access, tls: ssl.SSLContext | None) -> AnswerFrame:
    reader, writer = await asyncio.open_connection(*address, ssl=tls, limit=LINE_BYTES_MAX)
    try:
        session = access.session(new_session())
        hello = ops.Hello(session=session, version=VERSION, oldest_version=HELLO_OLDEST_VERSION)
        writer.write(hello_line(0, "requester", access.key, hello))
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise BrokenFrame("it closed the connection; does only one side speak TLS (--ca)?")
    return read_answer(line)
