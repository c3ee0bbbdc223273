"""Shared by every suite: a clean environment, and nothing left behind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

#: What a developer's shell may hold and a test must not see.
_SCRUBBED = ("AWS_", "ORCHGPU_", "LOCALSTACK_", "RCUDA_", "REMOTE_GPU_", "CUDA_VISIBLE_DEVICES")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(_SCRUBBED):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)


def _open_files() -> set[str]:
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name} {entry.readlink()}")
        except OSError:
            continue
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """For tests of clients and daemons in this process: no file, socket or thread stays open."""
    gc.collect()
    files, threads = _open_files(), threading.active_count()
    yield
    gc.collect()
    left = {f for f in _open_files() - files if "socket:" in f or "pipe:" in f}
    assert not left, f"left open: {left}"
    assert threading.active_count() <= threads, f"threads left: {threading.enumerate()}"
