"""The container's command in AWS Batch, where it cannot become a runner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contract.keys import job_id
from orchgpu.cloud_services import LogEvent
from orchgpu.jobs.joblog import JobsByRequest, invocation
from remote_gpu.wire.runs import BATCH_VARIABLE, BatchOrder, Package

JOB = job_id("in", "a.txt", "v1", "f")
REQUEST = "3e1c1b1e-0000-4000-8000-000000000001"
ORDER = BatchOrder(
    function="f",
    job=JOB,
    attempt=2,
    event="{}",
    timeout_s=30.0,
    memory_mib=512,
    package=Package(bucket="no-such-bucket", key="p.zip", sha256="0" * 64),
)


@pytest.mark.parametrize(
    ("order", "status", "words"),
    [
        ("", 2, "ORCHGPU_RUN is not the order of a run: the order is not a JSON object"),
        (ORDER.to_json().replace("0000", "zzzz"), 2, "'sha256' must be 64 lower-case hex digits"),
        (ORDER.to_json(), 3, "s3://no-such-bucket/p.zip cannot be read"),
    ],
)
def test_it_says_why_it_cannot_run(order: str, status: int, words: str, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        BATCH_VARIABLE: order,
        "TMPDIR": str(tmp_path),
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_BATCH_JOB_ID": REQUEST,
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "remote_gpu.host.runs.in_batch"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, words in done.stderr) == (status, True), done.stderr
    written = [LogEvent(at_ms=1, message=line, stream="s") for line in done.stdout.splitlines()]
    found = invocation(written, REQUEST)
    jobs = [job for _, job in JobsByRequest().named(list(found))]
    assert jobs == ([JOB, JOB] if status == 3 else [])
