"""Fetches from the Hugging Face Hub, from a stand-in of its API."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.parse import parse
from fdl.plan.data import data_notices, with_data
from fdl.plan.facts import Facts
from fdl.plan.groups import deployed
from gpu_scheduler.data_manifest import digest_of
from gpu_scheduler.model import Request
from orchgpu.adapters.aws.deploy.facts import FactsReader
from remote_gpu.host.data.fetch import Fetch, Task
from remote_gpu.host.data.sources import present_of, source_of
from tests.hub import COMMIT, FILES, LARGE, Hub, git_hash, hub

MAIN = "hf://acme/reader@main"
PINNED = f"hf://acme/reader@{COMMIT}"


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield made


def fetched(text: str, folder: Path) -> None:
    """Fetch a source as gpud does."""
    folder.mkdir(exist_ok=True)

    async def run() -> None:
        source = source_of(text)
        known = digest_of((await present_of(text))[1])
        task = Task(source=text, digest=known, folder=str(folder), part_bytes=5000, parent=0)
        fetch = Fetch(task, source)
        fetch.most_bytes = 10**6
        try:
            await fetch.run(await fetch.manifest())
        finally:
            await source.close()

    asyncio.run(run())


def files_in(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def test_a_branch_is_pinned_to_its_commit_and_files_by_the_hashes_of_the_hub(there: Hub) -> None:
    pinned, manifest = asyncio.run(present_of(MAIN))
    assert pinned == PINNED
    assert manifest.bytes == len(LARGE) + 2
    assert manifest.text == (
        f"git:{git_hash(b'{}')}  config.json\n"
        f"sha256:{hashlib.sha256(LARGE).hexdigest()}  onnx/a model.onnx\n"
        f"git:{git_hash(b'')}  onnx/empty.txt\n"
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("", {name: content for name, (_, content) in FILES.items()}),
        ("/onnx", {"a model.onnx": LARGE, "empty.txt": b""}),
        ("/onnx/a model.onnx", {"a model.onnx": LARGE}),
    ],
)
def test_a_repository_a_folder_or_a_file_arrives(
    there: Hub, tmp_path: Path, path: str, expected: dict[str, bytes]
) -> None:
    fetched(PINNED + path, tmp_path / "set")
    assert files_in(tmp_path / "set" / "files") == expected


def test_a_fetch_continues_behind_the_parts_on_the_disk(there: Hub, tmp_path: Path) -> None:
    fetched(PINNED, tmp_path / "set")
    log = tmp_path / "set" / "parts.jsonl"
    log.write_bytes(b"".join(log.read_bytes().splitlines(keepends=True)[:3]))
    there.asked.clear()
    fetched(PINNED, tmp_path / "set")
    assert len(there.asked) == 5 - 2  # parts of the set, without those that were here
    assert files_in(tmp_path / "set" / "files")["onnx/a model.onnx"] == LARGE


def test_the_token_goes_to_the_hub_alone(
    there: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.token = "hf_secret"
    with pytest.raises(AppError, match="HF_TOKEN of this machine may not read it") as raised:
        asyncio.run(present_of(MAIN))
    assert raised.value.code is ErrorCode.DENIED
    monkeypatch.setenv("HF_TOKEN", there.token)
    fetched(PINNED, tmp_path / "set")
    assert there.store_headers
    assert all("Authorization" not in headers for headers in there.store_headers)


@pytest.mark.parametrize("name", ["config.json", "onnx/a model.onnx"])
def test_another_content_than_the_listed_one_is_refused(
    there: Hub, tmp_path: Path, name: str
) -> None:
    listed = there.listing()
    there.listing = lambda: listed  # type: ignore[method-assign]
    large, content = there.files[name]
    there.files[name] = (large, content[::-1])
    with pytest.raises(AppError, match=f"the content of {name} is") as raised:
        fetched(PINNED, tmp_path / "set")
    assert raised.value.code is ErrorCode.CONFLICT


def test_an_absent_repository_or_path_is_named(there: Hub) -> None:
    with pytest.raises(AppError, match="hf://acme/other@main does not exist, or") as raised:
        asyncio.run(present_of("hf://acme/other@main"))
    assert raised.value.code is ErrorCode.NOT_FOUND
    with pytest.raises(AppError, match=f"{MAIN}/x has no file"):
        asyncio.run(present_of(f"{MAIN}/x"))


def test_an_endpoint_that_is_no_hub_is_named(there: Hub) -> None:
    there.listing = dict  # type: ignore[method-assign]
    with pytest.raises(AppError, match="does not list hf://acme/reader@main as the Hugging"):
        asyncio.run(present_of(MAIN))


DEFINITION = f"""\
functions:
  aws:
  - lambda:
      name: f
      init_script: run.sh
      input: [inn/a]
      output: [out/b]
    data: {{reader: {MAIN}}}
    gpu: {{}}
"""


def test_deploy_declares_the_commit_and_the_size(there: Hub) -> None:
    (function,) = deployed(parse(DEFINITION, "f"))
    reader = FactsReader({}.__getitem__, None, None)  # type: ignore[arg-type]
    facts = Facts(data=reader.data([function]))
    (declared,) = with_data(Request(), function, facts).data_sets
    assert (declared.source, declared.bytes) == (PINNED, len(LARGE) + 2)
    assert declared.digest == digest_of(asyncio.run(present_of(PINNED))[1])
    (notice,) = data_notices(function, facts)
    assert notice.startswith(f"f: data reader is {PINNED} at sha256:")
    with pytest.raises(AppError, match="was not read: this cloud reads no sources"):
        with_data(Request(), function, Facts())
