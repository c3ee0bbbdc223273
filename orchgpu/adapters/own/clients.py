"""Opens the orchestrator's clients of a cloud of own hosts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NoReturn

from contract.aws.clients import Client
from corekit.errors import invalid
from orchgpu.adapters.aws.clients import CONNECTIONS_MAX, open_client
from orchgpu.adapters.aws.notices import open_notices
from orchgpu.adapters.aws.store import S3Store
from orchgpu.adapters.own.database import conninfo
from orchgpu.adapters.own.queue import open_queue
from orchgpu.adapters.own.settings import place_of, queues_address, store_settings
from orchgpu.ports import CloudPorts

#: The way out of every refusal of what only Lambda has.
USE_HOSTS = "write `execution: host` under `job:`, and deploy again"


@asynccontextmanager
async def open_cloud() -> AsyncIterator[CloudPorts]:
    """The store and the queues, where `settings` finds them.

    Raises AppError when one of them refuses access.
    """
    settings = store_settings()
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(open_queue(conninfo(queues_address())))
        store = await stack.enter_async_context(open_client(settings, CONNECTIONS_MAX))
        yield CloudPorts(
            queue=queue,
            store=OwnStore(store),
            functions=NoFunctions(),
            notices=await stack.enter_async_context(open_notices(_no_service)),
            state_bucket=place_of(settings).state_bucket,
        )


class OwnStore(S3Store):
    """An S3-compatible store. It has no accounts, so no call names the owner of a bucket."""

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        pass


class NoFunctions:
    """`FunctionStarter` of a cloud where jobs run on hosts alone."""

    async def start(self, function: str, payload: str) -> NoReturn:  # noqa: ARG002 - of the port
        raise invalid(f"cloud `own` cannot start the function {function!r}: {USE_HOSTS}")

    async def unreserved(self) -> NoReturn:
        raise invalid("cloud `own` has no functions, and no limit of their concurrency")


async def _no_service(service: str, _region: str | None) -> Client:
    raise invalid(
        f"cloud `own` has no {service}: notify a webhook or a queue, and name secrets `file:PATH`"
    )
