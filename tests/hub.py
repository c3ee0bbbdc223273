"""A stand-in of the Hugging Face Hub on loopback: its API, and a store that large files are in.

It follows the hub's documented API: `GET /api/models/REPO/revision/REV?blobs=true`, and
`GET /REPO/resolve/COMMIT/PATH`, which redirects to signed URLs of another host for large files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" * 6 + "c0ff"
LARGE = b"weights" * 2000
#: `(large, content)` by path.
FILES = {
    "config.json": (False, b"{}"),
    "onnx/a model.onnx": (True, LARGE),
    "onnx/empty.txt": (False, b""),
}


def git_hash(content: bytes) -> str:
    """Git's hash of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Hub:
    """One repository `acme/reader` whose branch `main` is `COMMIT`; changeable."""

    def __init__(self) -> None:
        self.files = dict(FILES)
        self.token = ""  #: "" = public
        self.asked: list[tuple[str, str]] = []  #: path and range of each read
        self.store_headers: list[dict[str, str]] = []
        self.url = self.store_url = ""

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """One request to the hub's own host."""
        path = unquote(urlsplit(request.path).path)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            send(request, 401, b"Invalid username or password.")
        elif re.fullmatch(f"/api/models/acme/reader/revision/(main|{COMMIT})", path):
            send(request, 200, json.dumps(self.listing()).encode())
        elif (name := path.removeprefix(f"/acme/reader/resolve/{COMMIT}/")) in self.files:
            large, content = self.files[name]
            self.asked.append((name, request.headers.get("Range", "")))
            if large:
                signed = f"{self.store_url}/{hashlib.sha256(content).hexdigest()}?sign=a%2Bb%3D"
                send(request, 302, b"", {"Location": signed})
            else:
                send_part(request, content)
        else:
            send(request, 404, b"")

    def store(self, request: BaseHTTPRequestHandler) -> None:
        """One request to the store of large files."""
        self.store_headers.append(dict(request.headers))
        signed = request.path.endswith("?sign=a%2Bb%3D")
        content = next(content for large, content in self.files.values() if large)
        send_part(request, content) if signed else send(request, 403, b"")

    def listing(self) -> dict[str, object]:
        siblings = []
        for path, (large, content) in self.files.items():
            one = {"rfilename": path, "size": len(content), "blobId": git_hash(content)}
            if large:
                digest = hashlib.sha256(content).hexdigest()
                pointer = b"version https://git-lfs.github.com/spec/v1\n" + digest.encode()
                one["blobId"] = git_hash(pointer)
                one["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": len(pointer)}
            siblings.append(one)
        return {"id": "acme/reader", "sha": COMMIT, "private": False, "siblings": siblings}


def send_part(request: BaseHTTPRequestHandler, content: bytes) -> None:
    """Answer with the range that was asked for."""
    found = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    if found is None:
        send(request, 200, content)
        return
    start, stop = int(found[1]), int(found[2] or len(content) - 1) + 1
    shown = {"Content-Range": f"bytes {start}-{stop - 1}/{len(content)}"}
    send(request, 206, content[start:stop], shown)


def send(
    request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str] | None = None
) -> None:
    """Answer."""
    request.send_response(status)
    for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
        request.send_header(name, value)
    request.end_headers()
    request.wfile.write(body)


@contextlib.contextmanager
def hub() -> Iterator[Hub]:
    """A running stand-in."""
    made = Hub()
    with serving(made.answer) as made.url, serving(made.store) as made.store_url:
        yield made


@contextlib.contextmanager
def serving(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """A server of GET on a port of loopback; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
