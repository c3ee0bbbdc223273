"""Real containers of podman, from an image that is compiled here; skipped where there are none."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from corekit.errors import AppError
from gpu_scheduler.model import Share
from lambda_functions.gpu_runner.script import container
from remote_gpu.host.containers import probe
from remote_gpu.host.containers.command import Runtime
from remote_gpu.host.containers.podman import Podman
from remote_gpu.host.containers.serving import ContainerHost, ContainerLease, RunContainer
from remote_gpu.isolation import users
from remote_gpu.isolation.apply import Sandbox
from remote_gpu.isolation.removal import remove_tree
from remote_gpu.wire.runs import Package, RunOrder

SPACE_BYTES = 1 << 28
MEMORY_MIB = 64
#: Of a run: its lease's where gpud is root, else gpud's own.
USER = users.RANGE.start + 7 if os.geteuid() == 0 else os.geteuid()
GROUP = USER if os.geteuid() == 0 else os.getegid()
#: Of the order under test; the images are loaded, not pulled.
NAMED = "registry.example/tests/program@sha256:" + 64 * "0"


@pytest.fixture(scope="session")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    place = tmp_path_factory.mktemp("podman")
    try:
        found = asyncio.run(probe.find(place / "store", place / "run"))
    except AppError as error:
        pytest.skip(f"NOT TESTED: containers; {error.message}")
    yield found
    asyncio.run(ContainerHost(found, place / "host", SPACE_BYTES).close())
    assert not [one for one in _processes() if one.startswith(b"catatonit\0-P")]
    unmount(place)
    for one in (place / "store", place / "run"):
        remove_tree(one)


def unmount(folder: Path) -> None:
    """Unmount what a killed podman has left below a folder, which cannot be removed before."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if Path(at := line.split()[4]).is_relative_to(folder):
            subprocess.run(["umount", "--lazy", at], check=True)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A tar of files with one static program, /program."""
    if shutil.which("gcc") is None:
        pytest.skip("NOT TESTED: containers; no gcc to compile their program")
    program = tmp_path_factory.mktemp("program") / "program"
    source = Path(__file__).with_name("program.c")
    line = ["gcc", "-static", "-O0", "-o", str(program), str(source)]
    made = subprocess.run(line, capture_output=True, check=False)
    if made.returncode:
        pytest.skip("NOT TESTED: containers; gcc makes no static programs here")
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as files:
        files.add(program, "program")
    return held.getvalue()


@pytest.fixture
def image(runtime: Runtime, archive: bytes) -> str:
    """The id of the program's image, which a test may have evicted."""
    called = Podman(runtime).call("import", "--quiet", "-", limit_s=60, given=archive)
    return asyncio.run(called).strip().removeprefix("sha256:")


@pytest.fixture
def archived(hosted: Hosted, tmp_path: Path) -> Path:
    """The program's image as `podman save` writes it."""
    file = tmp_path / "image.tar"
    saved = hosted.host.podman.call("save", "--output", str(file), hosted.image, limit_s=60)
    asyncio.run(saved)
    return file


@dataclass(frozen=True)
class Ran:
    """The end of a run as its client saw it."""

    status: int
    output: str

    @property
    def parts(self) -> list[str]:
        """The output of each of the program's commands."""
        return self.output.split(",\n")[:-1]


class Hosted:
    """A host's containers, with the program's image."""

    def __init__(self, host: ContainerHost, image: str, place: Path) -> None:
        self.host, self.image = host, image
        self.place = place
        self.lease = "lease-1"

    def order(self, *words: str, **changes: object) -> RunOrder:
        fields: dict[str, object] = {
            "function": "f",
            "job": "j",
            "attempt": 1,
            "event": "{}",
            "timeout_s": 60.0,
            "memory_mib": MEMORY_MIB,
            "package": Package(bucket="b", key="k", sha256="0"),
            "image": NAMED,
            "command": ("/program", *words),
        }
        return RunOrder(**{**fields, **changes})  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def run(
        self, order: RunOrder, *shares: Share, **data: Path
    ) -> AsyncIterator[RunContainer]:
        """The container of a run with data sets, served; nothing is left after the block."""
        folder = self.place / "sandbox"
        user, group = (USER, GROUP) if os.geteuid() == 0 else (-1, -1)
        sandbox = Sandbox(user=user, group=group, folder=str(folder))
        async with Nursery("gpud") as nursery:
            one = RunContainer(self.host, order, nursery)
            one.enter(ContainerLease(id=self.lease, sandbox=sandbox, shares=shares, data=data))
            try:
                yield one
            finally:
                await one.close()
            assert not one.folder.exists()
        await self.nothing_left()

    async def nothing_left(self) -> None:
        """No container, mount, cgroup or process of one."""
        assert await self.containers() == []
        assert not await asyncio.to_thread(_left, self.host.runtime)

    async def containers(self) -> list[str]:
        listed = await self.host.podman.call("ps", "--all", "--format=json", limit_s=30)
        return [name for one in json.loads(listed) for name in one["Names"]]

    async def started(
        self, one: RunContainer, variables: Mapping[str, str] | None = None
    ) -> asyncio.subprocess.Process:
        """The runner's client, which stands for the container."""
        given = os.memfd_create("variables")
        os.write(given, json.dumps(dict(variables or {})).encode())
        os.lseek(given, 0, os.SEEK_SET)
        try:
            return await asyncio.create_subprocess_exec(
                *container.command(one.descriptor),
                str(given),
                pass_fds=(one.descriptor, given),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=one.folder,
                env={"PYTHONPATH": ":".join(sys.path), "PATH": os.environ["PATH"]},
            )
        finally:
            os.close(given)

    async def ran(self, *words: str, **changes: object) -> Ran:
        """The program with these words, to its end."""
        return await self.ran_of(self.order(*words, **changes))

    async def ran_of(self, order: RunOrder) -> Ran:
        async with self.run(order) as one:
            return await self.whole(one)

    def again(self) -> Hosted:
        """A gpud that begins now, with this environment."""
        folder = self.host.folder.with_name("again")
        return Hosted(ContainerHost(self.host.runtime, folder, SPACE_BYTES), self.image, self.place)

    async def whole(self, one: RunContainer, variables: Mapping[str, str] | None = None) -> Ran:
        await asyncio.to_thread(container.prepare, one.descriptor, 60, _no_download)
        process = await self.started(one, variables)
        output, _ = await process.communicate()
        assert process.returncode is not None
        return Ran(process.returncode, output.decode())


def _no_download(bucket: str, key: str) -> Path:
    raise AssertionError(f"s3://{bucket}/{key} was to be downloaded")


def _left(runtime: Runtime) -> list[str]:
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    store = (str(runtime.store), str(runtime.run))
    found = [line for line in mounts if any(one in line for one in store)]
    found += [str(one) for one in Path("/sys/fs/cgroup").glob("**/libpod-*")]
    mine = os.geteuid() == USER  # so are other processes
    began = (b"/program", b"/run/podman-init") if mine else b""
    return found + [line.decode() for line in _processes() if line.startswith(began)]


def _processes() -> list[bytes]:
    """The command lines of all processes of the runs' user."""
    found = []
    for one in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if one.stat().st_uid == USER:
                found.append((one / "cmdline").read_bytes())
    return found


@pytest.fixture
def hosted(runtime: Runtime, image: str, tmp_path: Path) -> Hosted:
    """A host's containers, whose record has the program's image under the name `NAMED`."""
    host = ContainerHost(runtime, tmp_path / "containers", SPACE_BYTES)
    host.images.note(NAMED, image)
    return Hosted(host, image, tmp_path)
