"""A function that runs on a real gpud: buckets of an embedded cloud, package, envelope, order."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import secrets
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from contract import keys
from contract.envelope import Job
from contract.result import Report, Result
from fdl.parse import parse
from gpu_scheduler.protocol.host import Install
from orchgpu.deploy.package import build
from remote_gpu.client.transport.handshake import open_connection
from remote_gpu.wire.connection import parse_access
from remote_gpu.wire.errors import Refused
from remote_gpu.wire.proof import ConnectionRole
from remote_gpu.wire.runs import Package, RunOrder
from tests.embedded_cloud import client_of, cloud_in

from .conftest import Gpud

FUNCTION = "fn"
LOG_GROUP = f"/aws/lambda/{FUNCTION}"


@dataclass
class Bench:
    """Buckets and one cloud; a job for each lease."""

    s3: Any
    logs: Any
    endpoint: str
    folder: Path

    def package(self, script: str) -> Package:
        (self.folder / "run.sh").write_text(script)
        text = f"functions: {{aws: [{{lambda: {{name: {FUNCTION}, init_script: run.sh}}}}]}}"
        built = build(parse(text).functions.aws[0], self.folder)
        key = f"packages/{built.sha256}.zip"
        self.s3.put_object(Bucket="state", Key=key, Body=built.data)
        return Package(bucket="state", key=key, sha256=hashlib.sha256(built.data).hexdigest())

    def stage(self, gpud: Gpud, install: Install, **fields: Any) -> tuple[Job, str]:
        """The envelope of a new job of the lease, and its event."""
        source = f"a/{secrets.token_hex(4)}.txt"
        job = replace(
            Job(
                job_id=keys.job_id("input", source, "v", FUNCTION),
                attempt=1,
                fence=install.fence,
                function=FUNCTION,
                input_bucket="input",
                input_key=source,
                input_version=None,
                input_etag="",
                input_size=5,
                input_inline=True,
                event={"Records": [{"eventTime": "2026-01-01T00:00:00Z"}]},
                outputs=[{"bucket": "output", "prefix": "res", "suffix": [], "filter": []}],
                intermediate_bucket="middle",
                staged_at_s=time.time(),
                connect_by_s=150.0,
            ),
            **fields,
        )
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr("job.json", job.to_json())
            connection = gpud.connection(install)
            environment = {"middleware": "builtin", "connection": connection, "variables": {}}
            archive.writestr("env.json", json.dumps(environment))
            archive.writestr("input/x", b"hello")
        key = keys.staging_key(FUNCTION, job.job_id, job.attempt, job.fence)
        self.s3.put_object(Bucket="middle", Key=key, Body=buffer.getvalue())
        record = {"s3": {"bucket": {"name": "middle"}, "object": {"key": key}}}
        return job, json.dumps({"Records": [record]})

    def order(self, job: Job, event: str, package: Package, **fields: Any) -> RunOrder:
        made = RunOrder(
            function=FUNCTION,
            job=job.job_id,
            attempt=1,
            event=event,
            timeout_s=60.0,
            memory_mib=256,
            package=package,
            variables={"ORCHGPU_MODE": "job", "ORCHGPU_SCRIPT": "script/run.sh"},
            aws={
                "AWS_ENDPOINT_URL": self.endpoint,
                "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1",
                "AWS_ACCESS_KEY_ID": "AKIAOFTHEFUNCTION",
                "AWS_SECRET_ACCESS_KEY": "s3cret-of-the-function",
            },
            log_group=LOG_GROUP,
        )
        return replace(made, **fields)

    def run(self, gpud: Gpud, script: str, **fields: Any) -> tuple[Install, Job]:
        """Install a lease, stage a job, order its run."""
        install = gpud.install()
        job, event = self.stage(gpud, install)
        assert send_order(gpud, install, self.order(job, event, self.package(script), **fields))
        return install, job

    def result(self, job: Job) -> Result | None:
        data = self._read(keys.result_key(job.job_id))
        return None if data is None else Result.from_json(data)

    def report(self, job: Job) -> Report | None:
        data = self._read(keys.report_key(job.job_id, job.attempt))
        return None if data is None else Report.from_json(data)

    def ended(self, job: Job) -> bool:
        return self.result(job) is not None or self.report(job) is not None

    def log(self) -> list[str]:
        found = self.logs.filter_log_events(logGroupName=LOG_GROUP)["events"]
        return [event["message"] for event in found]

    def _read(self, key: str) -> bytes | None:
        try:
            body: bytes = self.s3.get_object(Bucket="middle", Key=key)["Body"].read()
        except self.s3.exceptions.NoSuchKey:
            return None
        return body


def send_order(gpud: Gpud, install: Install, order: RunOrder, session: str = "") -> bool:
    """As an orchestrator does; whether this order started the run. Raises Refused."""
    access = parse_access(gpud.connection(install)).hosts[0]
    stream, channel, _ = open_connection(
        access,
        role=ConnectionRole.RUN,
        lease=install.lease,
        fence=install.fence,
        session=session or secrets.token_hex(16),
        timeout_s=20.0,
    )
    with contextlib.closing(stream):
        channel.send(order.to_meta())
        received = channel.receive()
        assert received is not None
        if isinstance(refused := received[1].get("refused"), dict):
            raise Refused(refused["code"], refused["message"])
        return bool(received[1]["running"]["new"])


@contextmanager
def bench_in(folder: Path) -> Iterator[Bench]:
    with (
        cloud_in(folder) as cloud,
        client_of(cloud, "s3") as s3,
        client_of(cloud, "logs") as logs,
    ):
        for name in ("input", "middle", "output", "state"):
            s3.create_bucket(Bucket=name)
        yield Bench(s3=s3, logs=logs, endpoint=f"http://{cloud.netloc}", folder=folder)
