"""Destinations of output files: filters as a property of their definition, and invalid outputs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.sandbox import remove_tree
from lambda_functions.gpu_runner.storage.outputs import Destination, find

PARTS = st.sampled_from(["a", "b", "sub/", ".txt", ".t", "", "res-"])
NAMES = st.lists(PARTS, min_size=1, max_size=4).map("".join)


@given(name=NAMES, prefixes=st.lists(PARTS, max_size=3), suffixes=st.lists(PARTS, max_size=3))
def test_filters_are_or_inside_a_list_and_between_lists(
    name: str, prefixes: list[str], suffixes: list[str]
) -> None:
    destination = Destination.of({"bucket": "b", "filter": prefixes, "suffix": suffixes})
    starts = any(name.startswith(p) for p in prefixes) or not prefixes
    ends = any(name.endswith(s) for s in suffixes) or not suffixes
    assert destination.takes(name) == (starts and ends)


@pytest.mark.parametrize(
    ("prefix", "key"),
    [("", "s/f"), ("p", "p/s/f"), ("p/q/", "p/q/s/f"), ("/p", "p/s/f"), (None, "s/f")],
)
def test_keys_keep_the_folders(prefix: str | None, key: str) -> None:
    assert Destination.of({"bucket": "b", "prefix": prefix}).key("s/f") == key


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


def names(folder: Path) -> list[str]:
    return [file.name for file in find(folder, folder.parent)]


def failed(folder: Path, message: str, **limits: int) -> None:
    with pytest.raises(AttemptFailed, match=message) as caught:
        find(folder, folder.parent, **limits)
    assert caught.value.reason is Reason.OUTPUT_ERROR


def test_files_are_sorted_by_their_whole_name(folder: Path) -> None:
    for name in ("b", "a/z", "a/b/c", "a.x", "ü", "new\nline", " "):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / "empty").mkdir()
    assert names(folder) == sorted(["b", "a/z", "a/b/c", "a.x", "ü", "new\nline", " "])


def test_a_link_inside_of_the_jobs_folder_is_followed(folder: Path) -> None:
    (folder.parent / "input").write_text("x")
    (folder / "link").symlink_to("../input")
    assert names(folder) == ["link"]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("/etc/passwd", "to outside of"),
        ("/etc", "to outside of"),
        ("gone", "broken link"),
        ("loop", "broken link"),
    ],
)
def test_other_links_are_errors(folder: Path, target: str, said: str) -> None:
    (folder / "loop").symlink_to(target)
    failed(folder, said)


def test_a_link_to_a_folder_is_an_error(folder: Path) -> None:
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    failed(folder, "link to a folder")


def test_a_linked_output_folder_is_an_error(folder: Path) -> None:
    folder.rmdir()
    (folder.parent / "private").mkdir()
    (folder.parent / "private" / "credentials.json").write_text("secret")
    folder.symlink_to("private")
    failed(folder, "link in place of a folder")


@pytest.mark.parametrize("replaced", ["output", "output/sub", "output/sub/file"])
def test_what_is_replaced_by_a_link_after_the_look_is_not_read(folder: Path, replaced: str) -> None:
    root, private = folder.parent, folder.parent / "private"
    for place in (folder / "sub", private / "sub"):
        place.mkdir(parents=True)
        (place / "file").write_text(place.parent.name)
    (private / "file").write_text("private")
    (folder / "link").symlink_to("sub/file")
    link, file = find(folder, root)
    for one in (link, file):
        with one.opened() as content:
            assert content.read() == b"output"
    (root / replaced).rename(root / "moved")
    (root / replaced).symlink_to(private / replaced.removeprefix("output").lstrip("/"))
    for one in (link, file):
        with pytest.raises(OSError), one.opened():
            pass


def test_other_file_types_are_skipped(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(folder)
        try:
            listener.bind("socket")
        finally:
            os.chdir(here)
        assert names(folder) == []


def test_a_name_other_than_utf8_is_an_error(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_text("")
    failed(folder, "UTF-8")


def test_too_many_files_are_refused(folder: Path) -> None:
    for i in range(4):
        (folder / str(i)).write_text("")
    failed(folder, "more than 3", files_max=3)


def nested(folder: Path, depth: int) -> None:
    """So many folders in one another: no single path names the innermost."""
    here = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(depth):
            os.mkdir("deeper", dir_fd=here)
            inner = os.open("deeper", os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = inner
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    finally:
        os.close(here)


def test_folders_too_deep_for_a_key_are_refused_with_the_reason(folder: Path) -> None:
    nested(folder, 3000)
    failed(folder, "nested too deeply")
    remove_tree(folder)
    assert not folder.exists()


def test_folders_as_deep_as_a_key_can_be_are_stored(folder: Path) -> None:
    nested(folder, 140)
    assert names(folder) == ["deeper/" * 140 + "file"]


def test_too_many_folders_are_refused(folder: Path) -> None:
    for number in range(3):
        (folder / str(number)).mkdir()
    failed(folder, "more than 3 output folders", folders_max=3)
