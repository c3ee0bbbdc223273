"""What a test may leave behind: processes, sockets, pipes, threads, tasks, temporary files."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: A process or a thread that was told to end may need this long on a loaded machine.
END_WITHIN_S = 20.0
#: In the environment of every program that a process-level test starts.
_MARK = "TESTS_OF"


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """No socket, pipe or thread of this process stays."""
    gc.collect()
    files, threads = _streams(), threading.active_count()
    yield
    if not _comes(lambda: threading.active_count() <= threads):
        raise AssertionError(f"threads left: {threading.enumerate()}")
    gc.collect()
    left = _streams() - files
    assert not left, f"left open: {left}"


def open_files() -> set[str]:
    """Number and target of every open file of this process.

    Compare with `<=`: a file that an earlier test left to the garbage collector may be closed.
    """
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own one
            found.add(f"{entry.name} {entry.readlink()}")
    return found


def _streams() -> set[str]:
    kinds = ("socket:", "pipe:")
    return {file for file in open_files() if file.partition(" ")[2].startswith(kinds)}


@contextmanager
def nothing_left_running(folder: Path) -> Iterator[None]:
    """No program stays that was started with `module_mark`, or that was told of `folder`."""
    yield
    if not _comes(lambda: not _processes(folder)):
        raise AssertionError(f"processes left: {_processes(folder)}")


@contextmanager
def module_mark(name: str) -> Iterator[None]:
    """Programs started meanwhile carry our mark, and the module for whoever looks for a leak."""
    os.environ[_MARK] = f"{os.getpid()} {name}"
    try:
        yield
    finally:
        del os.environ[_MARK]


def _processes(folder: Path) -> list[str]:
    mark, named = f"{_MARK}={os.getpid()} ".encode(), os.fsencode(folder)
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue  # it ended, or it is not ours to look at
        if entry.name == str(os.getpid()) or (mark not in environment and named not in line):
            continue
        module = environment.partition(mark)[2].partition(b"\0")[0]
        words = line.replace(b"\0", b" ") + b"of " + module
        found.append(f"{entry.name}: {words.decode(errors='replace')}")
    return found


@contextmanager
def nothing_left_in(folder: Path) -> Iterator[None]:
    """The folder of temporary files is empty at the end."""
    yield
    _comes(lambda: not any(folder.iterdir()))
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    assert not left, f"temporary files left: {left}"


@contextmanager
def same_cores() -> Iterator[None]:
    """The test runner may use the cores that it had: each program that it starts inherits them."""
    before = os.sched_getaffinity(0)
    yield
    left = os.sched_getaffinity(0)
    os.sched_setaffinity(0, before)
    assert left == before, f"pinned to cores {left}"


def _comes(holds: Callable[[], bool]) -> bool:
    deadline_s = time.monotonic() + END_WITHIN_S
    while not holds():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True


def no_task_left(test: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The test, failing when a task that began in it still runs."""

    @functools.wraps(test)
    async def checked(*arguments: Any, **fixtures: Any) -> None:
        before = asyncio.all_tasks()
        await test(*arguments, **fixtures)
        left = asyncio.all_tasks() - before
        if left:
            _, left = await asyncio.wait(left, timeout=END_WITHIN_S)
        assert not left, f"tasks left: {left}"

    return checked
