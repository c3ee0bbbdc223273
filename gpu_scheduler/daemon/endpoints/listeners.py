"""The listening sockets of the two endpoints."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_address
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission
from gpu_scheduler.daemon.endpoints.http_endpoint import HttpEndpoint
from gpu_scheduler.daemon.endpoints.http_server import listen
from gpu_scheduler.daemon.settings import DaemonSettings


async def listen_socket(
    connection: Callable[[], asyncio.Protocol],
    settings: DaemonSettings,
    stack: contextlib.AsyncExitStack,
) -> str:
    address = parse_address(settings.listen)
    loop = asyncio.get_running_loop()
    with _listening(settings.listen):
        server = await loop.create_server(connection, *address, ssl=settings.tls)
    stack.callback(server.close)
    return _address_of(server.sockets[0].getsockname())


async def listen_http(
    endpoint: HttpEndpoint,
    settings: DaemonSettings,
    admission: ConnectionAdmission,
    stack: contextlib.AsyncExitStack,
) -> str:
    with _listening(settings.http):
        address = parse_address(settings.http)
        return _address_of(
            await listen(endpoint.application(), *address, settings.tls, admission, stack)
        )


@contextlib.contextmanager
def _listening(address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"cannot listen on {address}: {error.strerror or error}"
        raise AppError(ErrorCode.UNAVAILABLE, text) from None


def _address_of(name: tuple[str, int]) -> str:
    return f"{name[0]}:{name[1]}"
