"""Unpacking a zip: plain files inside its folder, of a function's size."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest

from corekit.errors import AppError
from local_cloud.sandbox import code as module
from local_cloud.sandbox.code import unpack


def archive(*entries: tuple[str, bytes, int]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as made:
        for name, data, mode in entries:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            made.writestr(info, data)
    return buffer.getvalue()


def test_files_folders_and_modes_arrive_once(tmp_path: Path) -> None:
    data = archive(
        ("app.py", b"x = 1", 0o644), ("bin/run", b"#!/bin/sh", 0o100755), ("empty/", b"", 0o40755)
    )
    folder = unpack(data, tmp_path)
    assert (folder / "app.py").read_bytes() == b"x = 1"
    assert (folder / "bin/run").stat().st_mode & 0o111
    assert not (folder / "app.py").stat().st_mode & 0o111
    assert (folder / "empty").is_dir()
    assert unpack(data, tmp_path) == folder
    assert [p.name for p in tmp_path.iterdir()] == [folder.name]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("../out", 0o644),
        ("/etc/x", 0o644),
        ("a/../../x", 0o644),
        ("link", stat.S_IFLNK | 0o777),
        ("fifo", stat.S_IFIFO | 0o644),
    ],
)
def test_nothing_leaves_the_folder_or_is_anything_but_a_file(
    tmp_path: Path, name: str, mode: int
) -> None:
    folder = unpack(archive((name, b"/etc/passwd", mode)), tmp_path / "code")
    files = [path for path in tmp_path.rglob("*") if not path.is_dir()]
    assert [path.is_symlink() or not path.is_file() for path in files] == [False]
    assert files[0].is_relative_to(folder)
    assert files[0].read_bytes() == b"/etc/passwd"


def test_a_zip_that_is_too_large_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "UNPACKED_BYTES_MAX", 1000)
    assert unpack(archive(("a", bytes(1000), 0o644)), tmp_path).is_dir()
    with pytest.raises(AppError, match="more than 1000 bytes"):
        unpack(archive(("a", bytes(600), 0o644), ("b", bytes(401), 0o644)), tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("data", [b"", b"not a zip", archive(("a", b"x" * 99, 0o644))[:60]])
def test_a_file_that_is_not_a_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(AppError, match="not a readable zip"):
        unpack(data, tmp_path)
