"""Places, and the files that objects become."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from corekit.errors import AppError
from orchgpu.jobs.files import PUT_BYTES_MAX, check_file
from orchgpu.jobs.places import At, file_below, parse_url
from tests.commandline import run


def test_a_place_is_a_bucket_and_a_prefix() -> None:
    assert parse_url("s3://b") == At(bucket="b")
    assert parse_url("s3://b/x/y") == At(bucket="b", prefix="x/y")
    assert parse_url("s3://b/x/").url == "s3://b/x/"


@pytest.mark.parametrize("text", ["", "s3://", "s3:///x", "http://b/x", "b/x"])
def test_a_malformed_location_is_refused(text: str) -> None:
    with pytest.raises(AppError, match="is not a location"):
        parse_url(text)


@pytest.mark.parametrize("key", ["../../etc/x", "/etc/x", "./etc//x", "etc/../x/../etc/x"])
def test_no_key_leaves_the_folder(key: str, tmp_path: Path) -> None:
    assert file_below(tmp_path, key).resolve().is_relative_to(tmp_path)


@pytest.mark.parametrize("key", ["", "/", "..", "./.."])
def test_a_key_that_names_no_file_is_refused(key: str, tmp_path: Path) -> None:
    with pytest.raises(AppError, match="names no file"):
        file_below(tmp_path, key)


@pytest.mark.parametrize(
    ("prefix", "key", "meant"),
    [
        ("", "a", True),
        ("", "f/", False),
        ("a", "a", True),
        ("a", "ab", False),
        ("a", "a/b", True),
        ("a/", "a/b", True),
    ],
)
def test_a_name_means_itself_or_everything_below(prefix: str, key: str, meant: bool) -> None:
    assert At(bucket="b", prefix=prefix).means(key) is meant


def test_a_file_that_can_be_no_object_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    foreign = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    foreign.touch()
    huge = tmp_path / "huge"
    with huge.open("wb") as sparse:
        sparse.truncate(PUT_BYTES_MAX + 1)
    for file, why in (
        (foreign, "is not UTF-8"),
        (huge, "5368709121 bytes"),
        (tmp_path / "nix", "no file"),
        (tmp_path / ("x" * 300), "cannot read"),
    ):
        with pytest.raises(AppError, match=why):
            check_file(file)


@pytest.mark.parametrize(
    ("shell", "says"), [("bash", "complete -o"), ("zsh", "#compdef orchgpu"), ("fish", "complete")]
)
def test_completion_is_printed_for_every_shell(
    shell: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    shown = capsys.readouterr().out
    assert says in shown
    assert "_ORCHGPU_COMPLETE" in shown
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=shown, text=True, check=True)
