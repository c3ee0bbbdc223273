"""The handler under AWS's own runtime client, from a package with the layout of deploy."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest

from orchgpu.deploy.package import RUNTIME_PACKAGES
from remote_gpu.client.transport.readiness import readable

ROOT = Path(__file__).parents[3]
TOPS = ("lambda_functions/__init__.py", "orchgpu/__init__.py", "remote_gpu/__init__.py")
PARTS = (*TOPS, *RUNTIME_PACKAGES)


class RuntimeApi(ThreadingHTTPServer):
    """The four calls of the Lambda Runtime API, for one environment."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Calls)
        self.work: queue.Queue[tuple[str, bytes, float] | None] = queue.Queue()
        self.answers: queue.Queue[tuple[str, Any]] = queue.Queue()


class _Calls(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RuntimeApi

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        work = self.server.work.get()
        if work is None:
            self.close_connection = True
            return
        request_id, body, timeout_s = work
        self.send_response(200)
        self.send_header("Lambda-Runtime-Aws-Request-Id", request_id)
        self.send_header("Lambda-Runtime-Deadline-Ms", str(int((time.time() + timeout_s) * 1000)))
        self.send_header("Lambda-Runtime-Invoked-Function-Arn", "arn:aws:lambda:x:1:function:fn")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.answers.put((self.path.rsplit("/", 1)[-1], body))
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Function:
    """One environment of the deployed function."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.code = folder / "task"
        self.tmp = folder / "scratch"
        self.tmp.mkdir()
        self.log = folder / "log"
        self._endpoint = endpoint
        self._api = RuntimeApi()
        self._thread = threading.Thread(target=self._api.serve_forever, args=(0.02,))
        self._thread.start()
        self.process: subprocess.Popen[bytes] | None = None
        self._package()

    def _package(self) -> None:
        (self.code / "lambda_functions").mkdir(parents=True)
        (self.code / "script").mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, self.code / part)
            else:
                (self.code / part).parent.mkdir(exist_ok=True)
                shutil.copy(ROOT / part, self.code / part)

    def start(self, script: str | None, **variables: str) -> None:
        if script is not None:
            path = self.code / "script/run.sh"
            path.write_text(script)
            variables["ORCHGPU_SCRIPT"] = "script/run.sh"
        environment = {
            "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._api.server_address[1]}",
            "AWS_ENDPOINT_URL": self._endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "LAMBDA_TASK_ROOT": str(self.code),
            "_HANDLER": "lambda_functions.gpu_runner.handler.handle",
            "PYTHONPATH": f"{self.code}:{sysconfig.get_path('purelib')}",
            "TMPDIR": str(self.tmp),
            "PATH": os.environ["PATH"],
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-S", "-m", "awslambdaric", environment["_HANDLER"]],
                env=environment | variables,
                cwd=self.code,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def invoke(self, event: Any, timeout_s: float = 30.0) -> tuple[str, Any]:
        """("response", answer) or ("error", what was raised)."""
        self._api.work.put(("request-1", json.dumps(event).encode(), timeout_s))
        return self._api.answers.get(timeout=60)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._api.work.put(None)
        self._api.shutdown()
        self._api.server_close()
        self._thread.join()


@pytest.fixture
def function(tmp_path: Path, endpoint: str) -> Iterator[Function]:
    function = Function(tmp_path, endpoint)
    yield function
    function.stop()
    assert list(function.tmp.iterdir()) == []


def event(bucket: str, *names: str) -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventSource": "aws:s3",
                "eventTime": "2026-01-01T00:00:00Z",
                "s3": {"bucket": {"name": bucket}, "object": {"key": quote_plus(key, safe="/")}},
            }
            for key in names
        ]
    }


COPY = 'cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/$STORAGE_OBJECT_KEY"; echo "ran $MINE"'


def test_a_cold_job_then_its_warm_duplicate(bench: Any, function: Function) -> None:
    function.start("#!/bin/bash\n" + COPY.replace("$STORAGE_OBJECT_KEY", "out"), ORCHGPU_MODE="job")
    bench.stage()
    started = event(bench.job.intermediate_bucket, bench.key)
    kind, answer = function.invoke(started)
    assert (kind, answer["status"]) == ("response", "succeeded"), answer
    assert bench.result.files[0]["key"] == "res/out"
    assert function.invoke(started)[1]["status"] == "duplicate"
    assert bench.gateway.heard == ["open", "give_back", "close"]
    assert "ran " in function.log.read_text()


def test_a_failed_attempt_is_not_a_failure_of_the_function(bench: Any, function: Function) -> None:
    function.start("exit 3", ORCHGPU_MODE="job")
    bench.stage()
    kind, answer = function.invoke(event(bench.job.intermediate_bucket, bench.key))
    assert (kind, answer["status"], answer["reason"]) == ("response", "failed", "EXIT_NONZERO")
    assert bench.report.exit_code == 3


def test_a_lease_that_does_not_open_is_a_failure_of_the_function(
    bench: Any, function: Function
) -> None:
    bench.gateway.refuse = "NOT_INSTALLED"
    function.start("true", ORCHGPU_MODE="job")
    bench.stage()
    kind, answer = function.invoke(event(bench.job.intermediate_bucket, bench.key))
    assert (kind, answer["errorType"]) == ("error", "LeaseNotOpen")
    assert "NOT_INSTALLED" in answer["errorMessage"]


def test_a_plain_function_runs_every_record(bench: Any, function: Function) -> None:
    out = bench.job.outputs[0]["bucket"]
    function.start(
        COPY,
        ORCHGPU_MODE="plain",
        ORCHGPU_OUTPUTS=json.dumps([{"bucket": out, "prefix": "p", "suffix": [], "filter": []}]),
        ORCHGPU_VARIABLES='{"MINE": "yes"}',
    )
    names = ["a b+c.txt", "ünï%41"]
    for name in names:
        bench.s3.put_object(Bucket=bench.job.input_bucket, Key=name, Body=name.encode())
    kind, answer = function.invoke(event(bench.job.input_bucket, *names))
    assert kind == "response", answer
    assert [record["status"] for record in answer["records"]] == ["succeeded"] * 2
    assert bench.outputs == {f"p/{name}": name.encode() for name in names}
    assert "ran yes" in function.log.read_text()


def test_a_failure_of_a_plain_function_is_raised_after_the_last_record(
    bench: Any, function: Function
) -> None:
    out = bench.job.outputs[0]["bucket"]
    function.start(
        'echo half > "$TMP_OUTPUT_DIR/half"; [ "$STORAGE_OBJECT_KEY" != bad ]',
        ORCHGPU_OUTPUTS=json.dumps([{"bucket": out, "prefix": ""}]),
    )
    for name in ("bad", "good"):
        bench.s3.put_object(Bucket=bench.job.input_bucket, Key=name, Body=b"")
    kind, answer = function.invoke(event(bench.job.input_bucket, "bad", "good", "gone"))
    assert (kind, answer["errorType"]) == ("error", "AttemptFailed")
    assert "EXIT_NONZERO" in answer["errorMessage"]
    assert list(bench.outputs) == ["half"]


def test_files_beside_the_folder_of_a_run_are_removed_before_the_next(
    bench: Any, function: Function
) -> None:
    function.tmp.chmod(0o700)  # as the embedded cloud gives it to an environment
    out = bench.job.outputs[0]["bucket"]
    function.start(
        'ls -A "$TMPDIR/.." > "$TMP_OUTPUT_DIR/$STORAGE_OBJECT_KEY"\n'
        'mkdir "$TMPDIR/../left"; echo secret > "$TMPDIR/../left/secret"',
        ORCHGPU_OUTPUTS=json.dumps([{"bucket": out, "prefix": ""}]),
    )
    for name in ("first", "second"):
        bench.s3.put_object(Bucket=bench.job.input_bucket, Key=name, Body=b"")
        kind, answer = function.invoke(event(bench.job.input_bucket, name))
        assert kind == "response", answer
        assert list(function.tmp.iterdir()) == []
    seen = {name: text.decode().split() for name, text in bench.outputs.items()}
    assert all(len(names) == 1 and "left" not in names for names in seen.values()), seen


def test_test_events_are_ignored_and_other_events_refused(function: Function) -> None:
    function.start("true", ORCHGPU_MODE="job")
    test_event = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "b"}
    assert function.invoke(test_event)[1]["status"] == "ignored"
    assert function.invoke(event("b", "not/an/envelope"))[1]["status"] == "ignored"
    events: tuple[object, ...] = ({}, [], {"Records": 1}, {"Records": [{"s3": {}}]}, "text", None)
    for odd in events:
        kind, answer = function.invoke(odd)
        assert (kind, answer["errorType"]) == ("error", "RunnerError")


def test_invalid_settings_fail_the_start(function: Function) -> None:
    function.start(None, ORCHGPU_MODE="fast")
    kind, answer = function._api.answers.get(timeout=60)
    assert kind == "error"
    assert "ORCHGPU_MODE" in answer["errorMessage"]


def test_a_killed_runtime_leaves_no_script_running(
    bench: Any, function: Function, until: Any
) -> None:
    place = bench.folder / "pid"
    # the guard knows the script some microseconds after its start
    function.start(f"sleep 0.5; echo $$ > {place}; sleep 300", ORCHGPU_MODE="job")
    bench.stage()
    function._api.work.put(
        ("r", json.dumps(event(bench.job.intermediate_bucket, bench.key)).encode(), 60.0)
    )
    until(lambda: place.exists() and place.read_text().endswith("\n"))
    pidfd = os.pidfd_open(int(place.read_text()))
    assert function.process is not None
    function.process.kill()
    assert readable((pidfd,), 60)
    os.close(pidfd)
    assert len(list(function.tmp.iterdir())) == 1, "nobody could remove it"
    function.process.wait()
    function.start("true")  # a new process in the same sandbox sweeps at its start
    assert function.invoke({"Event": "s3:TestEvent"})[0] == "response"
