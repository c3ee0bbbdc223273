"""The gateways of hosts, as the orchestrator orders runs of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import TracebackType
from typing import Self

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.model import GrantedLease
from remote_gpu.client.transport.handshake import (
    ANSWER_S,
    errors_as_refusals,
    new_nonce,
    open_connection,
)
from remote_gpu.middleware.rendering import connection
from remote_gpu.wire.connection import Access, parse_access
from remote_gpu.wire.errors import Refusal, Refused, WireError
from remote_gpu.wire.frames import text_field
from remote_gpu.wire.proof import ConnectionRole
from remote_gpu.wire.runs import RUN, RunOrder

#: Orders under way: a host that does not answer holds a thread for seconds.
THREADS_MAX = 32
_CODES: Mapping[str, ErrorCode] = {
    Refusal.UNREACHABLE: ErrorCode.UNAVAILABLE,
    Refusal.TIMEOUT: ErrorCode.TIMEOUT,
    Refusal.NOT_INSTALLED: ErrorCode.UNAVAILABLE,  # its install may be on its way
    Refusal.NOT_READY: ErrorCode.UNAVAILABLE,
    Refusal.BUSY: ErrorCode.EXHAUSTED,
    Refusal.DENIED: ErrorCode.DENIED,
    Refusal.ENDED: ErrorCode.CONFLICT,
}


class GatewayRuns:
    """`RunStarter` over the blocking handshake, as in `remote_gpu.client.aio`."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="orders")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    async def start(self, granted: GrantedLease, order: RunOrder) -> bool:
        access = parse_access(connection("", granted))
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self._ordered, access, order)

    def _ordered(self, access: Access, order: RunOrder) -> bool:
        host = access.hosts[0]
        try:
            with errors_as_refusals(f"gateway {host.gateway} of {host.host}"):
                return _order(access, order, self._answer_s)
        except Refused as refused:
            raise refusal(host.host, refused) from None


def refusal(host: str, refused: Refused) -> AppError:
    """A gateway's refusal as our error."""
    code = _CODES.get(refused.code, ErrorCode.INVALID)
    return AppError(code, f"host {host}: {refused}")


def _order(access: Access, order: RunOrder, answer_s: float) -> bool:
    stream, channel, _ = open_connection(
        access.hosts[0],
        role=ConnectionRole.RUN,
        lease=access.lease,
        fence=access.fence,
        session=new_nonce(),
        timeout_s=answer_s,
    )
    with closing(stream):
        channel.limits = RUN
        channel.send(order.to_meta())
        received = channel.receive()
    if received is None:
        raise Refused(Refusal.UNREACHABLE, "the gateway closed the connection")
    meta = received[1]
    if isinstance(refused := meta.get("refused"), dict):
        raise Refused(text_field(refused, "code", 32), text_field(refused, "message", 1000))
    running = meta.get("running")
    if not isinstance(running, dict):
        raise WireError("the gateway's frame has no 'running'")
    return running.get("new") is True
