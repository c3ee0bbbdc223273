"""Unpacking a zip: harmless ones as they are, all others refused and nothing left."""

from __future__ import annotations

import io
import stat
import zipfile
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from local_cloud.sandbox import unpack as module
from local_cloud.sandbox.unpack import unpack


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
    "entries",
    [
        [("../out", b"x", 0o644)],
        [("/etc/x", b"x", 0o644)],
        [("a/../../x", b"x", 0o644)],
        [("a\\..\\x", b"x", 0o644)],
        [("link", b"/etc/passwd", stat.S_IFLNK | 0o777)],
        [("fifo", b"", stat.S_IFIFO | 0o644)],
    ],
)
def test_a_harmful_zip_is_refused_and_leaves_nothing(
    tmp_path: Path, entries: list[tuple[str, bytes, int]]
) -> None:
    folder = tmp_path / "code"
    with pytest.raises(AppError) as error:
        unpack(archive(("good", b"x", 0o644), *entries), folder)
    assert error.value.code is ErrorCode.INVALID
    assert repr(entries[0][0]) in error.value.message
    assert list(folder.iterdir()) == []
    assert [p.name for p in tmp_path.iterdir()] == ["code"]


def test_a_name_may_be_there_only_once(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        data = archive(("a", b"1", 0o644), ("a", b"2", 0o644))
    with pytest.raises(AppError, match="twice"):
        unpack(data, tmp_path)


def test_sizes_are_counted_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "UNPACKED_BYTES_MAX", 1000)
    assert unpack(archive(("a", bytes(1000), 0o644)), tmp_path).is_dir()
    with pytest.raises(AppError, match="more than 1000 bytes"):
        unpack(archive(("a", bytes(600), 0o644), ("b", bytes(401), 0o644)), tmp_path)


@pytest.mark.parametrize("data", [b"", b"not a zip", archive(("a", b"x" * 99, 0o644))[:60]])
def test_a_file_that_is_not_a_zip_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(AppError, match="not a readable zip"):
        unpack(data, tmp_path)
