"""Lupine's server as far as its client goes without a GPU: it hands out the client's libraries.

GET /.well-known/lupine/client/v1/<platform> → a zip with a manifest, its sha256 as ETag. The two
libraries in it are copies of one of the system's.
"""

import hashlib
import io
import json
import os
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PATH = "/.well-known/lupine/client/v1/"


def library() -> bytes:
    """Any that can be loaded anywhere: one that this very process has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    loaded = [line.split()[-1] for line in lines if "libc.so" in line or "libm.so" in line]
    return Path(loaded[0]).read_bytes()


def bundle(platform: str) -> bytes:
    data = library()
    names = ("libcuda.so.1", "libnvidia-ml.so.1")
    files = [{"path": name, "sha256": hashlib.sha256(data).hexdigest()} for name in names]
    manifest = {"schema": 1, "platforms": [platform], "files": files}
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name in names:
            archive.writestr(name, data)
    return target.getvalue()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if not self.path.startswith(PATH):
            self.send_error(404)
            return
        body = bundle(self.path.removeprefix(PATH))
        self.send_response(200)
        self.send_header("ETag", f'"sha256:{hashlib.sha256(body).hexdigest()}"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(os.environ["LUPINE_PORT"])), Handler).serve_forever()
