"""A stand-in for the EC2 instance metadata service, as unkind as the real one.

Version 1 is refused: a GET without a token, or with an expired one, is answered with 401. The
answer to the PUT does not arrive beyond the hop limit. Tests make it slow, broken or disabled.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TTL_S_MAX = 21_600


class InstanceMetadataServer:
    """The service of one instance; all attributes may be changed while it serves."""

    def __init__(self) -> None:
        self.items: dict[str, str] = {}  #: path below /latest/meta-data/ → text
        self.disabled = False  #: HttpEndpoint is off
        self.hops = 0  #: between the client and this instance
        self.hop_limit = 1  #: HttpPutResponseHopLimit
        self.resets = 0  #: the next connections are reset
        self.status: int | None = None  #: of every GET, such as 503
        self.released = threading.Event()  #: answers wait for it
        self.released.set()
        self.tokens: dict[str, float] = {}  #: token → expiry
        self.requests: list[str] = []

    def expire_tokens(self) -> None:
        """Let all tokens expire, as after six hours."""
        self.tokens = dict.fromkeys(self.tokens, 0.0)

    def new_token(self, ttl_s: int) -> str:
        token = secrets.token_urlsafe(32)
        self.tokens[token] = time.monotonic() + ttl_s
        return token

    def is_valid(self, token: str | None) -> bool:
        return token is not None and self.tokens.get(token, 0.0) > time.monotonic()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    service: InstanceMetadataServer

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_PUT(self) -> None:
        if not self._begin():
            return
        ttl = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.service.disabled or self.headers.get("X-Forwarded-For"):
            self._answer(403)
        elif self.path != "/latest/api/token":
            self._answer(404)
        elif not ttl.isdecimal() or not 1 <= int(ttl) <= TTL_S_MAX:
            self._answer(400)
        elif self.service.hops >= self.service.hop_limit:
            self.close_connection = True  # the packets of the answer are dropped on their way
            self.service.released.wait(10)
            self.rfile.read(1)
        else:
            self._answer(200, self.service.new_token(int(ttl)))

    def do_GET(self) -> None:
        if not self._begin():
            return
        service = self.service
        prefix, _, item = self.path.partition("/latest/meta-data/")
        if service.disabled:
            self._answer(403)
        elif not service.is_valid(self.headers.get("X-aws-ec2-metadata-token")):
            self._answer(401)
        elif service.status is not None:
            self._answer(service.status)
        elif prefix or item not in service.items:
            self._answer(404, "<html>404 - Not Found</html>")
        else:
            self._answer(200, service.items[item])

    def _begin(self) -> bool:
        """Note the request and wait; False when the connection is reset."""
        self.service.requests.append(f"{self.command} {self.path}")
        if self.service.resets:
            self.service.resets -= 1
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            return False
        self.service.released.wait(10)
        return True

    def _answer(self, status: int, text: str = "") -> None:
        with contextlib.suppress(OSError):  # the client gave up
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())


@contextlib.contextmanager
def serving_metadata(
    address: tuple[str, int] = ("127.0.0.1", 0),
) -> Iterator[tuple[InstanceMetadataServer, str]]:
    """A service for the length of the block, with its address."""
    service = InstanceMetadataServer()
    handler = type("Handler", (_Handler,), {"service": service})
    server = ThreadingHTTPServer(address, handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield service, f"http://{address[0]}:{server.server_address[1]}"
    finally:
        service.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
