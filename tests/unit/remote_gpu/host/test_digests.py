"""Digests of host data: by content, kept by inode, size and time of change."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from remote_gpu.client.uses import UsesFile
from remote_gpu.host.digests import Digests
from remote_gpu.worker.operation import LaneUses


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest(state: Path, path: Path) -> str:
    return Digests(state).of({"data": {"d": path}})["data"]["d"]


def test_a_changed_file_has_another_digest(tmp_path: Path) -> None:
    file, state = tmp_path / "d", tmp_path / "digests.json"
    file.write_bytes(b"one")
    assert digest(state, file) == sha256(b"one")
    file.write_bytes(b"three")
    assert digest(state, file) == sha256(b"three")


def test_an_unchanged_file_is_not_read_again(tmp_path: Path) -> None:
    file, state = tmp_path / "d", tmp_path / "digests.json"
    file.write_bytes(b"one")
    first = digest(state, file)
    status = file.stat()
    file.write_bytes(b"two")  # the same size, and then the same time: taken for the same content
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digest(state, file) == first
    state.write_text("{torn")
    assert digest(state, file) == sha256(b"two")


def test_a_folder_is_its_files(tmp_path: Path) -> None:
    folder, state = tmp_path / "d", tmp_path / "digests.json"
    (folder / "z").mkdir(parents=True)
    (folder / "z" / "a").write_bytes(b"1")
    (folder / "b").write_bytes(b"2")
    before = digest(state, folder)
    assert before == sha256(f"{sha256(b'2')}  b\n{sha256(b'1')}  z/a\n".encode())
    (folder / "b").rename(folder / "c")
    assert digest(state, folder) != before


def test_names_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    state = tmp_path / "digests.json"
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(name.encode())
        digest(state, tmp_path / name)
    assert list(json.loads(state.read_text())) == [str(tmp_path / "b")]


def test_unreadable_content_has_no_digest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert digest(tmp_path / "digests.json", tmp_path / "none") == ""
    assert "the content cannot be read" in caplog.text


def test_a_lane_tells_a_use_once_and_a_better_digest_again() -> None:
    uses = LaneUses()
    assert uses.take() is None
    uses.add("data", "p", "")
    uses.add("data", "p", "")
    assert uses.take() == {"data": {"p": ""}}
    uses.add("data", "p", "1")
    uses.add("data", "p", "")  # the last known one stands
    uses.add("programs", "p", "2")
    assert uses.take() == {"data": {"p": "1"}, "programs": {"p": "2"}}
    uses.add("data", "p", "1")
    assert uses.take() is None


def test_the_query_of_an_address_is_not_noted(tmp_path: Path) -> None:
    """A presigned address is a credential."""
    file = tmp_path / "uses"
    file.touch()
    uses = UsesFile(str(file))
    uses.resource("sha256:00", "model", "https://h/b/m.onnx?X-Amz-Signature=s3cret")
    uses.resource("sha256:01", "model", b"bytes")
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["source"], second["source"]) == ("https://h/b/m.onnx", "")
