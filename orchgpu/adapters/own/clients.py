"""Opens the orchestrator's clients of a cloud of own hosts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial

from contract.aws.clients import Client
from corekit.errors import AppError, ErrorCode, invalid
from corekit.tokens import read_token
from orchgpu.adapters.aws.clients import CONNECTIONS_MAX, open_client
from orchgpu.adapters.aws.endpoints import LOCAL_REGION, ClientSettings, boto3_session
from orchgpu.adapters.aws.notices import open_notices
from orchgpu.adapters.aws.store import S3Store
from orchgpu.adapters.own.database import conninfo
from orchgpu.adapters.own.listener import receiving, token_of
from orchgpu.adapters.own.queue import PostgresQueue, open_queue
from orchgpu.adapters.own.services import open_services
from orchgpu.adapters.own.settings import (
    EVENTS_VARIABLE,
    TOKEN_VARIABLE,
    place_of,
    queues_address,
    store_settings,
)
from orchgpu.ports import CloudPorts, Credentials
from remote_gpu.wire.runs import SERVICES_TOKEN_VARIABLE


@asynccontextmanager
async def open_cloud() -> AsyncIterator[CloudPorts]:
    """The store and the queues, where `settings` finds them.

    Raises AppError when one of them refuses access.
    """
    settings = store_settings()
    async with AsyncExitStack() as stack:
        queue = await stack.enter_async_context(open_queue(conninfo(queues_address())))
        store = await stack.enter_async_context(open_client(settings, CONNECTIONS_MAX))
        address = os.environ.get(EVENTS_VARIABLE)
        yield CloudPorts(
            queue=queue,
            store=OwnStore(store),
            functions=await stack.enter_async_context(open_services(_services_token())),
            notices=await stack.enter_async_context(open_notices(_no_service)),
            credentials=StoreKeys(settings),
            state_bucket=place_of(settings).state_bucket,
            events=partial(_receiving, queue, address) if address else None,
        )


def _receiving(
    queue: PostgresQueue, address: str
) -> AbstractAsyncContextManager[Mapping[str, str]]:
    return receiving(queue, address, token_of(os.environ.get(TOKEN_VARIABLE)))


def _services_token() -> str:
    file = os.environ.get(SERVICES_TOKEN_VARIABLE)
    return read_token(file, SERVICES_TOKEN_VARIABLE) if file else ""


class OwnStore(S3Store):
    """An S3-compatible store. It has no accounts, so no call names the owner of a bucket."""

    def expect_owners(self, owners: Mapping[str, str]) -> None:
        pass


class StoreKeys:
    """`FunctionCredentials` of a store: the orchestrator's own keys, which never end.

    Weaker than a role: a function that runs on a host may use every bucket that they reach.
    """

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings

    async def issue(self, role: str, name: str) -> Credentials:  # noqa: ARG002 - of the port
        keys = await asyncio.to_thread(_keys_of, self._settings)
        region = self._settings.region or LOCAL_REGION
        place = {"AWS_ENDPOINT_URL_S3": self._settings.shown, "AWS_REGION": region}
        return Credentials(variables={**place, "AWS_DEFAULT_REGION": region, **keys}, ends_s=0.0)


def _keys_of(settings: ClientSettings) -> dict[str, str]:
    """The keys, by the variables of every S3 client. Raises DENIED when there are none."""
    known = boto3_session(settings).get_credentials()
    found = None if known is None else known.get_frozen_credentials()
    access, secret = settings.access_key_id, settings.secret_access_key
    if access is None and found is not None:
        access, secret = found.access_key, found.secret_key
    if not access or not secret:
        raise AppError(ErrorCode.DENIED, f"the store at {settings.shown}: no keys are configured")
    return {"AWS_ACCESS_KEY_ID": access, "AWS_SECRET_ACCESS_KEY": secret}


async def _no_service(service: str, _region: str | None) -> Client:
    raise invalid(
        f"cloud `own` has no {service}: notify a webhook or a queue, and name secrets `file:PATH`"
    )
