"""Opens the orchestrator's AWS clients once; the only place that makes an aioboto3 session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial

import aioboto3
from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession

from contract.aws.clients import Client, patience
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.api import translated
from orchgpu.adapters.aws.batch import AwsBatch
from orchgpu.adapters.aws.calls import Calls, WatchedSession
from orchgpu.adapters.aws.credentials import StsCredentials
from orchgpu.adapters.aws.endpoints import (
    Clients,
    ClientSettings,
    place_of,
    resolve,
    variables_of,
)
from orchgpu.adapters.aws.lean import make_lean
from orchgpu.adapters.aws.notices import open_notices
from orchgpu.adapters.aws.queue import SqsQueue
from orchgpu.adapters.aws.store import S3Store
from orchgpu.ports import CloudPorts

#: Calls under way to one service, without long polls.
CONNECTIONS_MAX = 200
#: Long polls under way: two for each queue of a thousand functions.
POLLS_MAX = 2000
#: The job machine repeats calls; reads are longer than SQS's longest poll.
_PATIENCE = patience(tries=3, connect_s=5, read_s=30)


@asynccontextmanager
async def open_cloud(endpoint_url: str | None = None) -> AsyncIterator[CloudPorts]:
    """S3, SQS and Lambda, at one URL or where `endpoints` finds them.

    Raises AppError when AWS refuses access.
    """
    async with AsyncExitStack() as stack:

        async def client(
            service: str, connections_max: int = CONNECTIONS_MAX, region: str | None = None
        ) -> Client:
            settings = resolve(service, endpoint_url=endpoint_url, region=region)
            return await stack.enter_async_context(open_client(settings, connections_max))

        async def client_in(service: str, region: str | None) -> Client:
            return await client(service, region=region)

        place = await asyncio.to_thread(_place, endpoint_url)
        s3, sqs = await client("s3"), await client("sqs")
        polls = await client("sqs", POLLS_MAX)  # a visibility beat never waits for a long poll
        store = S3Store(s3)
        store.expect_owners({place.state_bucket: place.account})
        variables = variables_of(resolve("s3", endpoint_url=endpoint_url), place.region)
        yield CloudPorts(
            queue=SqsQueue(sqs, polls),
            store=store,
            functions=LambdaStarter(await client("lambda")),
            notices=await stack.enter_async_context(open_notices(client_in)),
            credentials=StsCredentials(await client("sts"), variables),
            batch=AwsBatch(partial(client, "batch"), variables),
            state_bucket=place.state_bucket,
            account=f"{place.account}/{place.region}",
        )


class LambdaStarter:
    """`FunctionStarter` over one shared client."""

    def __init__(self, client: Client) -> None:
        self._client, self._call = client, Calls(client)

    async def unreserved(self) -> int:
        with translated("lambda:GetAccountSettings"):
            settings = await self._client.get_account_settings()
            return int(settings["AccountLimit"]["UnreservedConcurrentExecutions"])

    async def start(self, function: str, payload: str) -> None:
        event = {
            "FunctionName": function,
            "InvocationType": "Event",
            "Payload": payload.encode(),
        }
        with translated(f"lambda:Invoke {function}"):
            await self._call("Invoke", event)


def _place(endpoint_url: str | None) -> DeployTarget:
    """Asked once, before the other clients are opened, by the calls that commands make."""
    there = partial(resolve, endpoint_url=endpoint_url)
    with closing(Clients(there, **_PATIENCE)) as clients:
        return place_of(clients)


def open_client(settings: ClientSettings, connections_max: int) -> Client:
    """An asynchronous context manager of one service's client."""
    inner = AioSession(settings.session_variables)
    make_lean(inner)
    session = aioboto3.Session(botocore_session=inner, profile_name=settings.profile)
    arguments = settings.client_arguments(
        AioConfig,
        http_session_cls=WatchedSession,
        max_pool_connections=connections_max,
        user_agent="orchgpu",  # botocore would build one for every call: 10 % of its time
        **_PATIENCE,
    )
    return session.client(settings.service, **arguments)
