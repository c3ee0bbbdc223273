"""The end of processes that the runner keeps for the life of a Lambda environment."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lambda_functions.gpu_runner.script import reaper


@pytest.fixture(scope="module", autouse=True)
def _guard() -> Iterator[None]:
    yield
    reaper.guard().close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    """Writes a script: `script(text, mode=0o755)`."""

    def write(text: str | bytes, mode: int = 0o755) -> Path:
        path = tmp_path / "script"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(stat.S_IMODE(mode))
        return path

    return write
