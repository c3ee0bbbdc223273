"""The folders of data sets on the disk.

    data/partial/<id>/files, parts.jsonl   a fetch that is under way, or was broken off
    data/sets/<id>/                        a whole set, read-only; data/sets/<id>.json its figures
    data/tenants/<tenant>/<id>/            the same files under other names (hard links): the sets
                                           of the tenant's leases, which no other tenant may read

A set is whole when its folder has its name in `sets`: it is renamed there at once.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from corekit.aio.files import replace_file, sync_folder
from corekit.decode import decode_json, encode_json
from corekit.errors import AppError
from corekit.values import replace
from gpu_scheduler.warm import tenant_folder
from remote_gpu.host.data.library import KeptSet
from remote_gpu.isolation.removal import remove_tree

logger = logging.getLogger(__name__)

#: In the folder of a fetch.
FILES_NAME, PARTS_NAME = "files", "parts.jsonl"


def bytes_on_disk(folder: Path) -> int:
    """The bytes of the parts that a broken-off fetch left in its folder."""
    found = 0
    with contextlib.suppress(OSError, ValueError):
        for line in (folder / PARTS_NAME).read_bytes().split(b"\n")[1:-1]:
            start, _, stop = json.loads(line)[1].partition("-")
            found += int(stop) - int(start) if stop else 0
    return found


class DataFiles:
    """The data folder of one host; every method blocks."""

    def __init__(self, folder: Path, views: Path) -> None:
        """`views`: the folder of all tenants, emptied of an earlier run's. Raises OSError."""
        self._sets, self._partial, self._views = folder / "sets", folder / "partial", views
        for own in (folder, self._sets, self._partial, views):
            own.mkdir(parents=True, exist_ok=True)
            own.chmod(0o711 if own == views else 0o700)
        for view in views.iterdir():
            remove_tree(view)

    def partial(self, key: str) -> Path:
        """The folder for the fetch of a set, made if absent."""
        folder = self._partial / _id(key)
        folder.mkdir(exist_ok=True)
        return folder

    def note(self, one: KeptSet) -> None:
        """Keep the figures of a set. Not durable: a lost one costs its uses, or a fetch."""
        replace_file(self._figures(one), encode_json(one), durable=False)

    def publish(self, one: KeptSet) -> None:
        """Give a whole set its name."""
        self.note(one)
        target = self._sets / _id(one.key)
        remove_tree(target)
        (self._partial / _id(one.key) / FILES_NAME).rename(target)
        sync_folder(self._sets)
        remove_tree(self._partial / _id(one.key))
        self._partial_figures(one.key).unlink(missing_ok=True)

    def view(self, tenant: str, key: str) -> Path:
        """The set as the leases of a tenant see it; made if absent."""
        source, target = self._sets / _id(key), self.view_path(tenant, key)
        owner = target.parent
        owner.mkdir(mode=0o700, exist_ok=True)
        if not target.exists():
            fresh = owner / f".{_id(key)}"
            shutil.rmtree(fresh, ignore_errors=True)
            shutil.copytree(source, fresh, copy_function=os.link)
            for folder, _, _ in os.walk(fresh):
                Path(folder).chmod(0o755)
            fresh.rename(target)
        return target

    def view_path(self, tenant: str, key: str) -> Path:
        """The path of `view`."""
        return self.tenant_path(tenant) / _id(key)

    def tenant_path(self, tenant: str) -> Path:
        """The folder of a tenant's sets: the field `data` of its sandboxes."""
        return self._views / tenant_folder(tenant)

    def remove(self, key: str) -> None:
        """Remove a set and its views; processes that have its files open keep them."""
        for view in self._views.iterdir():
            remove_tree(view / _id(key))
        for parent in (self._sets, self._partial):
            remove_tree(parent / _id(key))
            (parent / f"{_id(key)}.json").unlink(missing_ok=True)

    def found(self) -> Iterator[KeptSet]:
        """The sets that an earlier run left; anything without figures is removed."""
        for parent in (self._sets, self._partial):
            named = {path.stem: path for path in parent.glob("*.json")}
            for folder in (path for path in parent.iterdir() if path.is_dir()):
                one = _read(named.pop(folder.name, None))
                if one is None or one.whole != (parent is self._sets):
                    remove_tree(folder)
                elif one.whole:
                    yield one
                else:
                    yield replace(one, here_bytes=bytes_on_disk(folder))
            for stray in named.values():
                stray.unlink(missing_ok=True)

    def free_bytes(self) -> int:
        """Free on the file system."""
        return shutil.disk_usage(self._sets).free

    def _figures(self, one: KeptSet) -> Path:
        parent = self._sets if one.whole else self._partial
        return parent / f"{_id(one.key)}.json"

    def _partial_figures(self, key: str) -> Path:
        return self._partial / f"{_id(key)}.json"


def _id(key: str) -> str:
    return key.partition(":")[2]


def _read(path: Path | None) -> KeptSet | None:
    if path is None:
        return None
    with contextlib.suppress(OSError, AppError):
        return decode_json(KeptSet, path.read_bytes(), path.name)
    return None
