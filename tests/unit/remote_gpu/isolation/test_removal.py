"""Folders of leases go, whatever a lease did to keep them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from remote_gpu.host.workers.tenant_storage import evict
from remote_gpu.isolation.removal import remove_tree

DEPTH = sys.getrecursionlimit() + 500


def nested(folder: Path) -> None:
    """Deeper than Python recurses; a path to its end would be longer than the kernel takes."""
    step = os.open(folder, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("deeper", dir_fd=step)
        below = os.open("deeper", os.O_RDONLY, dir_fd=step)
        os.close(step)
        step = below
    os.close(os.open("hidden", os.O_CREAT | os.O_WRONLY, dir_fd=step))
    os.close(step)


def test_a_tree_is_removed_whatever_is_in_it(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    (folder / "closed" / "within").mkdir(parents=True)
    (folder / "closed" / "file").write_bytes(b"x")
    elsewhere.mkdir()
    (elsewhere / "stays").write_bytes(b"x")
    (folder / "link").symlink_to(elsewhere)
    (folder / "closed" / "link").symlink_to(elsewhere)
    nested(folder)
    for path in (folder / "closed" / "within", folder / "closed", folder):
        path.chmod(0)
    remove_tree(folder)
    remove_tree(folder)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["elsewhere", "stays"]


def test_a_link_is_removed_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "stays").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "stays")
    remove_tree(tmp_path / "link")
    assert (tmp_path / "stays").is_dir()


@pytest.mark.parametrize("bytes_max", [0, 1 << 30])
def test_an_item_nested_too_deep_is_evicted_first(tmp_path: Path, bytes_max: int) -> None:
    (tmp_path / "hostile").mkdir()
    (tmp_path / "other").mkdir()
    nested(tmp_path / "hostile")
    (tmp_path / "other" / "content").write_bytes(b"x")
    evict(tmp_path, bytes_max=bytes_max)
    assert [path.name for path in tmp_path.iterdir()] == (["other"] if bytes_max else [])
