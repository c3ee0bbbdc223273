"""The list of a step's files, read without trust."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from contract.run import FILES_MAX
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.storage.inputs import ListedFile, fetch_files, read_list

FILE = {"step": "cut", "bucket": "b", "key": "cut/1", "version": None, "etag": "e", "size": 3}


def listed(*files: object, version: int = 1) -> bytes:
    return json.dumps({"version": version, "run": "r", "files": files}).encode()


def test_files_lie_below_the_step_that_wrote_them() -> None:
    (file,) = read_list(listed({**FILE, "name": "deep/1.txt"}))
    assert file.path == Path("cut/deep/1.txt")
    assert (file.version, file.etag, file.size) == (None, "e", 3)


@pytest.mark.parametrize(
    "entry",
    [
        {**FILE, "name": "../1"},
        {**FILE, "name": "/etc/passwd"},
        {**FILE, "name": ""},
        {**FILE, "name": "a\0b"},
        {**FILE, "name": "x", "step": ".."},
        {**FILE, "name": "x", "step": "a/b"},
        {**FILE, "name": "x", "step": ""},
        {**FILE, "name": "x", "size": "many"},
        FILE,
        "text",
    ],
)
def test_a_list_that_leads_out_of_its_folder_is_refused(entry: object) -> None:
    with pytest.raises(AttemptFailed) as caught:
        read_list(listed(entry))
    assert caught.value.reason is Reason.INPUT_ERROR


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", listed(version=2), b"\xff"])
def test_what_is_not_a_list_is_refused(data: bytes) -> None:
    with pytest.raises(AttemptFailed, match="is not valid"):
        read_list(data)


def test_more_files_than_a_step_may_get_are_refused() -> None:
    files = [{**FILE, "name": str(n)} for n in range(FILES_MAX + 1)]
    with pytest.raises(AttemptFailed, match="at most 1000"):
        read_list(listed(*files))


def test_files_that_the_disk_cannot_hold_are_not_read(tmp_path: Path) -> None:
    file = ListedFile(Path("cut/1"), "b", "cut/1", None, "e", 2**60)
    with pytest.raises(AttemptFailed, match="larger `ephemeral_storage`"):
        fetch_files(None, [file], tmp_path)
