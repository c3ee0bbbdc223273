"""The container of one run: started when the run's own runner asks, and its certain end.

The runner is the tenant's package, without rights on this host. It may say when its container
starts, with which variables and where its output goes; the order of the run, the lease and this
host decide everything else. No path of the runner's is mounted: the container gets the folder that
gpud has made for the run, below a folder in which only gpud can rename.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from corekit.aio.supervise import Nursery, until_first
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.model import Share
from gpu_scheduler.names import archive_of
from remote_gpu.host.containers import probe
from remote_gpu.host.containers.cards import cards
from remote_gpu.host.containers.command import (
    DATA_FOLDER,
    Container,
    Runtime,
    devices_of,
    name_of,
    run_words,
    variables_file,
)
from remote_gpu.host.containers.images import RUN_PREFIX, ArchiveNeeded, Images
from remote_gpu.host.containers.podman import Podman, stopped
from remote_gpu.isolation.apply import Sandbox
from remote_gpu.isolation.removal import remove_tree
from remote_gpu.middleware.base import device_variables
from remote_gpu.wire.containers import (
    DESCRIPTORS,
    MESSAGE_BYTES_MAX,
    Ended,
    Start,
    decoded,
    encoded,
)
from remote_gpu.wire.errors import WireError
from remote_gpu.wire.runs import RunOrder

logger = logging.getLogger(__name__)

FOLDER_NAME = "containers"  #: in the host's state folder
_REMOVE_S, _CALL_S = 60.0, 30.0
#: Between two removals of a container that its podman may not have made yet.
_LEAVE_S, _REMOVALS_MAX = 2.0, 10
#: podman ends a container this much after its run's time, if gpud has died.
_BACKSTOP_S = 30.0
#: Suffix of a run's folder, beside that of its sandbox.
_FOLDER = "-image"
_KILLED = 128 + signal.SIGKILL


class ContainerHost:
    """The containers of this host's runs."""

    def __init__(self, runtime: Runtime, folder: Path, space_bytes: int) -> None:
        """`folder`: of gpud alone, made now; `space_bytes`: for images. Raises OSError."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.runtime = runtime
        self.folder = folder
        self.podman = Podman(runtime)
        self.images = Images(self.podman, folder, space_bytes)

    async def open(self) -> None:
        """Remove what a killed gpud has left: every container of this host's store."""
        ids = (await self.podman.call("ps", "--all", "--quiet", limit_s=_CALL_S)).split()
        for one in ids:
            logger.warning("removing a container of an earlier gpud", extra={"container": one})
            await self.podman.remove(one, _REMOVE_S)
        for left in self.folder.glob(f"{RUN_PREFIX}*"):
            await asyncio.to_thread(remove_tree, left)

    async def close(self) -> None:
        """End the process that podman keeps for its user namespace, where gpud is not root."""
        if self.runtime.rootless:
            try:
                await self.podman.call("system", "migrate", limit_s=_CALL_S)
            except AppError as error:
                logger.warning("podman keeps a process: %s", error.message)


async def open_containers(
    state: Path, space_bytes: int, *, network: bool = False
) -> tuple[ContainerHost | None, str]:
    """This host's containers, or the reason why it has none, which is logged.

    `state`: the host's folder; `space_bytes`: for images, 0 = none are wanted; `network`: whether
    the operator lets images have one, by which they reach the metadata of a cloud machine.
    """
    if not space_bytes:
        return None, "it has no space for them (--images-mib)"
    try:
        folder = state / FOLDER_NAME
        runtime = await probe.find(folder / "store", run_folder(state))
        if not network:
            runtime = replace(runtime, network_refused="start gpud with --images-network")
        host = ContainerHost(runtime, folder, space_bytes)
        await host.open()
    except (AppError, OSError) as error:
        logger.info("no image runs on this host", extra={"event": "containers", "why": str(error)})
        return None, str(error)
    return host, ""


def run_folder(state: Path) -> Path:
    """A folder that the machine empties when it starts, for this host alone."""
    own = os.environ.get("XDG_RUNTIME_DIR") if os.geteuid() else None
    digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
    return Path(own or "/run") / "orchgpu" / f"containers-{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLease:
    """The lease of a run: its container is made from it and the order."""

    id: str
    sandbox: Sandbox
    shares: tuple[Share, ...] = ()
    data: Mapping[str, Path] = field(default_factory=dict)  #: declared data sets


class RunContainer:
    """The container of one run, and the socket by which the run asks for it."""

    def __init__(self, host: ContainerHost, order: RunOrder, nursery: Nursery) -> None:
        """Raises AppError for an order that this host cannot serve, and OSError."""
        archive_of(order.image)
        if order.network and host.runtime.network_refused:
            text = f"images have no network on this host: {host.runtime.network_refused}"
            raise AppError(ErrorCode.UNAVAILABLE, text)
        self._host, self._order, self._nursery = host, order, nursery
        self._lease: ContainerLease | None = None
        self._devices: tuple[str, ...] = ()
        self._control = Path()  #: gpud's own folder of the run, once it is entered
        self._serving: asyncio.Task[None] | None = None
        self._started = False  #: for good
        #: podman, while there may be a container.
        self._process: asyncio.subprocess.Process | None = None
        self._own, self._inner = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._own.setblocking(False)
        #: The run's end of the socket, for its process to inherit.
        self.descriptor = self._inner.fileno()

    def enter(self, lease: ContainerLease) -> Path:
        """Serve the run of a lease; returns its temporary folder, at the same path inside.

        Raises AppError for a device that no container can get, and OSError.
        """
        kinds = {str(share.device): str(share.kind) for share in lease.shares}
        self._devices = devices_of(cards(), kinds)
        self._lease = lease
        self._control = Path(tempfile.mkdtemp(prefix=RUN_PREFIX, dir=self._host.folder))
        self.folder.mkdir(mode=0o700)
        os.chown(self.folder, *_user_of(lease.sandbox))
        self._serving = self._nursery.start(self._serve(), "container")
        return self.folder

    @property
    def lease(self) -> ContainerLease:
        assert self._lease is not None, "the run has its lease"
        return self._lease

    @property
    def folder(self) -> Path:
        """The run's, made by `enter`."""
        return Path(f"{self.lease.sandbox.folder}{_FOLDER}")

    def inherited(self) -> None:
        """The run's process has its end: this one's copy is closed. Idempotent."""
        self._inner.close()

    def abandon(self) -> None:
        """Close what the order of a run that did not start has opened. Idempotent."""
        self._own.close()
        self._inner.close()

    async def _serve(self) -> None:
        """Answer the run until it closes its socket."""
        async with contextlib.AsyncExitStack() as stack:
            image = ""
            while True:
                async with _received(self._own) as (data, descriptors):
                    if not data:
                        return
                    try:
                        message = decoded(data)
                        if "start" in message:
                            await self._start(image, Start.of(message["start"]), descriptors)
                            continue
                        given = descriptors[0] if descriptors else None
                        if not image:
                            lent = self._host.images.lent(self._order.image, given)
                            image = await stack.enter_async_context(lent)
                        answer: dict[str, object] = {}
                    except ArchiveNeeded as needed:
                        answer = {"needs": asdict(needed.archive)}
                    except (AppError, WireError) as error:
                        answer = {"error": str(error)}
                    except Exception as error:  # it waits for an answer
                        logger.exception("a run's container", extra={"lease": self.lease.id})
                        answer = {"error": f"the host failed: {error!r:.300}"}
                    started = len(descriptors) == DESCRIPTORS
                    _answer(descriptors[1] if started else self._own.fileno(), answer)

    async def end(self) -> None:
        """Kill and remove the container; its files stay until `close`. Idempotent."""
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait({self._serving})
        self.abandon()
        await self._remove()

    async def close(self) -> None:
        """Kill and remove the container and its files; nothing is left then. Idempotent."""
        await self.end()
        if self._lease is not None:
            for folder in (self._control, self.folder):
                await asyncio.to_thread(remove_tree, folder)

    async def _start(self, image: str, start: Start, descriptors: list[int]) -> None:
        """Run the container to its end, and report it. Raises AppError, WireError."""
        if len(descriptors) != DESCRIPTORS:
            raise WireError("a start comes with two descriptors")
        if not image or self._started:
            why = "has had its container" if self._started else "has not prepared its image"
            raise WireError(f"the run {why}")
        container = self._container(image, start)
        self._started = True
        output, talk = descriptors
        try:
            words = run_words(self._host.runtime, container)
            process = self._process = await self._host.podman.start(words, output)
            await until_first(process.wait(), self._signals(process, talk))
            status = process.returncode
            ended = Ended() if status is None else await self._ended(status)
        finally:
            await self._remove()
        _answer(talk, asdict(ended))

    async def _remove(self) -> None:
        """Remove the container, so that its podman ends by itself: a killed one leaves mounts."""
        if self._process is None:
            return
        for _ in range(_REMOVALS_MAX):  # it may be about to make the container
            await self._host.podman.remove(name_of(self.lease.id), _REMOVE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S):
                    await self._process.wait()
                    break
        else:
            await stopped(self._process)
            await self._host.podman.remove(name_of(self.lease.id), _REMOVE_S)
        self._process = None

    def _container(self, image: str, start: Start) -> Container:
        data = {"DATA_DIR": DATA_FOLDER} if self.lease.data else {}
        variables = {**data, **start.variables, **device_variables(self.lease.shares)}
        file = self._control / "variables"
        file.touch(mode=0o600)
        file.write_text(variables_file(variables), encoding="utf-8")
        if not Path(start.workdir).is_relative_to(self.folder) or ".." in Path(start.workdir).parts:
            raise invalid(f"{start.workdir} is not below the run's folder")
        user, group = _user_of(self.lease.sandbox)
        return Container(
            lease=self.lease.id,
            image=image,
            user=user,
            group=group,
            folder=self.folder,
            workdir=start.workdir,
            variables=file,
            memory_mib=self._order.memory_mib,
            timeout_s=self._order.timeout_s + _BACKSTOP_S,
            command=self._order.command,
            network=self._order.network,
            devices=self._devices,
            data=self.lease.data,
        )

    async def _signals(self, process: asyncio.subprocess.Process, talk: int) -> None:
        """Pass SIGTERM on to the container until the other end of `talk` is closed.

        By its name: without root, podman's first process ends by SIGTERM at once, with status 0.
        """
        with _seqpacket(talk) as stream:
            while True:
                async with _received(stream) as (data, _):
                    if not data:
                        return
                    if decoded(data).get("signal") != signal.SIGTERM:
                        continue
                name = name_of(self.lease.id)
                try:
                    await self._host.podman.call("kill", "--signal=TERM", name, limit_s=_CALL_S)
                except AppError:  # it is not made yet, or has ended
                    with contextlib.suppress(ProcessLookupError):
                        process.terminate()

    async def _ended(self, status: int) -> Ended:
        """The end of the container, of which podman returned `status`."""
        if status == 0 and not self._host.runtime.rootless:
            return Ended()
        try:
            state = await self._state()
            if state["Running"]:  # its podman got a SIGTERM: of a service, all processes get one
                limit_s = self._order.timeout_s + _BACKSTOP_S
                await self._host.podman.call("wait", name_of(self.lease.id), limit_s=limit_s)
                state = await self._state()
        except AppError:  # podman made none
            return Ended(status=status, error="the container was not made; the log has the reason")
        status = status or int(state["ExitCode"])
        # conmon often misses the kernel's note of it; gpud itself kills no container that runs on
        return Ended(status=status, out_of_memory=bool(state["OOMKilled"]) or status == _KILLED)

    async def _state(self) -> Mapping[str, Any]:
        """podman's view of the container. Raises AppError(UNAVAILABLE)."""
        words = ("container", "inspect", "--format={{json .State}}", name_of(self.lease.id))
        state: dict[str, Any] = json.loads(await self._host.podman.call(*words, limit_s=_CALL_S))
        return state


def _user_of(sandbox: Sandbox) -> tuple[int, int]:
    if sandbox.user < 0:
        return os.geteuid(), os.getegid()
    return sandbox.user, sandbox.group


@contextlib.contextmanager
def _seqpacket(descriptor: int) -> Iterator[socket.socket]:
    """A copy of a descriptor as a socket. Raises WireError if it is none."""
    try:
        stream = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        raise WireError("a start's second descriptor is not a socket") from None
    with stream:
        stream.setblocking(False)
        yield stream


def _answer(descriptor: int, message: Mapping[str, object]) -> None:
    """Send to a run that may be gone, or not listen."""
    with contextlib.suppress(OSError, WireError), _seqpacket(descriptor) as stream:
        stream.send(encoded(message))


@contextlib.asynccontextmanager
async def _received(stream: socket.socket) -> AsyncIterator[tuple[bytes, list[int]]]:
    """The next message, with descriptors that are closed after the block; empty at the end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data, descriptors, flags, _ = socket.recv_fds(
                stream, MESSAGE_BYTES_MAX, DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
            break
        except BlockingIOError:
            readable = loop.create_future()
            loop.add_reader(stream, _set, readable)
            try:
                await readable
            finally:
                loop.remove_reader(stream)
        except ConnectionError:
            data, descriptors, flags = b"", [], 0
            break
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            data = b"{}"
        yield data, list(descriptors)
    finally:
        for one in descriptors:
            os.close(one)


def _set(readable: asyncio.Future[None]) -> None:
    if not readable.done():
        readable.set_result(None)
