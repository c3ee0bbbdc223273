"""Programs beside a benchmark, which end with it."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def workspace(name: str) -> Iterator[tuple[contextlib.ExitStack, Path]]:
    """What a benchmark starts and writes: a stack, which ends first, and a folder."""
    with tempfile.TemporaryDirectory(prefix=f"{name}-") as folder, contextlib.ExitStack() as stack:
        yield stack, Path(folder)


@contextlib.contextmanager
def program(
    module: str, ready: Path, *arguments: str, within_s: float = 60.0
) -> Iterator[dict[str, str]]:
    """A process that serves, for the length of the block: what it wrote when it was ready."""
    command = [sys.executable, "-m", module, "--ready-file", str(ready), *arguments]
    log = ready.with_suffix(".log")
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stderr=errors)
    try:
        end_s = time.monotonic() + within_s
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"{module} does not start: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        yield json.loads(ready.read_text())
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    """A port of the loopback that nothing uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def await_port(server: subprocess.Popen[bytes], port: int, within_s: float = 60.0) -> None:
    """Return when a program listens on its port. Raises RuntimeError when it does not."""
    end_s = time.monotonic() + within_s
    while server.poll() is None and time.monotonic() < end_s:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.02)
    raise RuntimeError("its server does not start")
