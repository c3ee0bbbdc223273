"""A bucket of another account: nothing is read from it, and nothing is written to it.

Two embedded clouds: STS knows the caller's account, and S3 is that of another account, which made
the bucket with the caller's name first.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import boto3
import pytest

from contract.aws.clients import expect_owner
from corekit.errors import AppError, ErrorCode
from fdl.plan.resources import Bucket, DeployTarget, key_of
from lambda_functions.gpu_runner.settings import read_settings
from lambda_functions.gpu_runner.storage.s3 import make_client
from local_cloud.server.application import Options, running
from orchgpu.adapters.aws import commands
from orchgpu.adapters.aws.clients import open_cloud
from orchgpu.adapters.aws.deploy.cloud import AwsCloud
from orchgpu.adapters.aws.endpoints import resolve
from orchgpu.cloud_services import Address
from orchgpu.local.programs import cloud_environment

OURS = DeployTarget(account="000000000000", region="us-east-1")


@asynccontextmanager
async def two_clouds(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    async with (
        running(Options(state=folder / "ours")) as ours,
        running(Options(state=folder / "theirs", account="111111111111")) as theirs,
    ):
        for name, value in cloud_environment(ours.endpoint).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", theirs.endpoint)
        await asyncio.to_thread(_take_name)
        yield


def _take_name() -> None:
    with closing(boto3.client("s3")) as s3:
        s3.create_bucket(Bucket=OURS.state_bucket)
        s3.put_object(Bucket=OURS.state_bucket, Key="functions/f.json", Body=b"{}")
        s3.create_bucket(Bucket="another")


async def orchestrator() -> None:
    async with open_cloud() as ports:
        await ports.store.etags(ports.state_bucket, "functions/")


async def deploy() -> None:
    with closing(AwsCloud(resolve)) as aws:
        await asyncio.to_thread(aws.observe, ["f"], ())


async def command() -> None:
    with closing(commands.connect(Address(), connections=1, within_s=None)) as services:
        bucket = await asyncio.to_thread(lambda: services.state_bucket)
        await asyncio.to_thread(services.read_object, bucket, "functions/f.json")


@pytest.mark.parametrize("work", [orchestrator, deploy, command])
def test_a_bucket_of_another_account_is_refused(
    work: Callable[[], Awaitable[None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with two_clouds(tmp_path, monkeypatch):
            with pytest.raises(AppError) as caught:
                await work()
            assert caught.value.code is ErrorCode.DENIED

    asyncio.run(main())


def _calls() -> None:
    bucket = OURS.state_bucket
    with closing(boto3.client("s3")) as s3:
        expect_owner(s3, {bucket: OURS.account}.get)
        for call in (
            lambda: s3.head_bucket(Bucket=bucket),
            lambda: s3.put_object(Bucket=bucket, Key="k", Body=b""),
            lambda: s3.get_object(Bucket=bucket, Key="functions/f.json"),
            lambda: s3.delete_object(Bucket=bucket, Key="functions/f.json"),
            lambda: list(s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)),
        ):
            with pytest.raises(s3.exceptions.ClientError, match=r"403|AccessDenied"):
                call()
        s3.put_object(Bucket="another", Key="k", Body=b"")  # buckets of users are not checked


def test_every_call_names_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with two_clouds(tmp_path, monkeypatch):
            await asyncio.to_thread(_calls)

    asyncio.run(main())


THEIRS = "111111111111"


def _as_runner(*, declared: bool) -> None:
    """The calls of a function: small and large outputs, inputs."""
    owners = {"another": THEIRS} if declared else {}
    variables = {"ORCHGPU_ACCOUNT": OURS.account, "ORCHGPU_BUCKET_OWNERS": json.dumps(owners)}
    settings = read_settings(variables)
    large, extra = bytes(9 * 2**20), {"Metadata": {"a": "b"}}
    with closing(make_client(settings.account, settings.owners)) as s3:
        calls: list[Callable[[], object]] = [
            lambda: s3.put_object(Bucket="another", Key="k", Body=b""),
            lambda: s3.get_object(Bucket="another", Key="k"),
            lambda: s3.upload_fileobj(io.BytesIO(large), "another", "large", ExtraArgs=extra),
        ]
        for call in calls:
            if declared:
                call()
                continue
            with pytest.raises(Exception, match="AccessDenied"):
                call()


def _as_deployer(*, declared: bool) -> None:
    """The state bucket is the caller's own, as the bucket of the definition may not be."""
    owner = THEIRS if declared else ""
    with closing(AwsCloud(resolve)) as aws:
        aws._foreign[aws.place.state_bucket] = THEIRS
        wanted = Bucket(name="another", owner=owner)
        if declared:
            found = aws.observe(["f"], [wanted]).resources[key_of(wanted)]
            assert isinstance(found, Bucket)
            assert found.owner == THEIRS
            return
        with pytest.raises(AppError, match="belongs to another account than 000000000000"):
            aws.observe(["f"], [wanted])


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("work", [_as_runner, _as_deployer])
def test_a_bucket_of_another_account_must_be_declared(
    work: Callable[..., None], declared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 5: whoever takes a user's bucket name received the inputs or outputs."""

    async def main() -> None:
        async with two_clouds(tmp_path, monkeypatch):
            await asyncio.to_thread(lambda: work(declared=declared))

    asyncio.run(main())


def test_an_orchestrator_expects_the_owners_of_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of an older deploy names none, and its buckets are used as before."""

    async def main() -> None:
        async with two_clouds(tmp_path, monkeypatch), open_cloud() as ports:
            await ports.store.put("another", "k", b"")
            ports.store.expect_owners({"another": OURS.account})
            with pytest.raises(AppError) as caught:
                await ports.store.get("another", "k", bytes_max=1)
            assert caught.value.code is ErrorCode.DENIED
            ports.store.expect_owners({"another": THEIRS})
            assert (await ports.store.get("another", "k", bytes_max=1)).size == 0

    asyncio.run(main())
