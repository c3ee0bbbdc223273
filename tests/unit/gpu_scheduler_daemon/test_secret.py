"""The master key and the secrets derived from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.access.secret import NAME, LeaseSecrets


def test_the_same_folder_gives_the_same_secrets(tmp_path: Path) -> None:
    first, again = LeaseSecrets.open(tmp_path), LeaseSecrets.open(tmp_path)
    assert first.of("lease-a", 3, "h") == again.of("lease-a", 3, "h")
    assert len(bytes.fromhex(first.of("lease-a", 3, "h"))) == 32
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_every_part_of_the_name_matters(tmp_path: Path) -> None:
    keys = LeaseSecrets.open(tmp_path)
    made = {keys.of("a", 1, "h"), keys.of("b", 1, "h"), keys.of("a", 2, "h"), keys.of("a", 1, "g")}
    assert len(made) == 4


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    LeaseSecrets.open(tmp_path)
    (tmp_path / NAME).chmod(0o644)
    with pytest.raises(AppError, match="chmod 600") as caught:
        LeaseSecrets.open(tmp_path)
    assert caught.value.code is ErrorCode.DENIED


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    LeaseSecrets.open(tmp_path)
    (tmp_path / NAME).write_bytes(b"short")
    with pytest.raises(AppError, match="instead of 32"):
        LeaseSecrets.open(tmp_path)


def test_a_lost_key_is_not_silently_replaced(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(b"")
    with pytest.raises(AppError, match="is missing"):
        LeaseSecrets.open(tmp_path)
