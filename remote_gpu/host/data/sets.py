"""The data sets of a host in its event loop: leases that need them, fetches, what is published.

A lease that lacks a set is not placed before it is here (`leases.table`), ahead or booked; its
install begins the fetch, so that it overlaps the start of the function. Leases share a fetch. A
fetch is a child process, and continues when its lease ends: the next attempt finds what is here.
"""

from __future__ import annotations

import asyncio
import fnmatch
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from corekit.aio.supervise import Nursery
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.data_sets import DataSet, size_of
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import Install
from remote_gpu.host.data.files import DataFiles
from remote_gpu.host.data.library import LEAST_BYTES_PER_S, KeptSet, Library, Pace
from remote_gpu.host.leases.leases import Leases

logger = logging.getLogger(__name__)

#: Fetches at once; each reads several parts at once.
FETCHES_MAX = 3
PART_BYTES = 16 << 20
#: A fetch without progress for so long has failed; its own tries take less.
SILENCE_S = 300.0
_LINE_BYTES_MAX = 1 << 16
#: The source lacks it, or has other contents than its pin names: other hosts find the same.
_FINAL = (ErrorCode.NOT_FOUND, ErrorCode.CONFLICT)
_GIB = 1 << 30


class DataSets:
    """The sets that leases of this host need; lives in the event loop."""

    def __init__(
        self,
        leases: Leases,
        files: DataFiles,
        space_bytes: int,
        nursery: Nursery,
        changed: Callable[[], None],
        *,
        sources: Sequence[str] = (),
        part_bytes: int = PART_BYTES,
    ) -> None:
        """`changed`: called when the host has another set; `sources`: patterns of those that leases
        may name, none = all."""
        self._leases = leases
        self._files = files
        self._nursery = nursery
        self._changed = changed
        self._sources = sources
        self._part_bytes = part_bytes
        self._slots = asyncio.Semaphore(FETCHES_MAX)
        self._fetching: dict[str, None] = {}
        self._showing: dict[tuple[str, str], None] = {}  #: tenants, each with the key of a set
        self._disk = asyncio.Lock()  #: the folders of sets have one change at a time
        self.library = Library(space_bytes)
        self.library.load(files.found())
        self.fetched_bytes = 0  #: in this run
        self.evicted = 0

    # --- what others ask

    def needed(self, install: Install) -> None:
        """A lease was installed, or changed: begin to fetch what it lacks. Idempotent."""
        for one in self._leases.table.data.lacked(install):
            if self._is_whole(one.key):
                if (install.tenant, one.key) not in self._showing:
                    self._showing[install.tenant, one.key] = None
                    self._nursery.start(self._show(one, install.tenant), "data set")
            elif one.key not in self._fetching:
                self._fetching[one.key] = None
                self._nursery.start(self._fetch(one), "data set")

    def folders(self, install: Install) -> Mapping[str, Path]:
        """The sets of a lease that are here, by name: the path of a set of one file, else of its
        folder. They are read-only, and stay while the lease is installed."""
        found: dict[str, Path] = {}
        for one in install.data_sets:
            if self._leases.table.data.has(install.tenant, one.key):
                only = self.library.sets[one.key].only_file
                found[one.name] = self._files.view_path(install.tenant, one.key) / only
        return found

    def of_worker(self, install: Install) -> Mapping[str, tuple[str, str]]:
        """The same for its worker: paths below its tenant's folder, and digests."""
        digests = {one.name: one.digest for one in install.data_sets}
        tenant = self._files.tenant_path(install.tenant)
        found = self.folders(install).items()
        return {name: (str(path.relative_to(tenant)), digests[name]) for name, path in found}

    def held(self) -> Mapping[str, int]:
        """The bytes of each set that are here, to be published."""
        return {one.key: one.here_bytes for one in self.library.sets.values()}

    @property
    def bytes_per_s(self) -> float | None:
        """The learned rate of fetches; None = none yet."""
        return self.library.rates.whole

    # --- a set that is here

    def _is_whole(self, key: str) -> bool:
        known = self.library.sets.get(key)
        return known is not None and known.whole

    async def _show(self, one: DataSet, tenant: str) -> None:
        """Show a whole set to the leases of a tenant."""
        try:
            async with self._disk:
                if not self._is_whole(one.key):
                    return  # evicted, because no lease needed it: the next one fetches it
                await asyncio.to_thread(self._files.view, tenant, one.key)
                self.library.use(one.key, time.time())
                self._leases.apply(self._leases.table.data_here(tenant, one.key))
                await asyncio.to_thread(self._files.note, self.library.sets[one.key])
        except OSError as error:
            self._failed(one.key, f"its files cannot be shown: {error}")
        finally:
            self._showing.pop((tenant, one.key), None)

    def _failed(self, key: str, why: str, reason: EndReason = EndReason.REVOKED) -> None:
        """End the leases that wait for a set."""
        for entry in list(self._leases.table):
            for one in self._leases.table.data.lacked(entry.install):
                if one.key == key:
                    detail = f"data set {one.name}: {why}"
                    self._leases.end(entry.lease, reason, detail)

    # --- fetches

    async def _fetch(self, one: DataSet) -> None:
        """Fetch one set, and show it to all leases that wait for it; or end these."""
        began_s = time.monotonic()
        try:
            async with self._slots:
                await self._run(one)
        except Exception as error:  # its leases wait for nothing else
            why = error.message if isinstance(error, AppError) else f"on this host: {error!r}"
            about = {"event": "data_failed", "source": one.source, "why": why}
            logger.warning("a data set cannot be fetched", extra=about)
            self._failed(one.key, why, _end_of(error))
            return
        finally:
            self._fetching.pop(one.key, None)
        seconds = f"{time.monotonic() - began_s:.3f}"
        about = {"event": "data_fetched", "source": one.source, "seconds": seconds}
        logger.info("a data set is here", extra=about)
        for entry in list(self._leases.table):
            self.needed(entry.install)
        self._changed()

    async def _run(self, one: DataSet) -> None:
        """Raises AppError and OSError; ValueError for a malformed report."""
        self._check(one)
        async with self._disk:
            folder = await asyncio.to_thread(self._files.partial, one.key)
        task: dict[str, object] = {
            "source": one.source,
            "digest": one.digest,
            "folder": str(folder),
            "part_bytes": self._part_bytes,
            "parent": os.getpid(),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "remote_gpu.host.data.fetch"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=_LINE_BYTES_MAX,
        )
        try:
            await _write_line(process, json.dumps(task))
            await self._follow(one, process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def _check(self, one: DataSet) -> None:
        if not self.library.space_bytes:
            raise AppError(ErrorCode.INVALID, "this host fetches no data (gpud --data-space)")
        if self._sources and not any(fnmatch.fnmatchcase(one.source, p) for p in self._sources):
            raise AppError(ErrorCode.DENIED, f"{one.source} is not among this host's --data-source")

    async def _follow(self, one: DataSet, process: asyncio.subprocess.Process) -> None:
        """Answer and note what a fetch reports, up to its end."""
        origin, first_bytes, began_s = _origin(one.source), -1, 0.0
        pace = Pace(time.monotonic())
        while True:
            match await _line(process):
                case {"manifest": {"bytes": size_bytes, "only_file": only}}:
                    most_bytes = size_of(one) if size_bytes is None else int(size_bytes)
                    await self._make_room(
                        KeptSet(key=one.key, origin=origin, bytes=most_bytes, only_file=only)
                    )
                    began_s = time.monotonic()
                    pace = Pace(began_s)
                    await _write_line(process, str(most_bytes))
                case {"done_bytes": int(done), "verified_bytes": int(verified)}:
                    first_bytes = done if first_bytes < 0 else first_bytes
                    self.library.arrived(one.key, done)
                    is_slow = pace.is_slow(time.monotonic(), done + verified)
                    if is_slow and one.key not in self._needed():
                        text = f"no lease needs it, and it has less than {LEAST_BYTES_PER_S} B/s"
                        raise AppError(ErrorCode.UNAVAILABLE, text)
                case {"fetched": {"bytes": int(done)}}:
                    brought_bytes = done - max(0, first_bytes)
                    self.library.rates.learn(origin, brought_bytes, time.monotonic() - began_s)
                    self.fetched_bytes += brought_bytes
                    await self._publish(one.key, done)
                    return
                case {"failed": {"code": code, "message": str(message)}}:
                    raise AppError(ErrorCode(code), message)

    async def _publish(self, key: str, size_bytes: int) -> None:
        """Give a whole set its name; it counts as whole from then on. Raises OSError."""
        async with self._disk:
            whole = self.library.sets[key].grown(size_bytes, whole=True)
            await asyncio.to_thread(self._files.publish, whole)
            self.library.arrived(key, size_bytes, whole=True)

    async def _make_room(self, new: KeptSet) -> None:
        """Book a set, and evict what makes room for it. Raises EXHAUSTED, OSError.

        The sets that go are neither offered nor counted before the first is removed.
        """
        async with self._disk:
            evict, known = self._room(new), self.library.sets.get(new.key)
            self.library.begin(new)
            for key in evict:
                self.library.gone(key, evicted=True)
                self._leases.table.data.gone(key)
            for key in evict:
                await asyncio.to_thread(self._files.remove, key)
                self.evicted += 1
            free_bytes = await asyncio.to_thread(self._files.free_bytes)
            missing_bytes = new.bytes - (0 if known is None else known.here_bytes)
            missing_bytes += self._expected_bytes(new.key)
            if missing_bytes > free_bytes:
                self.library.unbook(new.key, known)
                free, needed = free_bytes / _GIB, missing_bytes / _GIB
                text = f"the disk has {free:.2f} GiB free, {needed:.2f} are needed"
                raise AppError(ErrorCode.EXHAUSTED, text)
            await asyncio.to_thread(self._files.note, self.library.sets[new.key])

    def _room(self, new: KeptSet) -> tuple[str, ...]:
        """The sets that a new one evicts. Raises EXHAUSTED."""
        in_use = self._needed() | self._fetching.keys()
        room = self.library.room(new.key, new.bytes, in_use)
        if room.missing_bytes:
            held = sum(known.bytes for key, known in self.library.sets.items() if key in in_use)
            text = (
                f"no space for {new.bytes / _GIB:.2f} GiB: this host keeps"
                f" {self.library.space_bytes / _GIB:.2f} GiB (--data-space), of which leases use"
                f" {held / _GIB:.2f} GiB"
            )
            raise AppError(ErrorCode.EXHAUSTED, text)
        return room.evict

    def _needed(self) -> set[str]:
        """The sets of installed leases."""
        return {one.key for entry in self._leases.table for one in entry.install.data_sets}

    def _expected_bytes(self, but: str) -> int:
        """The bytes that the other fetches still bring."""
        sets = [self.library.sets[key] for key in self._fetching if key in self.library.sets]
        return sum(one.bytes - one.here_bytes for one in sets if one.key != but)


def _end_of(error: Exception) -> EndReason:
    """The end of the leases whose data cannot be had: on this host, or on none."""
    final = isinstance(error, AppError) and error.code in _FINAL
    return EndReason.DATA_ERROR if final else EndReason.REVOKED


async def _write_line(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stdin is not None, "it was asked for"
    process.stdin.write(line.encode() + b"\n")
    await process.stdin.drain()


async def _line(process: asyncio.subprocess.Process) -> Any:
    """The next report of a fetch. Raises UNAVAILABLE when it has ended, or is silent."""
    assert process.stdout is not None, "it was asked for"
    try:
        async with asyncio.timeout(SILENCE_S):
            line = await process.stdout.readline()
    except TimeoutError:
        raise AppError(ErrorCode.UNAVAILABLE, "its fetch does not go on") from None
    if not line:
        raise AppError(ErrorCode.UNAVAILABLE, "its fetch was ended; see gpud's log")
    return json.loads(line)


def _origin(source: str) -> str:
    """The server or bucket of a source; the Hugging Face Hub is one server."""
    scheme, _, place = source.partition("://")
    return f"{scheme}://{place.partition('/')[0] if scheme != 'hf' else ''}"
