"""A local system for benchmarks: started with `orchgpu up`, driven like a user's, stopped after."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import yaml
from botocore.config import Config

from benchmarks.measure import cpu_s


@dataclass(frozen=True)
class System:
    """Where things are, and clients for them."""

    home: Path
    endpoint: str
    scheduler: str
    environment: Mapping[str, str]

    def client(self, service: str) -> Any:
        return boto3.client(service, **self.aws())

    def aws(self) -> dict[str, Any]:
        """The arguments of a client of boto3 or aioboto3."""
        return {
            "endpoint_url": self.endpoint,
            "region_name": "us-east-1",
            "aws_access_key_id": "local",
            "aws_secret_access_key": "local",
            "config": Config(s3={"addressing_style": "path"}, max_pool_connections=200),
        }

    def orchgpu(self, *arguments: str) -> str:
        return orchgpu(self.environment, *arguments)

    def deploy(
        self,
        name: str,
        script: str,
        *,
        memory_mib: int = 0,
        timeout_s: int = 60,
        gpu: Mapping[str, Any] | None = None,
        job: Mapping[str, Any] | None = None,
    ) -> None:
        """One function with a script of its own; `gpu`: its block instead of a part of a CPU;
        `job`: further keys of its block of that name.
        """
        folder = self.home / "functions" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run").write_text(script)
        (folder / "run").chmod(0o755)
        path = {"storage_provider": "s3", "path": f"{name}-in"}
        entry = {
            "lambda": {
                "name": name,
                "memory": 512,
                "timeout": timeout_s,
                "init_script": "run",
                "output": [{"storage_provider": "s3", "path": f"{name}-out"}],
            },
            "gpu": dict(gpu or {"memory": memory_mib, "kinds": ["cpu"]}),
            "job": {"input": [path], **(job or {})},
        }
        (folder / "fdl.yaml").write_text(yaml.safe_dump({"functions": {"aws": [entry]}}))
        self.orchgpu("deploy", str(folder / "fdl.yaml"))

    def orchestrator_cpu_s(self) -> float:
        """The processor time of the orchestrator since it started."""
        system = json.loads((self.home / "system.json").read_text())
        (pid,) = [one["pid"] for one in system["processes"] if one["name"] == "orchestrator"]
        return cpu_s(pid)

    @property
    def orchestrator_log(self) -> Path:
        return self.home / "logs" / "orchestrator.log"

    def own_times_ms(self, mark: int) -> list[float]:
        """`own_ms` of the jobs that have finished since the orchestrator's log had `mark` bytes."""
        with self.orchestrator_log.open() as log:
            log.seek(mark)
            lines = [json.loads(line) for line in log if '"job_finished"' in line]
        return [line["own_ms"] for line in lines]


def orchgpu(environment: Mapping[str, str], *arguments: str) -> str:
    """What a command prints. An exception waits for its end: half a system cannot be stopped."""
    command = [sys.executable, "-m", "orchgpu", *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            out, err = process.communicate()
        except BaseException:
            process.communicate()
            raise
    if process.returncode != 0:
        raise RuntimeError(f"orchgpu {' '.join(arguments)}: {out}{err}")
    return out


@contextmanager
def local_system(*up: str) -> Iterator[System]:
    """Everything `orchgpu up` starts, in a folder of its own; `up`: further words for it."""
    with tempfile.TemporaryDirectory(prefix="orchgpu-bench-") as folder:
        environment = {**os.environ, "ORCHGPU_HOME": folder}
        for name in [n for n in environment if n.startswith(("AWS_", "LOCALSTACK_"))]:
            del environment[name]
        environment["OCL_ICD_VENDORS"] = "/nonexistent"  # the same devices on every machine
        try:
            orchgpu(environment, "up", "--detach", *up)
            system = json.loads((Path(folder) / "system.json").read_text())
            yield System(Path(folder), system["endpoint"], system["scheduler"], environment)
        finally:
            orchgpu(environment, "down")
