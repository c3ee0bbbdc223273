"""Notices in a whole system: an HTTP server, a queue, kills between an end and its notice."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from orchgpu.core.notify import webhook_headers
from tests.e2e.live import COPY, Live, until

CRASHING = str(Path(__file__).with_name("crashing_orchestrator.py"))
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DEFINITION = """\
functions:
  aws:
  - lambda:
      {name: prepare, init_script: copy.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: pair/in}], output: [{path: pair/mid}]}
    notify: [{queue: ends}, {webhook: 'URL/jobs', secret: 'file:SECRET'}]
  - lambda:
      {name: finish, init_script: copy.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: pair/mid}], output: [{path: pair/out}]}
workflows:
  pair:
    steps: [prepare, finish]
    notify: [{queue: ends}, {webhook: 'URL/runs', secret: 'file:SECRET'}]
"""


class Receiver(ThreadingHTTPServer):
    """Refuses the first request to each path, then takes all."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.refused: set[str] = set()
        self.taken: list[tuple[str, dict[str, Any]]] = []
        self.unsigned = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def of(self, key: str) -> list[dict[str, Any]]:
        """What arrived about an input: of its job, and of its run."""
        jobs = [d for path, d in self.taken if path == "/jobs" and d["data"]["input"]["key"] == key]
        runs = {one["data"]["run"] for one in jobs}
        return jobs + [d for path, d in self.taken if path == "/runs" and d["data"]["run"] in runs]


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        at_s = float(self.headers["webhook-timestamp"])
        wanted = webhook_headers(body, self.headers["webhook-id"], at_s, KEY.encode())
        signed = self.headers["webhook-signature"] == wanted["webhook-signature"]
        self.server.unsigned += not signed
        status = 204 if self.path in self.server.refused else 500
        self.server.refused.add(self.path)
        if status == 204:
            self.server.taken.append((self.path, json.loads(body)))
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing is written."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live, receiver: Receiver) -> None:
    secret = live.path / "signing-key"
    secret.write_text(KEY)
    live.client("sqs").create_queue(QueueName="ends")
    text = DEFINITION.replace("URL", receiver.url).replace("SECRET", str(secret))
    live.deploy_text("pair", text, {"copy.sh": COPY})


@pytest.fixture(autouse=True)
def _no_orchestrator_left(live: Live) -> Iterator[None]:
    yield
    for name in [n for n in live.children if n.startswith("orchestrator")]:
        live.children[name].kill()
        live.wait(name)


def queued(live: Live) -> list[dict[str, Any]]:
    """What the queue got so far."""
    sqs = live.client("sqs")
    url = sqs.get_queue_url(QueueName="ends")["QueueUrl"]
    found = []
    while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10).get("Messages"):
        found += [json.loads(one["Body"]) for one in messages]
        for one in messages:
            sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
    return found


POINTS = (
    "none",
    "before:DeleteMessages",  # the end is recorded, no notice is sent
    "after:DeleteMessages",  # it is sent, the message is gone
    "before:EndRun",
    pytest.param("after:FinishJob", marks=pytest.mark.soak),
    pytest.param("after:EndRun", marks=pytest.mark.soak),
)


@pytest.mark.parametrize("point", POINTS)
def test_no_end_is_lost_between_an_end_and_its_notice(
    live: Live, receiver: Receiver, point: str, tmp_path: Path
) -> None:
    key = f"in/{point}.txt".replace(":", "-")
    command = (sys.executable, CRASHING, point, str(tmp_path / "crashed"))
    live.start("orchestrator-1", "orchestrator", command)
    live.client("s3").put_object(Bucket="pair", Key=key, Body=b"x")
    last = "orchestrator-1"
    if point != "none":
        assert live.wait("orchestrator-1") == -9
        last = "orchestrator-2"
        live.start(last, "orchestrator")
    kinds = {"job.ended", "run.ended"}
    until("both ends", lambda: {one["type"] for one in receiver.of(key)} == kinds)
    found = receiver.of(key)
    assert {one["data"]["state"] for one in found} == {"SUCCEEDED"}
    assert len({one["id"] for one in found}) == 2, "doubled ones have the same id"
    assert receiver.unsigned == 0
    live.quiet("prepare", "finish")
    missing = {one["id"] for one in found}

    def all_queued() -> bool:
        missing.difference_update(one["id"] for one in queued(live))
        return not missing

    until("the messages of the queue", all_queued)
    assert live.terminate(last) == 0
