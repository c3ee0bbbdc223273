"""Fetches over HTTP: in parts, of servers without ranges, resumed, verified."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from corekit.addresses import refused_address
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.data_manifest import digest_of, https_file, manifest_of
from remote_gpu.host.data import fetch as fetching
from remote_gpu.host.data.fetch import Fetch, Task
from remote_gpu.host.data.files import bytes_on_disk
from remote_gpu.host.data.sources import HttpsSource, source_of

DATA = bytes(range(250)) * 40
SHA256 = hashlib.sha256(DATA).hexdigest()


@asynccontextmanager
async def served(folder: Path, *, ranges: bool = True) -> AsyncIterator[tuple[str, list[str]]]:
    """The URL of a file with `DATA`, and the ranges that were asked for."""
    (folder / "x.bin").write_bytes(DATA)
    asked: list[str] = []
    target = folder / "set" / "files" / "x.bin"

    async def get(request: web.Request) -> web.StreamResponse:
        # what an ordinary user needs to open it
        assert not asked or target.stat().st_mode & 0o200
        asked.append(request.headers.get("Range", ""))
        return web.FileResponse(folder / "x.bin") if ranges else web.Response(body=DATA)

    app = web.Application()

    async def moved(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/x.bin")

    app.router.add_get("/x.bin", get)
    app.router.add_get("/moved", moved)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}/x.bin", asked
    finally:
        await runner.cleanup()


def target_mode(folder: Path) -> int:
    return (folder / "set" / "files" / "x.bin").stat().st_mode & 0o777


def made(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    return str(folder)


async def fetched(url: str, folder: Path, sha256: str = SHA256, most_bytes: int = 10**6) -> Fetch:
    source = HttpsSource(url, sha256, refused=refused_address)  # but not loopback
    text = f"{url}#sha256={sha256}"
    digest = digest_of(manifest_of(text, [https_file(text)]))
    task = Task(source=text, digest=digest, folder=made(folder), part_bytes=3000, parent=0)
    try:
        fetch = Fetch(task, source)
        fetch.most_bytes = most_bytes
        await fetch.run(await fetch.manifest())
        return fetch
    finally:
        await source.close()


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.asyncio
async def test_a_file_arrives_whole_and_read_only(tmp_path: Path, ranges: bool) -> None:
    async with served(tmp_path, ranges=ranges) as (url, asked):
        fetch = await fetched(url, tmp_path / "set")
    path = tmp_path / "set" / "files" / "x.bin"
    assert path.read_bytes() == DATA
    assert path.stat().st_mode & 0o777 == 0o444
    assert fetch.done_bytes == len(DATA)
    assert len(asked) == (5 if ranges else 2)  # the size, then the parts


@pytest.mark.asyncio
async def test_parts_that_are_here_are_not_read_again(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, asked):
        await fetched(url, tmp_path / "set")
        log = tmp_path / "set" / "parts.jsonl"
        log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]) + b'["x.b')
        assert target_mode(tmp_path) == 0o444  # it was verified, and not published
        assert 0 < bytes_on_disk(tmp_path / "set") <= 6000
        del asked[:]
        await fetched(url, tmp_path / "set")
    assert len(asked) == 3
    assert (tmp_path / "set" / "files" / "x.bin").read_bytes() == DATA


@pytest.mark.parametrize(
    ("sha256", "most_bytes", "code"),
    [("0" * 64, 10**6, ErrorCode.CONFLICT), (SHA256, 5000, ErrorCode.INVALID)],
)
@pytest.mark.asyncio
async def test_another_content_or_more_bytes_are_refused(
    tmp_path: Path, sha256: str, most_bytes: int, code: ErrorCode
) -> None:
    async with served(tmp_path) as (url, _):
        with pytest.raises((AppError, ExceptionGroup)) as raised:
            await fetched(url, tmp_path / "set", sha256, most_bytes)
    error = raised.value.exceptions[0] if isinstance(raised.value, ExceptionGroup) else raised.value
    assert isinstance(error, AppError)
    assert error.code is code


@pytest.mark.asyncio
async def test_an_absent_file_is_named(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, _):
        with pytest.raises(AppError, match=r"does not exist \(404\)"):
            await fetched(f"{url}.other", tmp_path / "set")


@pytest.mark.asyncio
async def test_only_progress_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_REPORT_S", 0.0)
    source = HttpsSource("http://x/", SHA256)
    task = Task(source="x", digest="", folder=made(tmp_path), part_bytes=1, parent=0)
    fetch = Fetch(task, source)
    reports = asyncio.create_task(fetching._reports(fetch))
    for done, verified in ((0, 0), (5, 0), (3, 0), (5, 0), (8, 0), (8, 2), (8, 2)):
        fetch.done_bytes, fetch.verified_bytes = done, verified
        for _ in range(3):
            await asyncio.sleep(0)
    reports.cancel()
    await asyncio.wait({reports})
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    found = [(line["done_bytes"], line["verified_bytes"]) for line in lines]
    assert found == [(0, 0), (5, 0), (8, 0), (8, 2)]


@pytest.mark.asyncio
async def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    async with served(tmp_path) as (url, asked):
        with pytest.raises(AppError, match=r"redirects \(302\), which is not followed"):
            await fetched(url.replace("x.bin", "moved"), tmp_path / "set")
    assert not asked


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "169.254.169.254", "[::1]", "0.0.0.0"])
@pytest.mark.asyncio
async def test_a_source_on_this_machine_or_at_its_credentials_is_refused(host: str) -> None:
    source = source_of(f"https://{host}:1/x#sha256={SHA256}")
    try:
        with pytest.raises(AppError, match="leads to this machine") as raised:
            await source.files()
    finally:
        await source.close()
    assert raised.value.code is ErrorCode.DENIED


@pytest.mark.asyncio
async def test_a_name_that_leads_to_this_machine_is_refused() -> None:
    source = HttpsSource(
        "https://localhost:1/x", SHA256, refused=lambda text: text in ("127.0.0.1", "::1")
    )
    try:
        with pytest.raises(AppError, match="leads to this machine"):
            await source.files()
    finally:
        await source.close()


def test_a_text_that_names_no_source_is_refused() -> None:
    with pytest.raises(AppError, match="is not a source of data"):
        source_of("ftp://x")
