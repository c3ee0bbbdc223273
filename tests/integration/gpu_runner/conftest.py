"""Buckets of a real S3 endpoint (moto's server as a process), a gateway, and attempts on demand."""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from contract import keys
from contract.claim import Claim
from contract.envelope import Job
from contract.result import Report, Result
from lambda_functions.gpu_runner.job import run_attempt
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.script import reaper
from lambda_functions.gpu_runner.script.steps import Step
from lambda_functions.gpu_runner.secrets.stores import Stores
from lambda_functions.gpu_runner.secrets.values import SecretValues
from lambda_functions.gpu_runner.settings import Settings
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.frames import SESSION
from remote_gpu.wire.proof import Hello, gateway_proof

FUNCTION = "fn"


@pytest.fixture(scope="module", autouse=True)
def _guard() -> Iterator[None]:
    yield
    reaper.guard().close()


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """An S3 endpoint of its own process."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until_s = time.monotonic() + 60
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            assert time.monotonic() < until_s, "moto's server did not start"
            assert process.poll() is None, "moto's server ended"
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


@pytest.fixture(scope="session")
def s3(endpoint: str) -> Iterator[Any]:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
        config=Config(s3={"addressing_style": "path"}),
    )
    yield client
    client.close()


class TinyGateway:
    """A gateway for sessions only, in a thread: the real proof, one claim, and what it heard."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.secret = secrets.token_hex(32)
        self.heard: list[str] = []  #: "open", "give_back", "close" in order
        self.succeeded: list[object] = []  #: of "give_back" and "close" in order
        self.holder = ""  #: nonce of the session that claimed the lease
        self.refuse: str | None = None
        self.why = "said the test"
        self.waits = 0  #: messages that the session waits, before the answer
        self.waiting = threading.Event()  #: they are sent
        self.free = threading.Event()  #: the answer follows
        self.free.set()
        self.lose_on: str | None = None  #: end the lease when this word is heard
        self._streams: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def connection(self) -> dict[str, Any]:
        device = {"index": 0, "kind": "cpu", "model": "test", "memory_mib": 64}
        host = {
            "host": "gpu-a",
            "gateway": self.address,
            "secret": self.secret,
            "devices": [device],
        }
        return {"middleware": "builtin", "lease": "lease-1", "fence": 7, "hosts": [host]}

    def lose(self, reason: str) -> None:
        """End the lease as a host does."""
        for stream in self._streams:
            Channel(stream, SESSION).send({"ended": {"reason": reason, "detail": "by the test"}})
            with contextlib.suppress(OSError):  # the runner was faster
                stream.shutdown(socket.SHUT_RDWR)

    def preempt(self, grace_s: float) -> None:
        """Send the notice of a preemption."""
        for stream in self._streams:
            Channel(stream, SESSION).send({"preempt": {"grace_s": grace_s}})

    def close(self) -> None:
        """Safe to repeat."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stream in self._streams:
            with contextlib.suppress(OSError):
                stream.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                stream, _ = self._listener.accept()
                thread = threading.Thread(target=self._serve, args=(stream,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, stream: socket.socket) -> None:
        with stream, contextlib.suppress(OSError):
            channel = Channel(stream, SESSION)
            received = channel.receive()
            assert received is not None
            hello = Hello.from_meta(received[1])
            nonce = secrets.token_hex(16)
            proof = gateway_proof(bytes.fromhex(self.secret), hello, nonce)
            channel.send({"challenge": {"nonce": nonce, "proof": proof}})
            channel.receive()
            for _ in range(self.waits if hello.waits else 0):
                channel.send({"waiting": {}})
            self.waiting.set()
            self.free.wait(60)
            code = self.refuse or ("CLAIMED" if self.holder else None)
            if code:
                channel.send({"refused": {"code": code, "message": self.why}})
                return
            self.holder = hello.session
            self.heard.append("open")
            self._streams.append(stream)
            channel.send({"welcome": {"beat_s": 5.0, "silence_s": 30.0}})
            self._hold(channel)

    def _hold(self, channel: Channel) -> None:
        while (received := channel.receive()) is not None:
            word = next(iter(received[1]))
            if word == "beat":
                continue  # its silence is too short to be noticed
            self.heard.append(word)
            self.succeeded.append(received[1][word].get("succeeded"))
            if word == self.lose_on:
                self.lose("REVOKED")
                return
            channel.send({word: {}})


@pytest.fixture
def gateway() -> Iterator[TinyGateway]:
    gateway = TinyGateway()
    yield gateway
    gateway.close()


@dataclass
class Bench:
    """One job of one function: change it, stage it, run it, look at what it left."""

    s3: Any
    gateway: TinyGateway
    folder: Path
    job: Job
    script: Path | None = None
    body: bytes = b"hello"
    environment: dict[str, Any] = field(default_factory=dict)
    timeout_s: float = 30.0
    advance_s: float = 0.0
    checkpoint_s: float = 0.0
    handler: str = ""
    group: tuple[Step, ...] = ()
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    values: SecretValues = field(default_factory=lambda: SecretValues(Stores(()).read))
    with_device: bool = True
    request: str = "start-1"  #: Lambda's id of the next start

    def write(self, text: str) -> None:
        """The function's script."""
        self.script = self.folder / "script"
        self.script.write_text(text)
        self.script.chmod(0o755)

    def change(self, **fields: Any) -> None:
        self.job = replace(self.job, **fields)

    @property
    def key(self) -> str:
        job = self.job
        return keys.staging_key(FUNCTION, job.job_id, job.attempt, job.fence)

    def stage(self) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("job.json", self.job.to_json())
            environment = {
                "middleware": "builtin",
                "connection": self.gateway.connection(),
                "variables": {},
            }
            if self.with_device:
                archive.writestr("env.json", json.dumps(environment | self.environment))
            if self.job.input_inline:
                archive.writestr("input/x", self.body)
        self.s3.put_object(
            Bucket=self.job.intermediate_bucket, Key=self.key, Body=buffer.getvalue()
        )

    def settings(self) -> Settings:
        return Settings(
            mode="job",
            script=self.script,
            threshold_s=0,
            checkpoint_s=self.checkpoint_s,
            outputs=(),
            variables={},
            log_level="INFO",
            handler=self.handler,
            folder=self.folder,
            group=self.group,
            secrets=self.secrets,
        )

    def run(self) -> dict[str, Any]:
        self.stage()
        return self.deliver()

    def deliver(self, pause: Callable[[float], None] = lambda _: None) -> dict[str, Any]:
        staging = keys.parse_staging_key(self.key)
        assert staging is not None
        place = (self.job.intermediate_bucket, self.key)
        limits = TimeLimits.within(self.timeout_s, 0.0, self.advance_s)
        settings, values = self.settings(), self.values
        return run_attempt(
            self.s3,
            settings,
            limits,
            staging,
            place,
            pause,
            values=values,
            request=self.request,
        )

    def _read(self, key: str) -> bytes | None:
        try:
            reply = self.s3.get_object(Bucket=self.job.intermediate_bucket, Key=key)
        except self.s3.exceptions.NoSuchKey:
            return None
        body: bytes = reply["Body"].read()
        return body

    @property
    def result(self) -> Result | None:
        data = self._read(keys.result_key(self.job.job_id))
        return None if data is None else Result.from_json(data)

    @property
    def report(self) -> Report | None:
        data = self._read(keys.report_key(self.job.job_id, self.job.attempt))
        return None if data is None else Report.from_json(data)

    @property
    def claim(self) -> Claim | None:
        data = self._read(keys.claim_key(self.job.job_id, self.job.attempt))
        return None if data is None else Claim.from_json(data)

    @property
    def outputs(self) -> dict[str, bytes]:
        """What lies in the output bucket."""
        bucket = self.job.outputs[0]["bucket"]
        found = self.s3.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {
            item["Key"]: self.s3.get_object(Bucket=bucket, Key=item["Key"])["Body"].read()
            for item in found
        }


@pytest.fixture
def bench(
    s3: Any, gateway: TinyGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    """A job whose workspace lies below tmp_path/tmp, which must be empty at the end."""
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    name = "t" + secrets.token_hex(6)
    for kind in ("in", "mid", "out"):
        s3.create_bucket(Bucket=f"{name}-{kind}")
    job = Job(
        job_id=keys.job_id(f"{name}-in", "a/b.txt", "v", FUNCTION),
        attempt=1,
        fence=7,
        function=FUNCTION,
        input_bucket=f"{name}-in",
        input_key="a/b.txt",
        input_version=None,
        input_etag="",
        input_size=5,
        input_inline=True,
        event={"Records": [{"eventTime": "2026-01-01T00:00:00Z"}]},
        outputs=[{"bucket": f"{name}-out", "prefix": "res", "suffix": [], "filter": []}],
        intermediate_bucket=f"{name}-mid",
        staged_at_s=time.time(),
        connect_by_s=150.0,
    )
    yield Bench(s3=s3, gateway=gateway, folder=tmp_path, job=job)
    assert os.listdir(own) == []


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition that another thread or process brings about."""

    def wait(condition: Callable[[], bool], within_s: float = 60.0) -> None:
        until_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < until_s, "it did not happen"
            time.sleep(0.005)

    return wait
