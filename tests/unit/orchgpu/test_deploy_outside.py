"""A definition from elsewhere takes no file of the machine that deploys it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from corekit.errors import AppError
from fdl.model import Function
from fdl.parse import parse
from orchgpu.deploy import packing
from orchgpu.deploy.package import UNZIPPED_BYTES_MAX, build

KEY = "aws_secret_access_key = x"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The definition's folder, beside the home of who deploys it."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "credentials").write_text(KEY)
    (home / "run.sh").write_text("#!/bin/sh\n" + KEY)
    work = tmp_path / "work"
    (work / "extra").mkdir(parents=True)
    (work / "run.sh").write_text("#!/bin/sh\n")
    return work


def function(script: str = "run.sh", extra: str = "extra") -> Function:
    keys = f"name: f, init_script: {script}, extra_payload: {extra}"
    text = f"functions: {{aws: [{{lambda: {{{keys}}}}}]}}"
    return parse(text).functions.aws[0]


#: Ways out of the folder: script, payload, and links by their names; HOME is the home.
FORMS = {
    "payload above": ("run.sh", "../home", {}),
    "payload absolute": ("run.sh", "HOME", {}),
    "payload is a link": ("run.sh", "data", {"data": "HOME"}),
    "link in payload": ("run.sh", "extra", {"extra/credentials": "HOME/credentials"}),
    "script above": ("../home/run.sh", "extra", {}),
    "script absolute": ("HOME/run.sh", "extra", {}),
    "script is a link": ("link.sh", "extra", {"link.sh": "HOME/run.sh"}),
    "folder link in payload": ("run.sh", "extra", {"extra/home": "HOME"}),
    "link by a link": (
        "run.sh",
        "extra",
        {"extra/first": "../second", "second": "../home/credentials"},
    ),
}


def leading_out(folder: Path, form: str) -> Function:
    script, extra, links = FORMS[form]
    home = str(folder.parent / "home")
    for name, target in links.items():
        (folder / name).symlink_to(target.replace("HOME", home))
    return function(script.replace("HOME", home), extra.replace("HOME", home))


@pytest.mark.parametrize("form", FORMS)
def test_a_path_or_link_that_leads_out_is_refused(folder: Path, form: str) -> None:
    with pytest.raises(AppError, match=r"leads out of the definition's folder.*--allow-outside"):
        build(leading_out(folder, form), folder)


@pytest.mark.parametrize("form", list(FORMS)[:4])
def test_it_is_packed_where_the_deployer_allows_it(folder: Path, form: str) -> None:
    built = build(leading_out(folder, form), folder, outside=True)
    assert [file.name for file in built.files if "credentials" in file.name]


def test_links_within_the_folder_are_packed(folder: Path) -> None:
    (folder / "model.bin").write_bytes(b"weights")
    (folder / "extra/model.bin").symlink_to("../model.bin")
    built = build(function(), folder)
    assert [(file.name, file.size) for file in built.files] == [
        ("model.bin", 7),
        ("script/run.sh", 10),
    ]


def fifo(path: Path) -> None:
    os.mkfifo(path)


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # a socket's path is short
        made.bind(path.name)


@pytest.mark.parametrize("make", [fifo, a_socket])
def test_what_is_not_a_file_is_refused_without_opening_it(
    folder: Path, make: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    make(folder / "extra/odd")
    with pytest.raises(AppError, match="odd is not a file"):
        build(function(), folder)


def test_a_dangling_link_is_named(folder: Path) -> None:
    (folder / "extra/gone").symlink_to("nowhere")
    with pytest.raises(AppError, match="gone: No such file"):
        build(function(), folder)


def test_a_large_payload_is_refused_before_it_is_read(folder: Path) -> None:
    for name in "ab":
        with (folder / "extra" / name).open("wb") as file:
            file.truncate(UNZIPPED_BYTES_MAX * 6)  # sparse: about 3 GiB together
    with pytest.raises(AppError, match=r"2\.9 GiB.*larger than 250\.0 MiB unzipped.*extra/a"):
        build(function(), folder)


def test_a_file_that_changes_while_it_is_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = folder / "extra/grown"
    grown.write_bytes(b"1")
    real = packing.opened

    def opened(path: Path, root: Path | None) -> int:
        descriptor = real(path, root)
        if path == grown.resolve():
            grown.write_bytes(b"12")
        return descriptor

    monkeypatch.setattr(packing, "opened", opened)
    with pytest.raises(AppError, match="grown changed while it was read"):
        build(function(), folder)


@pytest.mark.parametrize("swapped", ["extra/file", "extra"])
def test_a_link_put_in_after_the_check_is_not_followed(folder: Path, swapped: str) -> None:
    """The check resolves links, and the open follows none: in between the path was exchanged."""
    (folder / "extra/file").write_text("mine")
    checked = packing.within(folder / "extra/file", folder)
    (folder / swapped).rename(folder / "moved")
    outside = folder.parent / "home"
    (folder.parent / "home/file").write_text(KEY)
    (folder / swapped).symlink_to(outside / "file" if swapped == "extra/file" else outside)
    with pytest.raises(AppError, match=r"leads out|changed"):
        packing.read(checked, folder.resolve(), limit=100)


def test_a_name_that_no_zip_can_hold_is_refused(folder: Path) -> None:
    (folder / os.fsdecode(b"extra/\xff")).write_text("")
    with pytest.raises(AppError, match="is not UTF-8"):
        build(function(), folder)
