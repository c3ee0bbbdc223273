"""Every engine of logs, each against a server: PostgreSQL, moto's DynamoDB and S3, embedded S3."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import boto3

from gpu_scheduler.daemon.log.port import Log, LogLimits, Snapshot
from gpu_scheduler.daemon.log.registry import open_log, parse_log_address
from tests.postgres_server import postgres_server

CALL_S = 20.0  #: two loaded cores


@dataclass
class EngineUnderTest:
    """One running engine, and addresses that no other test uses."""

    name: str
    address_of: Callable[[str], str]
    #: Variables with which another process reaches it.
    environment: Mapping[str, str] = field(default_factory=dict)
    opened: list[Log] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def fresh(self) -> str:
        """The address of a log that does not exist yet."""
        return self.address_of(f"log_{next(self._numbers)}")

    def open(self, address: str) -> Log:
        """A log, closed after the test."""
        log = open_log(parse_log_address(address), CALL_S)
        self.opened.append(log)
        return log

    def close_all(self) -> None:
        while self.opened:
            self.opened.pop().close()


@contextlib.contextmanager
def _postgres(**options: str) -> Iterator[EngineUnderTest]:
    """`options`: of the server's configuration."""
    with postgres_server(options) as server:
        yield EngineUnderTest("postgres", server.url)


#: The name of a cloud for daemons in network namespaces (tests/integration/failover/networks.py).
_REACHED = ("--allow-host", "198.18.1.1")
#: For clouds that verify no signature.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
_START_S_MAX = 60.0  # two loaded cores


@contextlib.contextmanager
def _with_credentials() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in CREDENTIALS}
    os.environ.update(CREDENTIALS)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def cloud(module: str, *arguments: str) -> Iterator[str]:
    """A cloud as a process; its endpoint."""
    with tempfile.TemporaryDirectory() as name, _with_credentials():
        folder = Path(name)
        ready, given = folder / "ready.json", [one.format(folder=name) for one in arguments]
        command = [sys.executable, "-m", module, "--ready-file", str(ready), *given]
        with (
            (folder / "log").open("wb") as log,
            subprocess.Popen(command, stdout=log, stderr=log) as process,
        ):
            try:
                ends_s = time.monotonic() + _START_S_MAX
                while not ready.exists():
                    assert process.poll() is None, (folder / "log").read_text()
                    assert time.monotonic() < ends_s, "it does not start"
                    time.sleep(0.02)
                yield json.loads(ready.read_text())["endpoint"]
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()


def _aws(name: str, endpoint: str, at: str) -> EngineUnderTest:
    options = f"region=us-east-1&endpoint={endpoint}"
    return EngineUnderTest(name, lambda log: f"{at}/{log}?{options}", CREDENTIALS)


@contextlib.contextmanager
def _s3(name: str, module: str, *arguments: str) -> Iterator[EngineUnderTest]:
    with cloud(module, *arguments) as endpoint:
        s3 = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        s3.create_bucket(Bucket="scheduler-logs")
        s3.close()
        yield _aws(name, endpoint, "s3://scheduler-logs")


@contextlib.contextmanager
def _dynamodb() -> Iterator[EngineUnderTest]:
    with cloud("orchgpu.local.moto", "--one-at-a-time", *_REACHED) as endpoint:
        yield _aws("dynamodb", endpoint, "dynamodb://scheduler-logs")


@contextlib.contextmanager
def _file() -> Iterator[EngineUnderTest]:
    with tempfile.TemporaryDirectory() as folder:
        yield EngineUnderTest("file", lambda log: f"file://{folder}/{log}")


class WrappedLog:
    """A log that passes every call on; tests override some."""

    def __init__(self, log: Log) -> None:
        self.log = log

    @property
    def limits(self) -> LogLimits:
        return self.log.limits

    def put_if_absent(self, seq: int, data: bytes) -> bool:
        return self.log.put_if_absent(seq, data)

    def read(self, from_seq: int) -> Iterator[tuple[int, bytes]]:
        return self.log.read(from_seq)

    def last_seq(self, after: int) -> int:
        return self.log.last_seq(after)

    def trim(self, to_seq: int, keep: Collection[int] = ()) -> None:
        self.log.trim(to_seq, keep)

    def put_snapshot(self, seq: int, data: bytes) -> None:
        self.log.put_snapshot(seq, data)

    def newest_snapshot(self) -> Snapshot | None:
        return self.log.newest_snapshot()

    def newest_snapshot_seq(self) -> int:
        return self.log.newest_snapshot_seq()

    def interrupt(self) -> None:
        self.log.interrupt()

    def close(self) -> None:
        self.log.close()


#: Of benchmarks: here PostgreSQL waits for its disk.
MEASURED: Mapping[str, Callable[[], AbstractContextManager[EngineUnderTest]]] = {
    "postgres": partial(_postgres, fsync="on"),
    "s3": partial(_s3, "s3", "local_cloud.server", "--state", "{folder}/state", *_REACHED),
    "dynamodb": _dynamodb,
}
#: Moto's backends have no locks; AWS's conditional writes are atomic.
#: Name → context manager of a running engine.
ENGINES: Mapping[str, Callable[[], AbstractContextManager[EngineUnderTest]]] = {
    "file": _file,
    "postgres": _postgres,
    "s3": partial(_s3, "s3", "local_cloud.server", "--state", "{folder}/state", *_REACHED),
    "s3_moto": partial(_s3, "s3_moto", "orchgpu.local.moto", "--one-at-a-time", *_REACHED),
    "dynamodb": _dynamodb,
}
