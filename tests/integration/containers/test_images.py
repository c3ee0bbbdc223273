"""Images by digest: from an archive that the run gives, and from a registry; kept and evicted."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from contract.states import Reason
from corekit.errors import AppError, ErrorCode
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.script import container
from remote_gpu.host.containers.images import ArchiveNeeded, Images
from tests.integration.containers.conftest import SPACE_BYTES, Hosted
from tests.leaks import no_task_left

pytestmark = pytest.mark.asyncio


@no_task_left
async def test_an_archive_is_given_once_and_checked(hosted: Hosted, archived: Path) -> None:
    digest = _sha256(archived)
    order = hosted.order("exit", "4", image=f"s3://bucket/image.tar#sha256:{digest}")
    asked: list[tuple[str, str]] = []

    def download(bucket: str, key: str) -> Path:
        asked.append((bucket, key))
        copy = archived.with_name("downloaded")
        copy.write_bytes(archived.read_bytes())
        return copy

    for _ in range(2):
        async with hosted.run(order) as one:
            await asyncio.to_thread(container.prepare, one.descriptor, 60, download)
            process = await hosted.started(one)
            assert await process.wait() == 4
            await process.communicate()
    assert asked == [("bucket", "image.tar")]
    assert not archived.with_name("downloaded").exists()

    wrong = hosted.order(image=f"s3://bucket/image.tar#sha256:{64 * '0'}")
    async with hosted.run(wrong) as one:
        with pytest.raises(AttemptFailed, match="has the SHA-256") as failed:
            await asyncio.to_thread(container.prepare, one.descriptor, 60, download)
        assert failed.value.reason is Reason.SCRIPT_ERROR


@no_task_left
async def test_an_image_that_cannot_be_had_fails_the_attempt(hosted: Hosted) -> None:
    image = f"localhost:1/absent@sha256:{64 * '0'}"
    async with hosted.run(hosted.order(image=image)) as one:
        with pytest.raises(AttemptFailed, match="podman pull"):
            await asyncio.to_thread(container.prepare, one.descriptor, 60, lambda *_: Path())


@no_task_left
async def test_images_beyond_the_space_are_evicted_but_not_in_use(
    hosted: Hosted, archived: Path, tmp_path: Path
) -> None:
    digest = _sha256(archived)
    reference = f"s3://bucket/image.tar#sha256:{digest}"
    small = Images(hosted.host.podman, tmp_path, space_bytes=1000)
    with pytest.raises(ArchiveNeeded):
        async with small.lent(reference):
            pass
    with archived.open("rb") as file, pytest.raises(AppError, match="this host's space") as refused:
        async with small.lent(reference, file.fileno()):
            pass
    assert refused.value.code is ErrorCode.INVALID
    kept = Images(hosted.host.podman, tmp_path, SPACE_BYTES)
    with archived.open("rb") as file:
        async with kept.lent(reference, file.fileno()) as image:
            size = (await kept._sizes())[image]
            filled = Images(hosted.host.podman, tmp_path, size)
            async with filled.lent(reference) as again:  # as a gpud that begins anew
                assert again == image
            assert set(await kept._sizes()) == {image}  # the older one had to go
    hosted.host.images.note("", image)


@no_task_left
async def test_an_image_comes_from_a_registry_by_its_digest(
    hosted: Hosted, pushed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with _registry(pushed) as port:
        config = tmp_path / "registries.conf"
        config.write_text(f'[[registry]]\nlocation = "127.0.0.1:{port}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(config))
        digest = _sha256(pushed / "manifest.json")
        host = hosted.again()
        order = host.order("exit", "5", image=f"127.0.0.1:{port}/tests/program@sha256:{digest}")
        assert (await host.ran_of(order)).status == 5
    assert (await host.ran_of(order)).status == 5  # kept


@pytest.fixture
def pushed(hosted: Hosted, tmp_path: Path) -> Path:
    """The program's image as files: `manifest.json`, and blobs by their SHA-256."""
    folder = tmp_path / "pushed"
    words = ("push", "--quiet", hosted.image, f"dir:{folder}")
    asyncio.run(hosted.host.podman.call(*words, limit_s=60))
    return folder


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextlib.contextmanager
def _registry(folder: Path) -> Iterator[int]:
    """A registry of one image (OCI distribution specification: only what a pull needs)."""
    manifest = (folder / "manifest.json").read_bytes()
    oci = "application/vnd.oci.image.manifest.v1+json"
    media_type = json.loads(manifest).get("mediaType", oci)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            last = self.path.rpartition("/")[2]
            blob = folder / last.removeprefix("sha256:")
            if self.path == "/v2/":
                self._send(b"{}", "application/json")
            elif "/manifests/" in self.path:
                self._send(manifest, media_type)
            elif "/blobs/" in self.path and blob.is_file():
                self._send(blob.read_bytes(), "application/octet-stream")
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _send(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
