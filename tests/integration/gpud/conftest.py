"""A real gpud process and the scheduler's side of its link, played line by line by the test."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from corekit.decode import encode
from corekit.ids import HostId, LeaseId
from gpu_scheduler.floors import HostFloor
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import End, Install, WarmLimits
from remote_gpu.client import Devices, Session, connect
from remote_gpu.wire.connection import SESSION_VARIABLE, Access
from tests.installs import install_of, share_of
from tests.lease_overlaps import read_overlaps

SCALE = 0.1  #: session beat 0.5 s, silence 3 s: loaded cores delay a beat by more than a second
MEMORY_MIB = 1024
WAIT_S = 60.0
#: What the tests of gpud itself need; the others take seconds to load.
OPERATIONS = ("noop", "burn", "sgemm", "onnx")


def over_tcp(session: Session) -> Access:
    """A session's view for a program of another machine: without the host's Unix socket."""
    view = session.view()
    return dataclasses.replace(
        view, hosts=tuple(dataclasses.replace(host, unix="") for host in view.hosts)
    )


def environment_over_tcp(session: Session) -> dict[str, str]:
    return {SESSION_VARIABLE: over_tcp(session).to_json()}


def socket_of(device: Devices) -> socket.socket:
    """Of a lane without TLS, for bytes that no client sends."""
    stream = device[0]._stream
    assert isinstance(stream, socket.socket)
    return stream


def until(ready: Callable[[], object], wait_s: float = WAIT_S) -> None:
    """Poll a condition; the test fails when it is not true in time."""
    deadline_s = time.monotonic() + wait_s
    while not ready():
        assert time.monotonic() < deadline_s, f"not true within {wait_s} s"
        time.sleep(0.005)


def at_once(*acts: Callable[[], object]) -> None:
    """Do all at the same time, each in a thread; returns when all have returned."""
    with ThreadPoolExecutor(len(acts)) as pool:
        for done in [pool.submit(act) for act in acts]:
            done.result()


def relu_model() -> bytes:
    """The ONNX model `y = relu(x)` for float32 vectors of any length, as protobuf by hand."""

    def field(number: int, payload: bytes) -> bytes:
        return bytes([number << 3 | 2, len(payload)]) + payload

    def tensor(name: bytes) -> bytes:
        dimension = field(1, field(2, b"n"))  # TensorShapeProto.dim = {dim_param: "n"}
        kind = field(1, b"\x08\x01" + field(2, dimension))  # elem_type FLOAT, shape
        return field(1, name) + field(2, kind)

    node = field(1, b"x") + field(2, b"y") + field(4, b"Relu")
    graph = field(1, node) + field(2, b"g") + field(11, tensor(b"x")) + field(12, tensor(b"y"))
    return b"\x08\x08" + field(7, graph) + field(8, field(1, b"") + b"\x10\x0d")


class SchedulerSide:
    """Accepts the host's link, acknowledges everything, pushes the messages of a test."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.installs: dict[str, Install] = {}
        self.hellos: queue.Queue[dict[str, Any]] = queue.Queue()
        self.messages: list[tuple[str, dict[str, Any]]] = []  # sessions and cuts, in order
        self.reports: list[dict[str, Any]] = []
        self.warm_limits = WarmLimits()
        self.floors: tuple[HostFloor, ...] = ()
        self.residents: dict[str, dict[str, Any]] = {}  # warm workers, as the host reported them
        #: The warm workers that it knew at each end: "LEASE STATE" → ids.
        self.known_at_end: dict[str, list[str]] = {}
        self._stream: socket.socket | None = None
        self._sending = threading.Lock()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                stream, _ = self.listener.accept()
            except OSError:
                return
            with stream, contextlib.suppress(OSError):
                self._stream = stream
                for line in stream.makefile("rb"):
                    self._answer(stream, json.loads(line))

    def _answer(self, stream: socket.socket, request: dict[str, Any]) -> None:
        number, op = request.pop("id"), request.pop("op")
        answer: dict[str, Any] = {}
        if op == "hello":
            installs = sorted(self.installs.values(), key=lambda one: one.fence)
            answer = {"epoch": 1, "installs": [encode(one) for one in installs]}
            answer["warm"] = encode(self.warm_limits)
            answer["floors"] = encode(self.floors)
            self.residents = {}
            self._apply_residents(request)
            self.hellos.put(request)
        elif op == "report":
            self.reports.append(request)
            self._apply_residents(request)
        else:
            if request.get("state") == "closed":
                self.installs.pop(request["lease"], None)
            if op == "session":
                self.known_at_end[f"{request['lease']} {request['state']}"] = [*self.residents]
            self.messages.append((op, request))
        self._send(stream, {"id": number, "ok": answer})

    def _apply_residents(self, request: dict[str, Any]) -> None:
        for change in request.get("residents", ()):
            found = self.residents | {one["id"]: one for one in change["added"]}
            for name in change["removed"]:
                found.pop(name, None)
            self.residents = found

    def _send(self, stream: socket.socket, value: dict[str, Any]) -> None:
        with self._sending:
            stream.sendall(json.dumps(value).encode() + b"\n")

    def _push(self, value: dict[str, Any]) -> None:
        assert self._stream is not None
        self._send(self._stream, value)

    def install(self, install: Install) -> None:
        self.installs[install.lease] = install
        self._push({"push": "install", "install": encode(install)})

    def end(self, install: Install, reason: EndReason = EndReason.REVOKED) -> None:
        self.installs.pop(install.lease, None)
        end = End(lease=install.lease, fence=install.fence, reason=reason)
        self._push({"push": "end", **encode(end)})

    def staged(self, install: Install, connect_by_s: float) -> None:
        self._push({"push": "staged", "lease": install.lease, "connect_by_s": connect_by_s})

    def preempt(self, install: Install, grace_s: float) -> None:
        self._push({"push": "preempt", "lease": install.lease, "grace_s": grace_s})

    def limit(self, limits: WarmLimits) -> None:
        self.warm_limits = limits
        self._push({"push": "warm_limits", "limits": encode(limits)})

    def keep_warm(self, *floors: HostFloor) -> None:
        self.floors = floors
        self._push({"push": "keep_warm", "floors": encode(floors)})

    def states(self, lease: str) -> list[tuple[str, str | None]]:
        return [
            (f["state"], f["reason"])
            for op, f in self.messages
            if op == "session" and f["lease"] == lease
        ]

    def is_cut(self, lease: str) -> bool:
        return any(op == "cut" and fields["lease"] == lease for op, fields in self.messages)

    def disconnect(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.disconnect()
        self._thread.join()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the newest lines of its gpud's log: why a lease or a worker ended."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, Gpud):
                report.sections.append(("log of gpud", value.newest_lines()))
    return report


class Gpud:
    """The process, and what a test needs to talk to it."""

    def __init__(
        self,
        folder: Path,
        data: dict[str, Path],
        operations: tuple[str, ...] = (),
        middlewares: dict[str, Path] | None = None,
        options: tuple[str, ...] = (),
        prefix: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
    ) -> None:
        """`prefix`: of its command; `variables`: beside those of the tests."""
        self.scheduler = SchedulerSide()
        self.state = folder / "gpu-a"
        self._ready = folder / "ready.json"
        self._log = (folder / "gpud.log").open("wb")
        self._fence = 0
        arguments = [
            "--host-id",
            "gpu-a",
            "--scheduler",
            self.scheduler.address,
            "--no-nvml",
            "--listen",
            "127.0.0.1:0",
            "--state",
            str(self.state),
            "--memory-mib",
            str(MEMORY_MIB),
            "--ready-file",
            str(self._ready),
            "--drain-s=0",
            *options,
        ]
        for name in operations:
            arguments += ["--operation", name]
        for name, path in (middlewares or {}).items():
            arguments += ["--middleware", f"{name}={path}"]
        for name, path in data.items():
            arguments += ["--data", f"{name}={path}"]
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "remote_gpu.host", *arguments],
            env={**os.environ, "ORCHGPU_TIME_SCALE": str(SCALE), **(variables or {})},
            stderr=self._log,
        )
        try:
            until(lambda: self._ready.exists() or self.process.poll() is not None)
            assert self.process.poll() is None, (folder / "gpud.log").read_text()[-3000:]
        except BaseException:
            self.close()
            raise
        self.gateway = json.loads(self._ready.read_text())["gateway"]
        self.hello = self.scheduler.hellos.get(timeout=WAIT_S)
        self.devices = self.hello["devices"]
        self.device = self.devices[0]

    def install(
        self,
        memory_mib: int = 256,
        *,
        exclusive: bool = False,
        guarantee_pct: int = 0,
        limit_pct: int = 100,
        **fields: Any,
    ) -> Install:
        """Grant and push a lease on part of the device."""
        self._fence += 1
        share = share_of(
            self.device["id"],
            host=HostId("gpu-a"),
            model=self.device["model"],
            memory_mib=memory_mib,
            exclusive=exclusive,
            compute_guarantee_pct=guarantee_pct,
            compute_limit_pct=limit_pct,
        )
        named = {"lease": LeaseId(f"lease-{self._fence}"), "secret": secrets.token_hex(32)}
        install = install_of(self._fence, share, **{**named, **fields})
        self.scheduler.install(install)
        return install

    def connection(self, install: Install, **changes: Any) -> dict[str, Any]:
        """What the envelope would hold."""
        device = {"index": 0, "kind": "cpu", "model": "cpu", "memory_mib": 1}
        host = {
            "host": "gpu-a",
            "gateway": self.gateway,
            "secret": install.secret,
            "devices": [device],
        }
        access = {"lease": install.lease, "fence": install.fence}
        for key, value in changes.items():
            (access if key in access else host)[key] = value
        return {"middleware": "builtin", **access, "hosts": [host]}

    def open(self, install: Install, cap_s: float = 60.0, **options: Any) -> Session:
        return Session.open(self.connection(install), cap_s, **options)

    @contextlib.contextmanager
    def lane(self, *given: Any, **fields: Any) -> Iterator[Devices]:
        """A lane of a new lease, which ends with the block."""
        install = self.install(*given, **fields)
        with self.open(install) as session, connect(session.environment()) as device:
            yield device

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.state / "leases.jsonl").read_text().splitlines()]

    def log_s(self, lease: str, event: str) -> float:
        """When the log saw an event of a lease; waits for it."""

        def seen() -> list[float]:
            return [e["at_s"] for e in self.log() if (e["lease"], e["event"]) == (lease, event)]

        until(seen)
        return seen()[0]

    def logged(self, message: str) -> list[dict[str, Any]]:
        """The lines of gpud's own log with that message."""
        lines = Path(self._log.name).read_text().splitlines()
        return [line for line in map(json.loads, lines) if line["message"] == message]

    def newest_lines(self, count: int = 40) -> str:
        """The end of gpud's own log and of its leases' log, for people."""
        files = (Path(self._log.name), self.state / "leases.jsonl")
        ends = [
            "\n".join(file.read_text().splitlines()[-count:]) for file in files if file.exists()
        ]
        return "\n--\n".join(ends)

    def workers(self) -> list[int]:
        """All processes below gpud: the spawner and the workers."""
        return descendants(self.process.pid)

    def survivors(self, pids: list[int]) -> list[int]:
        """Which of these processes still live."""
        return [pid for pid in pids if lives(pid)]

    def check_log(self) -> None:
        lines = (self.state / "leases.jsonl").read_text().splitlines()
        memory_mib = {device["id"]: device["memory_mib"] for device in self.devices}
        assert read_overlaps(lines, memory_mib) == []

    def kill(self) -> None:
        """SIGKILL; gone when this returns."""
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """SIGTERM, exit 0, nothing left; of one that was killed only the test's own side."""
        try:
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGCONT)
                below = self.workers()
                self.process.terminate()
                assert self.process.wait(WAIT_S) == 0, Path(self._log.name).read_text()[-3000:]
                until(lambda: not any(map(lives, below)))
        finally:
            self.kill()
            self.scheduler.close()
            self._log.close()


def lives(pid: int) -> bool:
    """A process that only waits for its new parent to notice its end does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def descendants(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    children = [int(word) for word in text.split()]
    return [*children, *(below for child in children for below in descendants(child))]


@contextlib.contextmanager
def running_gpud(
    folder: Path, *options: str, operations: tuple[str, ...] = ("noop",), **given: Any
) -> Iterator[Gpud]:
    """A process for the length of a block, whose log of leases is checked at its end."""
    gpud = Gpud(folder, given.pop("data", {}), operations, options=options, **given)
    try:
        yield gpud
        gpud.check_log()
    finally:
        gpud.close()


@pytest.fixture(scope="module")
def _gpud_of_this_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    """One process for the tests of a file that do not harm it."""
    with running_gpud(tmp_path_factory.mktemp("gpud"), operations=OPERATIONS) as gpud:
        yield gpud


@pytest.fixture
def shared_gpud(_gpud_of_this_file: Gpud) -> Iterator[Gpud]:
    """That process, with nothing installed and nothing of its clients before and after."""
    with _nothing_left(_gpud_of_this_file):
        yield _gpud_of_this_file
    scheduler = _gpud_of_this_file.scheduler
    for install in list(scheduler.installs.values()):
        scheduler.end(install)
        until(functools.partial(scheduler.is_cut, install.lease))


@pytest.fixture
def own_gpud(tmp_path: Path) -> Iterator[Gpud]:
    """A process for one test that does."""
    gpud = Gpud(tmp_path, {}, OPERATIONS)
    with _nothing_left(gpud):
        yield gpud
    gpud.close()


@contextlib.contextmanager
def _nothing_left(gpud: Gpud) -> Iterator[None]:
    """No socket and no thread of the client stays; the scheduler's side may have reconnected."""
    before, threads = _sockets(gpud), threading.active_count()
    yield
    gc.collect()
    assert _sockets(gpud) <= before
    assert threading.active_count() <= threads, threading.enumerate()


def _sockets(gpud: Gpud) -> set[str]:
    """This process's sockets to the gateway, as /proc names them."""
    port = f":{int(gpud.gateway.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    inodes = {fields[9] for fields in lines if fields[2].endswith(port)}
    own = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(entry.readlink()))
    return {f"socket:[{inode}]" for inode in inodes} & own
