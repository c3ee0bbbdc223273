"""A file is replaced as a whole, with the mode that it was given; a failure leaves the old one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from corekit.aio.files import replace_file


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"old")
    replace_file(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_private_unless_another_mode_is_given(tmp_path: Path) -> None:
    replace_file(tmp_path / "private", b"")
    replace_file(tmp_path / "shared", b"", mode=0o644)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("private", "shared")]
    assert modes == [0o600, 0o644 & ~_umask()]


def test_what_an_earlier_try_left_is_not_written_into(tmp_path: Path) -> None:
    """It may be a link to another file, or be opened by another program."""
    other = tmp_path / "other"
    other.write_bytes(b"other")
    (tmp_path / f"key.{os.getpid()}.new").symlink_to(other)
    replace_file(tmp_path / "key", b"new")
    assert other.read_bytes() == b"other"
    assert not (tmp_path / "key").is_symlink()


def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
