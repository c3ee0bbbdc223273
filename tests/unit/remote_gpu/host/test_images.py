"""Images that are fetched beside each other, by a program in podman's place.

Real podman: `tests/integration/containers`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.script import container
from remote_gpu.host.containers.command import Runtime
from remote_gpu.host.containers.images import RUN_PREFIX, Images
from remote_gpu.host.containers.podman import Podman
from remote_gpu.host.containers.serving import ContainerHost, ContainerLease, RunContainer
from remote_gpu.isolation.apply import Sandbox
from remote_gpu.wire.runs import Package, RunOrder
from tests.leaks import no_task_left

pytestmark = pytest.mark.asyncio

#: It lists what it has pulled; a registry `slow` waits for the file `go`, `lost` keeps nothing.
PROGRAM = """#!/bin/sh
here=$(dirname "$0")
shift 3
case "$1 $3" in
  images*)
    [ -e "$here/broken" ] && echo no JSON && exit
    printf '['; comma=
    for one in "$here"/has-*; do
      [ -e "$one" ] && printf '%s{"Id": "%s", "Size": 10}' "$comma" "${one##*/has-}" && comma=,
    done
    printf ']' ;;
  "pull slow"*)
    echo begun > "$here/begun"
    read -r _ < "$here/go"
    : > "$here/has-slow"
    echo slow ;;
  "pull lost"*) echo lost ;;
  "pull "*) name=${3%%/*}; : > "$here/has-$name"; echo "$name" ;;
  "rmi "*) rm "$here/has-$3" ;;
esac
"""


def named(registry: str) -> str:
    return f"{registry}/program@sha256:{64 * '0'}"


class World:
    """Images of a host with space for two."""

    def __init__(self, place: Path) -> None:
        self.place = place
        program = place / "podman"
        program.write_text(PROGRAM)
        program.chmod(0o700)
        for name in ("begun", "go"):
            os.mkfifo(place / name)
        runtime = self.runtime = Runtime(
            podman=program, version="", store=place / "store", run=place / "run"
        )
        self.podman = Podman(runtime)
        self.images = Images(self.podman, place, space_bytes=20)

    def kept(self) -> set[str]:
        return {one.name.removeprefix("has-") for one in self.place.glob("has-*")}

    @contextlib.asynccontextmanager
    async def slow(self) -> AsyncIterator[asyncio.Task[str]]:
        """The fetch of an image from a registry that answers after the block."""

        async def lent() -> str:
            async with self.images.lent(named("slow")) as image:
                return image

        task = asyncio.create_task(lent())
        await asyncio.to_thread((self.place / "begun").read_bytes)
        try:
            yield task
        finally:
            await asyncio.to_thread((self.place / "go").write_text, "go\n")
            await asyncio.wait({task})


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@no_task_left
async def test_a_slow_registry_holds_up_no_other_image(world: World) -> None:
    async with world.slow() as fetch:
        for name in ("a", "a", "b", "c"):
            async with asyncio.timeout(60), world.images.lent(named(name)) as image:
                assert image == name
        assert world.kept() == {"b", "c"}  # those beyond the space go meanwhile
    assert await fetch == "slow"
    assert world.kept() == {"c", "slow"}


@no_task_left
async def test_an_image_that_is_being_fetched_is_not_evicted(world: World) -> None:
    async with world.slow():
        (world.place / "has-slow").touch()  # podman has it before it returns
        for name in ("a", "b", "c"):
            async with world.images.lent(named(name)):
                assert "slow" in world.kept()


@no_task_left
async def test_an_image_is_fetched_once_for_all_who_wait(world: World) -> None:
    async with world.slow() as fetch:
        second = asyncio.create_task(_lent(world, "slow"))
    assert [await fetch, await second] == ["slow", "slow"]


@no_task_left
async def test_an_image_that_podman_does_not_list_is_unavailable(world: World) -> None:
    with pytest.raises(AppError, match="does not list lost") as refused:
        await _lent(world, "lost")
    assert refused.value.code is ErrorCode.UNAVAILABLE


@no_task_left
async def test_a_run_is_answered_whatever_fails(world: World, tmp_path: Path) -> None:
    (world.place / "broken").touch()
    host = ContainerHost(world.runtime, tmp_path / "containers", space_bytes=20)
    package = Package(bucket="b", key="k", sha256="0")
    order = RunOrder(
        function="f",
        job="j",
        attempt=1,
        event="{}",
        timeout_s=60.0,
        memory_mib=64,
        package=package,
        image=named("a"),
    )
    sandbox = Sandbox(user=-1, group=-1, folder=str(tmp_path / "sandbox"))
    async with Nursery("gpud") as nursery:
        one = RunContainer(host, order, nursery)
        one.enter(ContainerLease(id="lease", sandbox=sandbox))
        try:
            for _ in range(2):
                with pytest.raises(AttemptFailed, match=r"function: .*JSONDecodeError"):
                    await asyncio.to_thread(container.prepare, one.descriptor, 60, _no_download)
        finally:
            await one.close()


def _no_download(bucket: str, key: str) -> Path:
    raise AssertionError(f"s3://{bucket}/{key} was to be downloaded")


@no_task_left
async def test_a_cancelled_copy_of_an_archive_ends(tmp_path: Path) -> None:
    place = tmp_path / "state"
    place.mkdir()
    images = Images(World(tmp_path).podman, place, space_bytes=1 << 40)
    archive = os.memfd_create("archive")
    try:
        os.truncate(archive, 1 << 30)  # a long copy
        reference = f"s3://bucket/image.tar#sha256:{64 * '0'}"
        task = asyncio.create_task(_given(images, reference, archive))
        while not (copies := list(place.glob("*/image.tar"))):
            assert not task.done()
            await asyncio.sleep(0)
        assert copies[0].parent.name.startswith(RUN_PREFIX)  # a new gpud removes it
        task.cancel()
        await asyncio.wait({task})
    finally:
        os.close(archive)
    opened = {os.readlink(f"/proc/self/fd/{one}") for one in _descriptors()}
    assert not [one for one in opened if "image.tar" in one or "archive" in one]
    assert not list(place.iterdir())


def _descriptors() -> list[str]:
    found = os.listdir("/proc/self/fd")
    return [one for one in found if os.path.lexists(f"/proc/self/fd/{one}")]


async def _given(images: Images, reference: str, archive: int) -> None:
    async with images.lent(reference, archive):
        pass


async def _lent(world: World, registry: str) -> str:
    async with world.images.lent(named(registry)) as image:
        return image
