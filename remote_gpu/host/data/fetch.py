"""The program that fetches one data set: `python -m remote_gpu.host.data.fetch`, a child of gpud.

It reads its task as one line of JSON and reports lines of JSON:

    task → {"source", "digest", "folder", "part_bytes", "parent": pid}
    {"manifest": {"bytes", "only_file"}}   then it waits for a line: the most bytes to fetch
    {"done_bytes": n, "verified_bytes": n} again and again, while one of them grows
    {"fetched": {"bytes"}} or {"failed": {"code", "message"}}, at the end

In `folder` are `files/`, and `parts.jsonl` with the parts that are on the disk: a fetch that was
killed continues behind them, as long as the source's manifest is the same. Every file whose pin is
a hash is read again at the end, and refused if it has another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from corekit.errors import AppError, ErrorCode
from gpu_scheduler.data_manifest import File, Manifest, changed_text, digest_of, manifest_of
from remote_gpu.host.data.files import FILES_NAME, PARTS_NAME
from remote_gpu.host.data.sources import Source, source_of
from remote_gpu.worker.control import die_with_parent

#: Parts read at once: one connection of S3 has about 100 MB/s.
AT_ONCE = 4
_TRIES = 6
_PAUSE_S = 0.5  #: before the second try; doubled each time
_REPORT_S = 0.2
_VERIFY_BYTES = 1 << 20


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """The request of gpud."""

    source: str
    digest: str
    folder: str
    part_bytes: int
    parent: int


class Part(NamedTuple):
    """A part of one file."""

    file: File
    start: int
    stop: int | None  #: None: the end of a file of unknown size

    @property
    def name(self) -> str:
        return f"{self.start}-{'' if self.stop is None else self.stop}"


def parts_of(manifest: Manifest, part_bytes: int) -> Iterator[Part]:
    """The parts of all files; an empty file has one."""
    for file in manifest.files:
        if file.bytes is None:
            yield Part(file, 0, None)
            continue
        for start in range(0, max(1, file.bytes), part_bytes):
            yield Part(file, start, min(file.bytes, start + part_bytes))


class Fetch:
    """One fetch into a folder."""

    def __init__(self, task: Task, source: Source) -> None:
        self._task = task
        self._source = source
        self._files = Path(task.folder, FILES_NAME)
        self._log = Path(task.folder, PARTS_NAME)
        self.done_bytes = 0
        self.verified_bytes = 0  #: read again for their hash
        self.most_bytes = 0  #: of all files together

    async def manifest(self) -> Manifest:
        """The source's files. Raises AppError: CONFLICT when they are not the declared ones."""
        found = manifest_of(self._task.source, await self._source.files())
        if digest_of(found) != self._task.digest:
            text = changed_text(self._task.source, self._task.digest, found)
            raise AppError(ErrorCode.CONFLICT, text)
        return found

    async def run(self, manifest: Manifest) -> None:
        """Fetch what is not on the disk yet, then verify all of it. Raises AppError, OSError."""
        done = self._done(manifest)
        parts = [*parts_of(manifest, self._task.part_bytes)]
        self._lay_out(manifest, done)
        ready = [one for one in parts if (one.file.path, one.name) in done]
        self.done_bytes = sum(one.stop - one.start for one in ready if one.stop is not None)
        left = iter([one for one in parts if (one.file.path, one.name) not in done])
        with self._log.open("ab", buffering=0) as log:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(self._take(left, log))
        for file in manifest.files:
            await asyncio.to_thread(self._verify, file)

    async def _take(self, left: Iterator[Part], log: Any) -> None:
        for part in left:
            await self._part(part)
            log.write(json.dumps([part.file.path, part.name]).encode() + b"\n")

    async def _part(self, part: Part) -> None:
        """Read one part, and again while trying again may help. It is on the disk then."""
        pause_s = _PAUSE_S
        descriptor = os.open(self._files / part.file.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for tries_left in range(_TRIES - 1, -1, -1):
                try:
                    await self._read(part, descriptor)
                    break
                except AppError as error:
                    if error.code is not ErrorCode.UNAVAILABLE or not tries_left:
                        raise
                await asyncio.sleep(pause_s)
                pause_s *= 2
            await asyncio.to_thread(os.fdatasync, descriptor)
        finally:
            os.close(descriptor)

    async def _read(self, part: Part, descriptor: int) -> None:
        at = part.start

        def write(data: bytes) -> None:
            nonlocal at
            if part.stop is not None and at + len(data) > part.stop:
                raise AppError(ErrorCode.UNAVAILABLE, f"{part.file.path}: more bytes than expected")
            if self.done_bytes + len(data) > self.most_bytes:
                text = f"{self._task.source} has more than the declared bytes; declare its `size`"
                raise AppError(ErrorCode.INVALID, text)
            os.pwrite(descriptor, data, at)
            at += len(data)
            self.done_bytes += len(data)

        try:
            await self._source.read(part.file, part.start, part.stop, write)
            if part.stop is not None and at != part.stop:
                text = f"{part.file.path}: it ended {part.stop - at} bytes early"
                raise AppError(ErrorCode.UNAVAILABLE, text)
        except AppError:
            self.done_bytes -= at - part.start
            raise

    def _done(self, manifest: Manifest) -> set[tuple[str, str]]:
        """The parts that an earlier fetch left on the disk; none of another size of parts."""
        with contextlib.suppress(OSError, ValueError):
            first, *lines = self._log.read_bytes().split(b"\n")
            if json.loads(first) == self._head(manifest):
                return {(path, name) for path, name in map(json.loads, lines[:-1])}
        return set()

    def _head(self, manifest: Manifest) -> list[object]:
        return [hashlib.sha256(manifest.text.encode()).hexdigest(), self._task.part_bytes]

    def _lay_out(self, manifest: Manifest, done: set[tuple[str, str]]) -> None:
        if not done:
            self._log.write_bytes(json.dumps(self._head(manifest)).encode() + b"\n")
        for file in manifest.files:
            path = self._files / file.path
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                path.chmod(0o644)  # verified, but not published
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(path, flags if done else flags | os.O_TRUNC, 0o644)
            os.close(descriptor)

    def _verify(self, file: File) -> None:
        """Raises CONFLICT for a file with other content than its pin."""
        kind, _, expected = file.pin.partition(":")
        path = self._files / file.path
        if kind in ("sha256", "git"):
            with path.open("rb") as stream:
                found = self._hash(stream, kind)
            if found != expected:
                self._log.unlink(missing_ok=True)  # nothing of it is used again
                text = f"{self._task.source}: the content of {file.path} is {kind}:{found[:12]}…"
                text += f", not the declared {kind}:{expected[:12]}…"
                raise AppError(ErrorCode.CONFLICT, text)
        path.chmod(0o444)

    def _hash(self, stream: BinaryIO, kind: str) -> str:
        """SHA-256, or git's hash of a blob."""
        found = hashlib.sha256()
        if kind == "git":
            found = hashlib.sha1(usedforsecurity=False)  # of the hub's choice, as the commit
            found.update(f"blob {os.fstat(stream.fileno()).st_size}\0".encode())
        while data := stream.read(_VERIFY_BYTES):
            found.update(data)
            self.verified_bytes += len(data)
        return found.hexdigest()


def _report(**line: object) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


async def _fetch(task: Task) -> None:
    source = source_of(task.source)
    try:
        fetch = Fetch(task, source)
        manifest = await fetch.manifest()
        _report(manifest={"bytes": manifest.bytes, "only_file": manifest.only_file})
        fetch.most_bytes = int(await asyncio.to_thread(sys.stdin.readline))
        reports = asyncio.create_task(_reports(fetch))
        try:
            await fetch.run(manifest)
        finally:
            reports.cancel()
        files = (Path(task.folder, FILES_NAME, one.path) for one in manifest.files)
        _report(fetched={"bytes": sum(path.stat().st_size for path in files)})
    finally:
        await source.close()


async def _reports(fetch: Fetch) -> None:
    """Report progress alone: gpud ends a fetch that is silent."""
    seen = (-1, -1)
    while True:
        now = (fetch.done_bytes, fetch.verified_bytes)
        if now > seen:
            seen = now
            _report(done_bytes=fetch.done_bytes, verified_bytes=fetch.verified_bytes)
        await asyncio.sleep(_REPORT_S)


def main() -> None:
    """Run one task. An error is the last line of the report."""
    task = msgspec.json.decode(sys.stdin.readline(), type=Task)
    die_with_parent(task.parent)
    try:
        asyncio.run(_fetch(task))
    except* AppError as errors:
        error = next(one for one in _all(errors))
        _report(failed={"code": error.code.value, "message": error.message})
    except* OSError as errors:
        text = "; ".join(str(one) for one in errors.exceptions)
        _report(failed={"code": ErrorCode.UNAVAILABLE.value, "message": f"on this host: {text}"})


def _all(errors: BaseExceptionGroup[Any]) -> Iterator[AppError]:
    for one in errors.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _all(one)
        elif isinstance(one, AppError):
            yield one


if __name__ == "__main__":
    main()
