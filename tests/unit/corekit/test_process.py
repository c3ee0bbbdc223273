"""The process side of daemons: descriptors, the state folder, the ready file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from corekit.aio.process import private_folder, write_ready
from corekit.errors import AppError, ErrorCode

#: In a process of its own, for the limit stays.
PROGRAM = """
import resource
from corekit.aio.process import raise_descriptor_limit
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_descriptor_limit({most}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "most", "after"),
    [(64, 512, 1000, 512), (64, 512, 256, 256), (512, 512, 256, 512), (300, 512, 256, 300)],
)
def test_the_soft_limit_grows_to_the_hard_one_and_never_shrinks(
    soft: int, hard: int, most: int, after: int
) -> None:
    program = PROGRAM.format(soft=soft, hard=hard, most=most)
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == [str(after)] * 2


def test_a_new_folder_is_ours_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "a" / "state"
    for _ in range(2):
        private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert caplog.messages == []


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_an_open_folder_is_reported_with_the_remedy(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    folder.chmod(mode)
    private_folder(folder)
    assert folder.stat().st_mode & 0o777 == mode
    (said,) = caplog.messages
    assert f"(mode {mode:o}); run: chmod 700 {folder}" in said


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    with pytest.raises(OSError, match="exists"):
        private_folder(tmp_path / "state")


def test_a_ready_file_is_written_whole(tmp_path: Path) -> None:
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
def test_an_unwritable_ready_file_is_named_and_leaves_nothing(tmp_path: Path, name: str) -> None:
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
