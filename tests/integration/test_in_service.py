"""The container of an HTTP service: what it takes, one run at a time, and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from contract.keys import staging_key
from remote_gpu.host.runs import in_service

TOKEN = "a-token-of-16-chars"
KEY = staging_key("f", "j" + "0" * 25, 1, 7)
RECORD = {
    "intermediate_bucket": "mid",
    "timeout_s": 30.0,
    "memory_mib": 512,
    "package_sha256": "0" * 64,
    "host": {"service": "http://f", "package_bucket": "state", "package_key": "p", "process": {}},
}


class Store(ThreadingHTTPServer):
    """An S3 of records; a package is answered, with 404, when `answers` is set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.asked, self.answers = threading.Event(), threading.Event()
        self.records = {
            "f": json.dumps(RECORD),
            "in-lambda": json.dumps({**RECORD, "host": None}),
            "elsewhere": json.dumps({**RECORD, "intermediate_bucket": "other"}),
            "newer": json.dumps({**RECORD, "package_sha256": ""}),
            "broken": "{",
        }


class Answer(BaseHTTPRequestHandler):
    server: Store

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/state/functions/").removesuffix(".json")
        body = self.server.records.get(name, "")
        if name == "/state/p":
            self.server.asked.set()
            self.server.answers.wait(30)
        self.send_response(200 if body else 404)
        text = body or "<Error><Code>NoSuchKey</Code><Message>no</Message></Error>"
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


def event(function: str = "f", bucket: str = "mid", key: str = "") -> str:
    key = key or KEY.replace("staging/f/", f"staging/{function}/")
    s3 = {"bucket": {"name": bucket}, "object": {"key": key}}
    return json.dumps({"Records": [{"s3": s3}]})


class Container:
    """The program, and requests to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.address = process.stdout.readline().rsplit(" ", 1)[-1].strip()

    def send(self, body: str, **more: str) -> HTTPResponse:
        headers = {"ce-type": "orchgpu.attempt.staged", "authorization": f"Bearer {TOKEN}"}
        headers["connection"] = "close"
        connection = HTTPConnection(self.address, timeout=60)
        connection.request("POST", "/", body.encode(), {**headers, **more})
        return connection.getresponse()

    def answered(self, body: str, **more: str) -> tuple[int, str]:
        with self.send(body, **more) as answer:
            return answer.status, answer.read().decode()


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as made:
        serving = threading.Thread(target=made.serve_forever)
        serving.start()
        yield made
        made.answers.set()
        made.shutdown()
        serving.join()


@contextmanager
def started(store: Store, tmp_path: Path) -> Iterator[Container]:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    environment = {
        **os.environ,
        "ORCHGPU_STATE_BUCKET": "state",
        "ORCHGPU_SERVICES_TOKEN_FILE": str(token),
        "TMPDIR": str(tmp_path),
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{store.server_port}",
        "AWS_MAX_ATTEMPTS": "1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "remote_gpu.host.runs.in_service", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield Container(process)
        finally:
            process.kill()


def test_what_it_does_not_take_has_a_status_and_a_reason(store: Store, tmp_path: Path) -> None:
    with started(store, tmp_path) as container:
        for body, headers, status, words in (
            (event(), {"authorization": "Bearer wrong"}, 403, "the token is missing or wrong"),
            (event(), {"authorization": "Bearer \xff"}, 403, "the token is missing or wrong"),
            (event(), {"content-type": "text/plain; charset=none"}, 400, "are not text"),
            (event(), {"ce-type": "other"}, 400, "not a CloudEvent of the type orchgpu.attempt"),
            ("{", {}, 400, "do not name one envelope"),
            ('{"Records": []}', {}, 400, "do not name one envelope"),
            (event(key="a.txt"), {}, 400, "do not name one envelope"),
            (event("in-lambda"), {}, 404, "no service is deployed as in-lambda"),
            (event("elsewhere"), {}, 404, "with envelopes in mid"),
            (event("unknown"), {}, 404, "s3://state/functions/unknown.json cannot be read"),
            (event("newer"), {}, 400, "the record of newer names no run: 'sha256'"),
            (event("broken"), {}, 400, "functions/broken.json is not the record of a function"),
        ):
            found, text = container.answered(body, **headers)
            assert (found, words in text) == (status, True), text
        container.process.send_signal(signal.SIGTERM)
        assert container.process.wait(60) == 0
    assert [one.name for one in tmp_path.iterdir()] == ["token"]


def test_it_has_one_run_which_its_event_joins_and_ends_with_it(
    store: Store, tmp_path: Path
) -> None:
    with started(store, tmp_path) as container, ThreadPoolExecutor() as pool:
        first = container.send(event())
        assert first.status == 202, "it has begun"
        assert store.asked.wait(60)
        first.close()  # the run goes on
        busy = container.send(event(key=KEY.replace("1.7", "2.8")))
        assert (busy.status, busy.headers["retry-after"]) == (429, "1")
        busy.close()
        joined = container.send(event())
        assert joined.readline() == b'{"state": "RUNNING"}\n'
        container.process.send_signal(signal.SIGTERM)
        ended = pool.submit(container.process.wait, 60)
        assert not ended.done()
        store.answers.set()
        rest = joined.read().decode()
        assert json.loads(rest.strip()) == {"exit_status": 3}, "its package cannot be read"
        joined.close()
        assert ended.result() == 0
        assert container.process.stdout is not None
        assert "s3://state/p cannot be read" in container.process.stdout.read()
    assert [one.name for one in tmp_path.iterdir()] == ["token"]


def test_a_container_keeps_the_package_of_the_newest_version_alone(tmp_path: Path) -> None:
    for name in ("a" * 64, "b" * 64, ".unpacking-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "fn.py").write_text("")
    in_service._keep_only("b" * 64, tmp_path)
    assert [one.name for one in tmp_path.iterdir()] == ["b" * 64]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "set ORCHGPU_STATE_BUCKET"),
        ({"ORCHGPU_STATE_BUCKET": "state"}, "the token needs 16 characters or more"),
    ],
)
def test_it_names_the_variable_that_it_needs(
    given: dict[str, str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("\n")
    environment = {name: os.environ[name] for name in os.environ if "ORCHGPU_STATE" not in name}
    environment |= {**given, "ORCHGPU_SERVICES_TOKEN_FILE": str(tmp_path / "token")}
    done = subprocess.run(
        [sys.executable, "-m", "remote_gpu.host.runs.in_service"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, words in done.stderr) == (2, True), done.stderr
