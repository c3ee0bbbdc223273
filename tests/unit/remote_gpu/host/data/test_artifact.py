"""Fetches of OCI artifacts, from a stand-in of a registry (distribution API v2)."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from corekit.addresses import refused_address
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.data_manifest import File, digest_of, manifest_of
from remote_gpu.host.data.artifact import ArtifactSource
from remote_gpu.host.data.fetch import Fetch, Task
from remote_gpu.host.data.sources import present_of, source_of
from tests.hub import send, send_part, serving

CONTENT = b"weights" * 2000
TITLE = "org.opencontainers.image.title"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def layer(content: bytes, **annotations: str) -> dict[str, object]:
    digest = f"sha256:{sha256(content)}"
    return {"mediaType": "x/y", "digest": digest, "size": len(content), "annotations": annotations}


class Registry:
    """One repository `acme/adapter`; its blobs are at another host, behind a token."""

    def __init__(self) -> None:
        self.blobs = {sha256(content): content for content in (CONTENT, b"{}")}
        self.manifest = b""
        self.url = self.store_url = ""
        self.tokens = 0
        self.store_headers: list[dict[str, str]] = []
        self.put(layer(CONTENT, **{TITLE: "weights/a.bin"}), layer(b"{}", **{TITLE: "config.json"}))

    def put(self, *layers: dict[str, object]) -> str:
        """Replace the manifest; its digest."""
        self.manifest = json.dumps({"schemaVersion": 2, "layers": layers}).encode()
        return sha256(self.manifest)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        url = urlsplit(request.path)
        if url.path == "/token":
            asked = parse_qs(url.query)
            assert asked == {"service": ["here"], "scope": ["repository:acme/adapter:pull"]}
            self.tokens += 1
            send(request, 200, json.dumps({"token": f"t{self.tokens}"}).encode())
        elif request.headers.get("Authorization") != "Bearer t1":
            scope = 'scope="repository:acme/adapter:pull"'
            challenge = f'Bearer realm="{self.url}/token",service="here",{scope}'
            send(request, 401, b"", {"WWW-Authenticate": challenge})
        elif url.path.startswith("/v2/acme/adapter/manifests/sha256:"):
            send(request, 200, self.manifest)
        elif (name := url.path.removeprefix("/v2/acme/adapter/blobs/sha256:")) in self.blobs:
            send(request, 307, b"", {"Location": f"{self.store_url}/{name}"})
        else:
            send(request, 404, b"")

    def store(self, request: BaseHTTPRequestHandler) -> None:
        self.store_headers.append(dict(request.headers))
        send_part(request, self.blobs[request.path.strip("/")])


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    with serving(made.answer) as made.url, serving(made.store) as made.store_url:
        yield made


def source(registry: Registry, digest: str = "") -> ArtifactSource:
    host = registry.url.removeprefix("http://")
    digest = digest or sha256(registry.manifest)
    return ArtifactSource(host, "acme/adapter", digest, refused=refused_address, scheme="http")


def listed(registry: Registry, digest: str = "") -> list[File]:
    async def run() -> list[File]:
        one = source(registry, digest)
        try:
            return await one.files()
        finally:
            await one.close()

    return asyncio.run(run())


def fetch(registry: Registry, folder: Path) -> None:
    """Fetch the artifact as gpud does."""

    async def run() -> None:
        one = source(registry)
        task = Task(source="x", digest=declared, folder=str(folder), part_bytes=5000, parent=0)
        fetch = Fetch(task, one)
        fetch.most_bytes = 10**6
        try:
            await fetch.run(await fetch.manifest())
        finally:
            await one.close()

    declared = digest_of(manifest_of("x", listed(registry)))
    registry.tokens = 0
    asyncio.run(run())


def test_the_files_arrive_with_an_anonymous_token(registry: Registry, tmp_path: Path) -> None:
    fetch(registry, tmp_path)
    assert (tmp_path / "files/weights/a.bin").read_bytes() == CONTENT
    assert (tmp_path / "files/config.json").read_bytes() == b"{}"
    assert registry.tokens == 1
    assert all("Authorization" not in headers for headers in registry.store_headers)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([layer(CONTENT)], "a layer without a name, as an image has"),
        ([layer(CONTENT, **{TITLE: "d", "io.deis.oras.content.unpack": "true"})], "packed folder"),
        ([layer(CONTENT, **{TITLE: "../d"})], "is not a path inside of a folder"),
        ([{"digest": "sha256:1", "size": 1}], "is not an artifact of named files"),
    ],
)
def test_what_is_not_an_artifact_of_files_is_refused(
    registry: Registry, layers: list[dict[str, object]], message: str
) -> None:
    registry.put(*layers)
    with pytest.raises(AppError, match=message) as raised:
        listed(registry)
    assert raised.value.code is ErrorCode.INVALID


def test_another_manifest_than_the_named_one_is_refused(registry: Registry) -> None:
    with pytest.raises(AppError, match="sent another manifest") as raised:
        listed(registry, "0" * 64)
    assert raised.value.code is ErrorCode.CONFLICT


def test_a_token_that_does_not_help_is_asked_for_once(registry: Registry) -> None:
    registry.tokens = 5
    with pytest.raises(AppError, match="may not be read by this machine") as raised:
        listed(registry)
    assert (raised.value.code, registry.tokens) == (ErrorCode.DENIED, 6)


@pytest.mark.parametrize("text", ["oci://acme@sha256:1", "oci://h/n:latest", "oci://h/../n@x"])
def test_a_source_names_the_digest_of_its_manifest(text: str) -> None:
    with pytest.raises(AppError, match="has not the form oci://registry/name@sha256: and 64 hex"):
        source_of(text)


@pytest.mark.parametrize("realm", ["https://a:99999/token", "https://[x/token"])
def test_a_place_of_tokens_that_is_no_url_is_named(registry: Registry, realm: str) -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        send(request, 401, b"", {"WWW-Authenticate": f'Bearer realm="{realm}"'})

    with (
        serving(answer) as registry.url,
        pytest.raises(AppError, match="is not a valid URL") as raised,
    ):
        listed(registry)
    assert raised.value.code is ErrorCode.INVALID


@pytest.mark.parametrize("text", ["oci://a:99999/x@sha256:", "https://[x/y#sha256="])
def test_a_place_that_is_no_url_is_named(text: str) -> None:
    with pytest.raises(AppError, match="is not a valid URL") as raised:
        asyncio.run(present_of(text + "0" * 64))
    assert raised.value.code is ErrorCode.INVALID


def test_files_in_many_parts_arrive_from_a_store_without_ranges(
    registry: Registry, tmp_path: Path
) -> None:
    def store(request: BaseHTTPRequestHandler) -> None:
        send(request, 200, registry.blobs[request.path.strip("/")])

    with serving(store) as registry.store_url:
        fetch(registry, tmp_path)
    assert (tmp_path / "files/weights/a.bin").read_bytes() == CONTENT
