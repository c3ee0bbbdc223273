"""The sync marker: when it is synced itself, and what a full disk does to it."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from gpu_scheduler.daemon.log.sync_marker import SYNC_LAG_S, Mark, SyncMarker, write_marker

MARK = Mark(0, 1, b"00000001")


def is_due(marker: SyncMarker) -> bool:
    """Asked anew each time: a type checker believes that a property stays."""
    return marker.is_due


def test_a_written_marker_is_due_after_the_lag(tmp_path: Path) -> None:
    write_marker(tmp_path, Mark(0, 0, b"00000000"))
    now_s = [100.0]
    file = os.open(tmp_path / "journal.synced", os.O_RDWR)
    marker = SyncMarker(tmp_path, file, lambda: now_s[0])
    now_s[0] += 2 * SYNC_LAG_S
    assert not is_due(marker), "nothing was written"
    marker.write(MARK)
    assert is_due(marker)
    marker.sync()
    assert not is_due(marker)
    marker.write(MARK)
    assert not is_due(marker), "it was synced just now"
    now_s[0] += SYNC_LAG_S
    assert is_due(marker)
    marker.close()


def test_a_full_disk_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The journal itself is durable; only a missing end could then pass for a torn one."""
    marker = SyncMarker(tmp_path, os.open("/dev/full", os.O_RDWR), lambda: 0.0)
    with caplog.at_level(logging.WARNING):
        marker.write(MARK)
        marker.write(MARK)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/journal.synced is not up to date: No space left on device"
    ]
    marker.close()


def test_any_other_failure_of_the_disk_is_raised(tmp_path: Path) -> None:
    read_only = tmp_path / "journal.synced"
    read_only.write_bytes(b"")
    marker = SyncMarker(tmp_path, os.open(read_only, os.O_RDONLY), lambda: 0.0)
    with pytest.raises(OSError, match="Bad file descriptor"):
        marker.write(MARK)
    marker.close()
