"""The state folder of a daemon is its own; one that is open to others is told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from corekit.aio.process import private_folder


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
