"""A package: checked, unpacked once, and nowhere but in its folder."""

from __future__ import annotations

import hashlib
import io
import zipfile
from pathlib import Path

import pytest

from corekit.errors import AppError
from remote_gpu.host.runs import package as packages
from remote_gpu.host.runs.launch import owners_of
from remote_gpu.host.runs.package import unpacked
from remote_gpu.host.workers.tenant_storage import evict
from remote_gpu.wire.runs import Package


def zipped(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, data)
    return buffer.getvalue()


def got(folder: Path, data: bytes, sha256: str = "") -> Path:
    """The unpacked package of these bytes."""
    for name in ("tenant", "tmp"):
        (folder / name).mkdir(exist_ok=True)
    digest = sha256 or hashlib.sha256(data).hexdigest()
    package = Package(bucket="b", key="k", sha256=digest)

    def fetch(_: Package, target: Path) -> None:
        target.write_bytes(data)

    return unpacked(package, folder / "tenant", folder / "tmp", fetch)


def test_files_keep_their_mode_and_are_fetched_once(tmp_path: Path) -> None:
    data = zipped({"script/run.sh": b"#!/bin/sh\n"}, 0o755)
    made = got(tmp_path, data)
    assert (made / "script/run.sh").stat().st_mode & 0o777 == 0o750
    assert made.stat().st_mode & 0o027 == 0
    assert not list((tmp_path / "tmp").iterdir())
    assert got(tmp_path, b"not fetched", made.name) == made


def test_modules_are_compiled(tmp_path: Path) -> None:
    made = got(tmp_path, zipped({"a/b.py": b"x = 1\n"}))
    assert list((made / "a/__pycache__").iterdir())


@pytest.mark.parametrize("name", ["../out", "a/../../out", "/out"])
def test_an_entry_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(AppError, match="outside of its folder"):
        got(tmp_path, zipped({name: b"x"}))
    assert not list((tmp_path / "tenant").iterdir())


def test_a_link_becomes_a_file(tmp_path: Path) -> None:
    made = got(tmp_path, zipped({"link": b"/etc/passwd"}, 0o120777))
    assert not (made / "link").is_symlink()
    assert (made / "link").read_bytes() == b"/etc/passwd"


def test_more_than_a_hosts_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "UNPACKED_BYTES_MAX", 10)
    with pytest.raises(AppError, match="more than 10 bytes"):
        got(tmp_path, zipped({"a": b"123456", "b": b"123456"}))
    assert not list((tmp_path / "tenant").iterdir())


@pytest.mark.parametrize("data", [b"", b"no zip", zipped({"a": b"x"})[:-10]])
def test_anything_but_a_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(AppError, match="not a readable zip"):
        got(tmp_path, data)


def test_another_content_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="another content"):
        got(tmp_path, zipped({"a": b"x"}), "0" * 64)


def test_the_owner_of_a_bucket_is_that_of_the_runners_variables() -> None:
    owner_of = owners_of({"ORCHGPU_ACCOUNT": "1", "ORCHGPU_BUCKET_OWNERS": '{"other": "2"}'})
    assert (owner_of("state"), owner_of("other")) == ("1", "2")
    assert owners_of({})("state") is None


def test_packages_in_use_are_not_evicted(tmp_path: Path) -> None:
    used, other = (got(tmp_path, zipped({"a": data})) for data in (b"used", b"other"))
    evict(tmp_path, bytes_max=0, spared=frozenset({used}))
    assert used.is_dir()
    assert not other.exists()
