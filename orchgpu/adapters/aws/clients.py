"""Opens the orchestrator's AWS clients once; the only place that makes an aioboto3 session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aioboto3
from aiobotocore.session import AioSession

from contract.aws.clients import Client, expect_owner, patience, service_descriptions
from corekit.errors import AppError, ErrorCode
from corekit.values import replace
from fdl.plan.resources import DeployTarget
from orchgpu.adapters.aws.endpoints import ClientSettings, resolve
from orchgpu.adapters.aws.errors import translated
from orchgpu.adapters.aws.functions import LambdaStarter
from orchgpu.adapters.aws.queue import SqsQueue
from orchgpu.adapters.aws.store import S3Store
from orchgpu.ports import CloudPorts

#: Calls under way to one service, without long polls.
CONNECTIONS_MAX = 200
#: Long polls under way: two for each queue of a thousand functions.
POLLS_MAX = 2000


@asynccontextmanager
async def open_cloud(endpoint_url: str | None = None) -> AsyncIterator[CloudPorts]:
    """S3, SQS and Lambda, at one URL or where `endpoints` finds them.

    Raises AppError when AWS refuses access.
    """
    async with AsyncExitStack() as stack:

        async def client(service: str, connections_max: int = CONNECTIONS_MAX) -> Client:
            settings = resolve(service, endpoint_url=endpoint_url)
            return await stack.enter_async_context(_client(settings, connections_max))

        sts, s3, sqs = await client("sts"), await client("s3"), await client("sqs")
        polls = await client("sqs", POLLS_MAX)  # a visibility beat never waits for a long poll
        with translated("sts:GetCallerIdentity"):
            identity = await sts.get_caller_identity()
        place = DeployTarget(account=identity["Account"], region=sqs.meta.region_name)
        if not resolve("s3", endpoint_url=endpoint_url).local:
            newer = replace(place, account_regional=True)
            older = not await _is_ours(s3, newer) and await _is_ours(s3, place)
            place = place if older else newer
        store = S3Store(s3)
        store.expect_owners({place.state_bucket: place.account})
        expect_owner(s3, store.owners.get)
        yield CloudPorts(
            queue=SqsQueue(sqs, polls),
            store=store,
            functions=LambdaStarter(await client("lambda")),
            state_bucket=place.state_bucket,
        )


async def _is_ours(s3: Client, place: DeployTarget) -> bool:
    """Whether the account has the state bucket of that name."""
    bucket = place.state_bucket
    try:
        with translated(f"s3:HeadBucket {bucket}"):
            await s3.head_bucket(Bucket=bucket, ExpectedBucketOwner=place.account)
    except AppError as error:
        if error.code in (ErrorCode.NOT_FOUND, ErrorCode.DENIED):
            return False
        raise
    return True


def _client(settings: ClientSettings, connections_max: int) -> Client:
    inner = AioSession(settings.session_variables)
    inner.register_component("data_loader", service_descriptions())
    session = aioboto3.Session(botocore_session=inner, profile_name=settings.profile)
    arguments = settings.client_arguments(
        max_pool_connections=connections_max,
        user_agent="orchgpu",  # botocore would build one for every call: 10 % of its time
        # the job machine repeats; reads are longer than SQS's longest poll
        **patience(tries=3, connect_s=5, read_s=30),
    )
    return session.client(settings.service, **arguments)
