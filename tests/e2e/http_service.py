"""The container of an HTTP service as a process, and a gateway before it that is not kind."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.e2e.own_live import OwnLive


@contextmanager
def container(live: OwnLive) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its address and its process."""
    environment = {
        **live.environment,
        "ORCHGPU_STATE_BUCKET": "orchgpu-state-000000000000-us-east-1",
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "remote_gpu.host.runs.in_service", "--listen", "127.0.0.1:0"]
    log = (live.home.logs / "container.log").open("w")
    with (
        log,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            yield process.stdout.readline().rsplit(" ", 1)[-1].strip(), process
        finally:
            process.kill()


class Gateway(ThreadingHTTPServer):
    """It answers at once, as OpenFaaS's queue, and delivers each event twice: the first request is
    cut as soon as the container has begun."""

    daemon_threads = False

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Delivery)
        self.target = target
        self.ends: list[str] = []  #: of the deliveries

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Delivery(BaseHTTPRequestHandler):
    server: Gateway

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(202)
        self.send_header("content-length", "0")
        self.end_headers()
        self.wfile.flush()
        headers = {name: self.headers[name] for name in ("ce-id", "ce-type", "ce-specversion")}
        headers["connection"] = "close"
        for end in ("cut", ""):
            connection = http.client.HTTPConnection(self.server.target, timeout=60)
            connection.request("POST", "/", body, headers)
            with connection.getresponse() as answer:
                self.server.ends.append(end or answer.read().decode().strip().rpartition("\n")[2])

    def log_message(self, *_: object) -> None:
        """Nothing."""


@contextmanager
def twice_delivering(target: str) -> Iterator[Gateway]:
    """A gateway before the container at an address."""
    with Gateway(target) as gateway:
        serving = threading.Thread(target=gateway.serve_forever)
        serving.start()
        try:
            yield gateway
        finally:
            gateway.shutdown()
            serving.join()
