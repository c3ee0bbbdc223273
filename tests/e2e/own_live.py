"""A whole system of real processes on a cloud of own hosts: SeaweedFS, PostgreSQL, no Lambda."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from corekit.values import replace
from orchgpu.adapters.own.database import Database, conninfo
from orchgpu.adapters.own.tables import Queues
from orchgpu.local.programs import HOSTS, OWN, Programs, cloud_environment, key_pair, queues_of
from tests.e2e.live import Live
from tests.own_cloud import needs_own_cloud

SERVERS = ("cloud", "database")


@dataclass
class OwnLive(Live):
    """`Live` on own hosts. `scale`: of its times: a runner of a host, and a store, need
    seconds to start."""

    scale: str = "0.25"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._settings = replace(self._settings, cloud=OWN)
        self._base["ORCHGPU_TIME_SCALE"] = self.scale
        self._programs = Programs(self._settings, self.home, self._base)

    def start_all(self, *, orchestrators: Sequence[str] = ("orchestrator",)) -> None:
        self.start_together(*SERVERS, "scheduler")
        self.start_together(*HOSTS)
        for name in orchestrators:
            self.start(name, "orchestrator")

    def kill(self, name: str) -> None:
        """SIGKILL to a server and to the program that started it."""
        if name not in SERVERS:
            super().kill(name)
            return
        os.killpg(self.children[name].pid, signal.SIGKILL)
        self.wait(name)

    @property
    def environment(self) -> dict[str, str]:
        keys, queues = key_pair(self.ready), queues_of(self.ready)
        return {
            **super().environment,
            **cloud_environment(self.endpoint, keys, queues),
            "AWS_ENDPOINT_URL": "",
            "ORCHGPU_TIME_SCALE": self.scale,
        }

    def client(self, service: str) -> Any:
        assert service == "s3", "there is nothing else of AWS"
        access, secret = key_pair(self.ready)
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            config=Config(
                retries={"mode": "standard", "max_attempts": 10}, s3={"addressing_style": "path"}
            ),
        )

    def messages(self, function: str, queue: str = "jobs") -> int:
        with closing(Database(conninfo(queues_of(self.ready)))) as database:
            return Queues(database).count(f"{function}-{queue}").all

    def stop_all(self) -> None:
        database = self.children.pop("database", None)
        super().stop_all()
        if database is not None:
            database.terminate()
            database.wait(60)


def definition(
    name: str, script: str, *, device: bool = True, place: str = "execution: host"
) -> str:
    """A function whose jobs run on a host, or at another place."""
    gpu = "{memory: 64, kinds: [cpu]}" if device else "none"
    return f"""\
functions:
  aws:
  - lambda:
      name: {name}
      memory: 256
      timeout: 60
      init_script: {script}
      output: [{{storage_provider: s3, path: {name}-out}}]
    {place}
    gpu: {gpu}
    job: {{attempts: 10, input: [{{storage_provider: s3, path: {name}-in}}]}}
"""


@contextmanager
def own_live(path: Path, **settings: Any) -> Iterator[OwnLive]:
    """A system whose processes end with the block, whatever happens in it."""
    needs_own_cloud()
    live = OwnLive(path, **settings)
    try:
        yield live
    finally:
        live.stop_all()
