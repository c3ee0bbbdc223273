"""A function called over HTTP, in a real system: curl, and `orchgpu invoke`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdl.parse import parse
from fdl.plan.facts import Facts
from fdl.plan.functions import Code
from fdl.plan.resources import DeployTarget, FunctionResource
from fdl.plan.served import served_by
from orchgpu.deploy.package import build
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


def test_a_functions_url_stores_an_input_and_reads_its_result(live: Live) -> None:
    """What deploy makes on AWS, in a real Lambda runtime; Invoke brings the event of its URL."""
    entry = FunctionSpec(COPY).entry("copy", "copy.sh")
    text = json.dumps({"functions": {"aws": [{**entry, "http": True}]}})
    (live.path / "copy.sh").write_text(COPY)
    (function,) = parse(text).functions.aws
    data = build(function, live.path).data
    on_aws = DeployTarget(account="000000000000", region="us-east-1")
    (made,) = (
        one
        for one in served_by(function, on_aws, Code(sha256="0" * 64, size=1), Facts(), 30)
        if isinstance(one, FunctionResource)
    )
    functions = live.client("lambda")
    functions.create_function(
        FunctionName=made.name,
        Role="arn:aws:iam::000000000000:role/orchgpu-function",
        Runtime=made.runtime,
        Handler=made.handler,
        Code={"ZipFile": data},
        MemorySize=made.memory_mib,
        Timeout=made.timeout_s,
        Environment={"Variables": dict(made.variables)},
    )

    def ask(method: str, path: str, query: str, body: str = "") -> tuple[int, Any]:
        event = {
            "version": "2.0",
            "rawPath": path,
            "rawQueryString": query,
            "headers": {"idempotency-key": "once"},
            "requestContext": {"http": {"method": method}, "authorizer": {"iam": {"userId": "A"}}},
            "body": body,
            "isBase64Encoded": False,
        }
        answer = functions.invoke(FunctionName=made.name, Payload=json.dumps(event))
        value = json.loads(answer["Payload"].read())
        assert "FunctionError" not in answer, value
        return value["statusCode"], json.loads(value["body"])

    submit = "/v1/functions/copy/jobs"
    try:
        status, job = ask("POST", submit, "name=a.txt", "hello")
        assert (status, job["state"]) == (202, "LIVE"), job
        path, _, query = job["links"]["job"].partition("?")
        status, over = ask("GET", path, f"{query}&wait=45")
        assert (status, over["state"]) == (200, "SUCCEEDED"), over
        (output,) = over["outputs"]
        assert (output["content"], output["encoding"], output["bytes"]) == ("hello", "utf-8", 5)
        status, again = ask("POST", submit, "name=a.txt", "hello")
        assert (status, again) == (200, over), "the same job"
        assert ask("POST", submit, "name=a.txt", "other")[0] == 409
    finally:
        functions.delete_function(FunctionName=made.name)
    console = live.ready["console"]["url"]
    request = urllib.request.Request(
        f"{console}v1/functions/copy/jobs?name=a.txt&wait=9", b"hello", {"Idempotency-Key": "once"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["id"] == job["id"], "at the console it is that job, too"
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
