"""A whole system of real processes for end-to-end tests: any of them can be killed or stopped.

Times run at 1/20. Programs are built by `orchgpu.local.programs`, exactly as `orchgpu up` does;
here the test is their supervisor, so that it can be as cruel as it likes.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import boto3
from botocore.config import Config

from contract.keys import job_id, report_key, result_key
from contract.result import Report, Result
from orchgpu.local.home import Home
from orchgpu.local.ports import fixed_address
from orchgpu.local.programs import (
    HOSTS,
    LocalSettings,
    Programs,
    base_environment,
    cloud_environment,
    key_pair,
)
from tests.warm_commands import command
from tests.weather import chosen

ROOT = Path(__file__).resolve().parents[2]
SCALE = "0.05"
READY_S = 60.0  #: two cores, loaded
T = TypeVar("T")


def until(
    what: str, look: Callable[[], T | None], within_s: float = 90.0, *, weather: bool = False
) -> T:
    """Poll until `look` returns a true value; fails with the name of the condition."""
    pause_s = 0.2 if weather or chosen() else 0.02  # in weather S3 refuses a reader in haste
    deadline_s = time.monotonic() + within_s
    while time.monotonic() < deadline_s:
        found = look()
        if found:
            return found
        time.sleep(pause_s)
    raise AssertionError(f"{what} did not come within {within_s:.0f} s")


@dataclass
class Live:
    """Processes by name; `start`, `kill`, `pause`, `resume` and `stop` them at will."""

    path: Path
    data: Mapping[str, Path] = field(default_factory=dict)
    weather: str | None = None  #: of its cloud; None = that of the option --weather
    host_options: Sequence[str] = ("--operation", "noop")  #: the others take seconds to load
    own_host_options: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: of one host
    scale: str = SCALE  #: of its times
    verified: bool = False  #: its cloud verifies signatures
    warm_commands: bool = True  #: each is a fork, not a start of Python
    children: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ready: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = Home(self.path / "home")
        self.home.create()
        cores = tuple(sorted(os.sched_getaffinity(0)))
        weather = chosen() if self.weather is None else self.weather
        data = {name: str(path) for name, path in self.data.items()}
        settings = LocalSettings(
            cores=cores,
            host_memory_mib=2048,
            data=data,
            weather=weather,
            verify_signatures=self.verified,
        )
        outer = {**os.environ, "ORCHGPU_TIME_SCALE": self.scale}
        self._settings = settings
        self._base = base_environment(outer, self.home, ROOT)
        self._programs = Programs(settings, self.home, self._base)
        self._addresses: dict[str, dict[str, str]] = {}

    # ------------------------------------------------------------------ processes

    def add_environment(self, variables: Mapping[str, str]) -> None:
        """Variables of the programs that are started from now on."""
        self._programs = Programs(self._settings, self.home, {**self._base, **variables})

    def start(self, name: str, kind: str | None = None, command: Sequence[str] = ()) -> None:
        """Start a program and wait until it is ready. `kind` is what it is, when named otherwise;
        `command` replaces `python -m orchgpu orchestrate` (a crashing orchestrator)."""
        self._spawn(name, kind or name, command)
        self._await(name)

    def start_together(self, *names: str) -> None:
        """Programs that do not need each other."""
        for name in names:
            self._spawn(name, name)
        for name in names:
            self._await(name)

    def _spawn(self, name: str, kind: str, command: Sequence[str] = ()) -> None:
        program = self._programs.program(kind, self.ready)
        self._ready_file(name).unlink(missing_ok=True)
        arguments = [*program.command[:-1], str(self._ready_file(name))]
        if command:
            arguments = [*command, *arguments[arguments.index("--scheduler") :]]
        if kind in HOSTS:
            arguments += [*self.host_options, *self.own_host_options.get(kind, ())]
        arguments = self._with_addresses(name, arguments)
        with (self.home.logs / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(
                arguments,
                env=dict(program.environment),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.children[name] = child

    def _await(self, name: str) -> None:
        def is_ready() -> bool:
            dead = self.children[name].poll() is not None
            assert not dead, f"{name} died at start:\n{self.log(name)[-3000:]}"
            return self._ready_file(name).exists()

        until(f"{name} ready", is_ready, READY_S)
        self.ready[name] = json.loads(self._ready_file(name).read_text())

    def _ready_file(self, name: str) -> Path:
        return self.home.ready / f"{name}.json"

    def _with_addresses(self, name: str, arguments: list[str]) -> list[str]:
        """A restarted program listens where it listened before: others know it by that."""
        addresses = self._addresses.setdefault(name, {})
        for flag in {"--http", "--metrics", "--listen"}.intersection(arguments):
            if flag not in addresses:
                addresses[flag] = fixed_address()
            arguments[arguments.index(flag) + 1] = addresses[flag]
        return arguments

    def start_all(self, *, orchestrators: Sequence[str] = ("orchestrator",)) -> None:
        self.start_together("cloud", "scheduler")
        self.start_together(*HOSTS)
        for name in orchestrators:
            self.start(name, "orchestrator")

    def signal(self, name: str, number: signal.Signals) -> None:
        self.children[name].send_signal(number)

    def kill(self, name: str) -> None:
        self.signal(name, signal.SIGKILL)
        self.wait(name)

    def wait(self, name: str, within_s: float = 60.0) -> int:
        return self.children.pop(name).wait(within_s)

    def terminate(self, name: str, within_s: float = 60.0) -> int:
        self.signal(name, signal.SIGTERM)
        return self.wait(name, within_s)

    def stop_all(self) -> None:
        """In order; what does not stop by itself is killed and the test fails."""
        last = (*HOSTS, "scheduler", "cloud")
        stubborn = []
        for name in [*(n for n in self.children if n not in last), *last]:
            child = self.children.pop(name, None)
            if child is None:
                continue
            child.send_signal(signal.SIGCONT)
            child.terminate()
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                stubborn.append(name)
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        assert not stubborn, f"did not stop on SIGTERM: {stubborn}"

    def log(self, name: str) -> str:
        return (self.home.logs / f"{name}.log").read_text(errors="replace")

    # ------------------------------------------------------------------ cloud

    @property
    def endpoint(self) -> str:
        return str(self.ready["cloud"]["endpoint"])

    @property
    def environment(self) -> dict[str, str]:
        """For commands run as a user would."""
        return {
            **os.environ,
            **cloud_environment(self.endpoint, key_pair(self.ready)),
            "ORCHGPU_TIME_SCALE": self.scale,
            "ORCHGPU_SCHEDULER": str(self.ready["scheduler"]["socket"]),
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', ROOT)}",
        }

    def client(self, service: str) -> Any:
        access, secret = key_pair(self.ready)
        client = boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=access or "local",
            aws_secret_access_key=secret or "local",
            config=Config(
                retries={"mode": "standard", "max_attempts": 6 if chosen() or self.weather else 2},
                s3={"addressing_style": "path"},
            ),
        )
        if not (chosen() or self.weather):
            return client
        if service == "s3":
            for operation in ("GetObject", "HeadObject"):
                client.meta.events.register(f"needs-retry.s3.{operation}", _repeated_404)
        client.meta.events.register(f"needs-retry.{service}", _repeated_conflict)
        return client

    def orchgpu(self, *arguments: str, status: int = 0) -> str:
        start = command("orchgpu") if self.warm_commands else (sys.executable, "-m", "orchgpu")
        done = subprocess.run(
            [*start, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.path,
        )
        assert done.returncode == status, f"{arguments}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def deploy(self, functions: Mapping[str, FunctionSpec], *options: str) -> None:
        """Write one FDL with all functions and deploy it."""
        import yaml

        folder = self.path / "fdl"
        folder.mkdir(exist_ok=True)
        entries = []
        for name, spec in functions.items():
            script = folder / f"{name}{'.py' if 'python' in spec.script[:40] else '.sh'}"
            script.write_text(spec.script)
            script.chmod(0o755)
            entries.append(spec.entry(name, script.name))
        (folder / "fdl.yaml").write_text(yaml.safe_dump({"functions": {"aws": entries}}))
        self.orchgpu("deploy", str(folder / "fdl.yaml"), *options)

    def deploy_text(self, name: str, text: str, files: Mapping[str, str]) -> None:
        """One definition as it is written, with the files beside it."""
        folder = self.path / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_text(content)
        (folder / "fdl.yaml").write_text(text)
        self.orchgpu("deploy", str(folder / "fdl.yaml"))

    # ------------------------------------------------------------------ jobs

    def upload(self, function: str, key: str = "a.txt", body: bytes = b"hello\n") -> str:
        """Put one input; the id of its job."""
        made = self.client("s3").put_object(Bucket=f"{function}-in", Key=key, Body=body)
        return job_id(f"{function}-in", key, made["VersionId"], function)

    def result(self, function: str, job: str, within_s: float = 90.0) -> Result:
        """Wait for the job's result."""
        s3 = self.client("s3")

        def look() -> Result | None:
            body = get(s3, f"{function}-intermediate", result_key(job))
            return None if body is None else Result.from_json(body)

        return until(f"result of {job}", look, within_s, weather=bool(self.weather))

    def report(self, function: str, job: str, attempt: int) -> Report | None:
        body = get(self.client("s3"), f"{function}-intermediate", report_key(job, attempt))
        return None if body is None else Report.from_json(body)

    def messages(self, function: str, queue: str = "jobs") -> int:
        """Visible, hidden and delayed messages of one of the function's queues."""
        sqs = self.client("sqs")
        url = sqs.get_queue_url(QueueName=f"{function}-{queue}")["QueueUrl"]
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        return sum(
            int(found[f"ApproximateNumberOfMessages{kind}"])
            for kind in ("", "NotVisible", "Delayed")
        )

    def take_dead_letters(self, function: str) -> list[tuple[str, str]]:
        """Empty the dead-letter queue; job and reason of each letter."""
        sqs = self.client("sqs")
        url = sqs.get_queue_url(QueueName=f"{function}-dlq")["QueueUrl"]
        letters: list[tuple[str, str]] = []
        while found := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
            for letter in found:
                note = json.loads(letter["Body"])["orchgpu"]
                letters.append((note["job_id"], note["reason"]))
                sqs.delete_message(QueueUrl=url, ReceiptHandle=letter["ReceiptHandle"])
        return letters

    def scheduler(self, what: str) -> Any:
        """An answer of the scheduler's HTTP endpoint: `leases`, `queue`, `inventory`, `records`."""
        url = f"http://{str(self.ready['scheduler']['http']).removeprefix('http://')}/v1/{what}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)

    def host_state(self, name: str) -> str:
        """The state of a host as the scheduler knows it."""
        hosts = self.scheduler("inventory")["hosts"]
        return str(next(host["state"] for host in hosts if host["host"] == name))

    def steps(self) -> dict[str, str]:
        """Job → its step, of all records of the scheduler."""
        return {one["holder"]: one["step"] for one in self.scheduler("records")["records"]}

    def leases(self) -> list[dict[str, Any]]:
        return list(self.scheduler("leases")["leases"])

    def has_no_message(self, function: str) -> bool:
        return self.messages(function) == 0

    def quiet(self, *functions: str, within_s: float = 90.0) -> None:
        """Nothing is left of any job: no message, no lease."""
        for function in functions:
            until(
                f"an empty job queue of {function}",
                functools.partial(self.has_no_message, function),
                within_s,
            )
        until("no lease", lambda: not self.leases(), within_s)


@dataclass(frozen=True)
class FunctionSpec:
    """One function of a test."""

    script: str
    timeout: int = 30
    threshold: int = 10  #: seconds of the timeout that are not the script's
    gpu: Mapping[str, Any] | None = field(default_factory=dict)  #: None: its jobs need no device
    job: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)  #: further blocks

    def entry(self, name: str, script: str) -> dict[str, Any]:
        output = {"storage_provider": "s3", "path": f"{name}-out"}
        source = {"storage_provider": "s3", "path": f"{name}-in"}
        return {
            "lambda": {
                "name": name,
                "memory": 512,
                "timeout": self.timeout,
                "init_script": script,
                "container": {"timeout_threshold": self.threshold},
                "output": [output],
            },
            "gpu": "none" if self.gpu is None else {"memory": 256, "kinds": ["cpu"], **self.gpu},
            "job": {"input": [source], **self.job},
            **self.more,
        }


def s3_record(bucket: str, key: str, version: str | None = None, etag: str = "") -> dict[str, Any]:
    """A record of S3's events."""
    entry: dict[str, Any] = {"key": key, "size": 6, "eTag": etag}
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "eventTime": "2026-01-01T00:00:00.000Z",
        "s3": {
            "bucket": {"name": bucket},
            "object": entry | ({"versionId": version} if version else {}),
        },
    }


def _repeated_404(attempts: int, response: Any, **_: object) -> float | None:
    """The pause before a read is repeated: in weather a 404 may be false."""
    missing = response is not None and response[0].status_code == 404
    return 0.05 if missing and attempts < 6 else None


def _repeated_conflict(attempts: int, response: Any, **_: object) -> float | None:
    """The pause before a change is repeated: in weather another one may be in progress."""
    busy = response is not None and response[0].status_code == 409
    return 0.2 if busy and attempts < 50 else None


def get(s3: Any, bucket: str, key: str) -> bytes | None:
    """An object's bytes, or None when it is not there."""
    try:
        body: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except s3.exceptions.ClientError as error:
        if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
            return None
        raise
    return body


COPY = """#!/bin/sh
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""

DEVICE = """#!/usr/bin/env python3
import os, shutil
import remote_gpu.client as gpu
device = gpu.connect()
device.op("noop")
shutil.copy(os.environ["INPUT_FILE_PATH"], os.environ["TMP_OUTPUT_DIR"])
"""


@contextmanager
def live_system(path: Path, **settings: Any) -> Iterator[Live]:
    """A system whose processes end with the block, whatever happens in it."""
    live = Live(path, **settings)
    try:
        yield live
    finally:
        live.stop_all()
