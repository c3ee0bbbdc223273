"""Operations and warm keys that this host's programs add to the devices of its drivers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Protocol

from corekit.values import replace
from gpu_scheduler.model import LIBRARIES_MAX, Device
from gpu_scheduler.warm import kept_key
from remote_gpu.host.workers.pool import Ready
from remote_gpu.wire.graphs import CONTENT_PREFIX

#: The newest contents of one host are published; older ones are not, but are still found.
KEPT_KEYS_MAX = 512
_TICK_NS_MAX = 50_000_000  #: file systems take times from the kernel's tick, at most 10 ms
_UNSETTLED = -1
#: Warm keys of host-resident data, and operations, within `RESIDENT_MAX` words of a device.
_OTHER_WORDS_MAX = 256


class Spawner(Protocol):
    """Source of the operations and data that the present spawner found."""

    @property
    def ready(self) -> Ready: ...


class KeptContents:
    """The contents that tenants sent, by the warm keys under which a host publishes them."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder with one folder for each tenant."""
        self._root = root
        self._seen: dict[str, tuple[int, list[tuple[int, str]]]] = {}

    def keys(self) -> tuple[str, ...]:
        """The keys, newest first. Reads only folders whose files changed.

        A folder's time has the resolution of the kernel's tick: a folder that has just changed may
        change again at the same time, so it is read again at the next call.
        """
        settled_ns = time.time_ns() - _TICK_NS_MAX
        seen: dict[str, tuple[int, list[tuple[int, str]]]] = {}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self._root):
                with contextlib.suppress(OSError):  # it was removed meanwhile
                    changed_ns = entry.stat().st_mtime_ns
                    known = self._seen.get(entry.name)
                    if known is None or known[0] != changed_ns:
                        files = self._of_tenant(entry.name)
                        known = (changed_ns if changed_ns < settled_ns else _UNSETTLED, files)
                    seen[entry.name] = known
        self._seen = seen
        found = sorted((file for _, files in seen.values() for file in files), reverse=True)
        return tuple(key for _, key in found[:KEPT_KEYS_MAX])

    def _of_tenant(self, folder: str) -> list[tuple[int, str]]:
        files: list[tuple[int, str]] = []
        for entry in os.scandir(self._root / folder):
            if len(entry.name) == 64 and entry.is_file(follow_symlinks=False):
                key = kept_key(folder, CONTENT_PREFIX + entry.name)
                files.append((entry.stat().st_mtime_ns, key))
        return sorted(files, reverse=True)[:KEPT_KEYS_MAX]


class Offer:
    """The offer of one host: all devices of a kind have the same operations and contents.

    Emulated devices name their operations themselves.
    """

    def __init__(self, spawner: Spawner, kept: KeptContents) -> None:
        self._spawner = spawner
        self._kept = kept

    async def added_to(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        """The devices, with operations and warm keys."""
        kept, ready = await asyncio.to_thread(self._kept.keys), self._spawner.ready
        resident = (*tuple(ready.resident)[:_OTHER_WORDS_MAX], *kept)
        return tuple(self._added_to(device, ready, resident) for device in devices)

    def _added_to(self, device: Device, ready: Ready, resident: tuple[str, ...]) -> Device:
        operations = device.operations or ready.operations.get(device.kind)
        if operations is None:  # none of our operations runs there
            return device
        names = tuple(operations)[:_OTHER_WORDS_MAX]
        libraries = dict(islice(ready.libraries.get(device.kind, {}).items(), LIBRARIES_MAX))
        return replace(device, operations=names, resident=resident, libraries=libraries)
