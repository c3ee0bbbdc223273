"""A function called over HTTP, in a real system: curl, and `orchgpu invoke`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.live import COPY, FunctionSpec, Live, live_system

FAILING = "#!/bin/sh\necho out of luck >&2\nexit 3\n"
SLOW = "#!/bin/sh\nsleep 120\n"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live_system(tmp_path_factory.mktemp("live")) as system:
        system.start_all()
        system.start("console")
        specs = {"copy": COPY, "failing": FAILING, "slow": SLOW}
        system.deploy({name: FunctionSpec(script) for name, script in specs.items()})
        yield system


def invoke(live: Live, *arguments: str, sent: bytes = b"", status: int = 0) -> tuple[bytes, str]:
    done = subprocess.run(
        [sys.executable, "-m", "orchgpu", "invoke", *arguments],
        env={**live.environment, "ORCHGPU_URL": str(live.ready["console"]["url"])},
        input=sent,
        capture_output=True,
        timeout=120,
        cwd=live.path,
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout, done.stderr.decode()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_curl_posts_bytes_and_gets_the_output(live: Live) -> None:
    url = f"{live.ready['console']['url']}v1/functions/copy/jobs?wait=50"
    done = subprocess.run(
        ["curl", "-sS", "--data-binary", "@-", url], input=b"hello", capture_output=True, timeout=90
    )
    job = json.loads(done.stdout)
    assert (job["state"], job["over"]) == ("SUCCEEDED", True), job
    (output,) = job["outputs"]
    assert (output["content"], output["encoding"], output["bytes"]) == ("hello", "utf-8", 5)
    live.quiet("copy")


def test_invoke_prints_the_output_and_repeats_no_job(live: Live, tmp_path: Path) -> None:
    out, err = invoke(live, "copy", "-", sent=b"\xff\0bytes")
    assert out == b"\xff\0bytes"
    assert "SUCCEEDED" in err
    file = tmp_path / "in.txt"
    file.write_bytes(b"once")
    key = ("--idempotency-key", "mine")
    first = json.loads(invoke(live, "copy", str(file), "--json", *key)[0])
    again = json.loads(invoke(live, "copy", str(file), "--json", *key)[0])
    assert first["id"] == again["id"]
    file.write_bytes(b"another")
    _, err = invoke(live, "copy", str(file), *key, status=4)
    assert "Idempotency-Key" in err


def test_invoke_streams_lines_and_ends_as_the_job_does(live: Live) -> None:
    out, err = invoke(live, "failing", "-", "--stream", sent=b"x", status=1)
    assert out == b""
    assert "out of luck" in err
    assert "FAILED" in err
    _, err = invoke(live, "slow", "-", "--wait", "1s", sent=b"x", status=9)
    assert "--idempotency-key" in err


def test_invoke_names_what_is_not_there(live: Live) -> None:
    assert "no function" in invoke(live, "nothing", "-", status=3)[1]
    assert (
        "does not answer" in invoke(live, "copy", "-", "--url", "http://127.0.0.1:1", status=8)[1]
    )
