"""The ready file is whole or not there; where it cannot be written, the program says so."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from corekit.aio.process import write_ready
from corekit.errors import AppError, ErrorCode


def test_it_is_written_whole(tmp_path: Path) -> None:
    write_ready(tmp_path / "ready", {"socket": "127.0.0.1:1"})
    assert json.loads((tmp_path / "ready").read_text()) == {
        "pid": os.getpid(),
        "socket": "127.0.0.1:1",
    }
    assert [path.name for path in tmp_path.iterdir()] == ["ready"]
    write_ready(None, {})
    write_ready(tmp_path / "secret", {"key": "x"}, private=True)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["no/such/folder/ready", "taken"])
def test_an_unwritable_one_is_named_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(AppError, match=f"cannot write --ready-file .*{name}") as caught:
        write_ready(tmp_path / name, {})
    assert caught.value.code is ErrorCode.INVALID
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_a_file_left_by_a_crash_does_not_widen_the_mode(tmp_path: Path) -> None:
    left = tmp_path / f"secret.{os.getpid()}.new"
    left.touch(mode=0o666)
    left.chmod(0o666)
    write_ready(tmp_path / "secret", {"key": "x"}, private=True)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
