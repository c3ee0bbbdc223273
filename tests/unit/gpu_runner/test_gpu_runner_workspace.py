"""The folder of a run: private, swept and removed."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lambda_functions.gpu_runner.sandbox import (
    NAME_BYTES_MAX,
    Workspace,
    input_name,
    own_folder,
    sweep,
    sweep_sandbox,
)

ROOT = Path(__file__).parents[3]


def test_a_workspace_is_private_and_removed(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        assert stat.S_IMODE(workspace.root.stat().st_mode) == 0o700
        assert {p.name for p in workspace.root.iterdir()} == {"input", "output"}
        (workspace.root / "deep").mkdir()
        (workspace.root / "deep/file").write_text("x")
        (workspace.root / "out").symlink_to("/etc")
    assert list(tmp_path.iterdir()) == []
    workspace.remove()


def test_the_target_of_a_link_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("x")
    with Workspace(tmp_path) as workspace:
        (workspace.output / "link").symlink_to(tmp_path / "mine")
        workspace.input.rmdir()
        workspace.input.symlink_to(tmp_path / "mine")
    assert (tmp_path / "mine/file").read_text() == "x"


@pytest.mark.skipif(os.geteuid() == 0, reason="modes do not bind root")
def test_unwritable_folders_are_removed(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        (workspace.root / "a/b").mkdir(parents=True)
        (workspace.root / "a/b").chmod(0)
        (workspace.root / "a").chmod(0o500)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_removes_folders_of_dead_processes_only(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from lambda_functions.gpu_runner.sandbox import Workspace;"
        f"w = Workspace(pathlib.Path({str(tmp_path)!r}));"
        "(w.output / 'left').write_text('secret'); os._exit(1)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT)
    (tmp_path / "other").mkdir()
    with Workspace(tmp_path) as living:
        assert len(list(tmp_path.iterdir())) == 3
        assert sweep(tmp_path) == 1
        assert living.root.exists()
        assert sweep(tmp_path) == 0
    assert [p.name for p in tmp_path.iterdir()] == ["other"]


def test_a_folder_shared_with_others_is_not_swept(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert own_folder(tmp_path, in_lambda=False) == frozenset()
    tmp_path.chmod(0o755)
    assert own_folder(tmp_path, in_lambda=False) is None
    tmp_path.chmod(0o700)
    (tmp_path / "before").write_text("")
    assert own_folder(tmp_path, in_lambda=False) is None
    assert own_folder(tmp_path, in_lambda=True) == frozenset({tmp_path / "before"})


def test_a_sandbox_that_owns_its_tmp_is_emptied(tmp_path: Path) -> None:
    (tmp_path / "before").write_text("")
    known = frozenset(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    (tmp_path / "folder/deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    assert sweep_sandbox(tmp_path, known) == 4
    assert frozenset(tmp_path.iterdir()) == known


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("a/b.txt", "b.txt"),
        ("x", "x"),
        ("a/", "input"),
        ("..", "input"),
        ("a/.", "input"),
        ("sp ace", "sp ace"),
        ("a/ü.x", "ü.x"),
        ("a\0b", "ab"),
        ("a\\b", "a\\b"),
    ],
)
def test_the_name_of_the_input(key: str, name: str) -> None:
    assert input_name(key) == name


@given(st.text(max_size=400))
def test_every_key_gives_a_valid_file_name(key: str) -> None:
    name = input_name(key)
    assert name not in ("", ".", "..")
    assert not set(name) & {"/", "\0"}
    assert len(os.fsencode(name)) <= NAME_BYTES_MAX


def test_the_end_of_a_long_name_is_kept() -> None:
    assert input_name("é" * 600 + ".png").endswith("é.png")


def test_folders_deeper_than_any_path_are_removed(tmp_path: Path) -> None:
    with Workspace(tmp_path) as workspace:
        here = os.open(workspace.output, os.O_RDONLY)
        for number in range(3000):
            os.mkdir("deep", dir_fd=here)
            inner = os.open("deep", os.O_RDONLY, dir_fd=here)
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
            os.fchmod(here, 0o500 if number % 2 else 0o700)
            os.close(here)
            here = inner
        os.close(here)
    assert list(tmp_path.iterdir()) == []


def test_a_root_replaced_by_a_link_keeps_its_target(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("x")
    workspace = Workspace(tmp_path)
    workspace.root.rename(tmp_path / "moved")
    workspace.root.symlink_to(tmp_path / "mine")
    workspace.remove()
    assert not workspace.root.is_symlink()
    assert (tmp_path / "mine/file").read_text() == "x"


def test_files_of_lambda_extensions_stay(tmp_path: Path) -> None:
    """Their programs run beside the function, and write to the same folder at any time."""
    shared, extensions = tmp_path / "tmp", tmp_path / "extensions"
    shared.mkdir()
    assert own_folder(shared, in_lambda=True, extensions=extensions) == frozenset()
    extensions.mkdir()
    assert own_folder(shared, in_lambda=True, extensions=extensions) == frozenset()
    (extensions / "agent").touch()
    assert own_folder(shared, in_lambda=True, extensions=extensions) is None
