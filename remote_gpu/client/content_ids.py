"""Content ids of sources that are hashed once: unchanged files, and bytes that are registered.

A file is recognised by its device, inode, size and times. One that was changed within the last
seconds is hashed again, because a further change may leave its times as they are. Bytes are
recognised as the same object, which cannot change; any other buffer can, and is always hashed.
"""

from __future__ import annotations

import os
import time
from typing import TypeAlias

from remote_gpu.wire.graphs import content_id

#: Device, inode, size, and the times of the last changes of content and of attributes.
_FileId: TypeAlias = "tuple[int, int, int, int, int]"

#: Files whose hash is remembered; the one that was added first is forgotten.
FILES_MAX = 256
#: Within this time of a change of a file another one may have the same time: FAT has 2 s.
SETTLED_S = 3.0


class FileIds:
    """The content ids of files."""

    def __init__(self) -> None:
        self._known: dict[_FileId, str] = {}

    def of(self, status: os.stat_result, data: memoryview) -> str:
        """The content id of a file with this status, whose content is `data`."""
        changed_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        known = (
            status.st_dev,
            status.st_ino,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
        )
        if (found := self._known.get(known)) is not None:
            return found
        hashed_ns = time.time_ns()  # before the content is read
        content = content_id(data)
        if hashed_ns - changed_ns > SETTLED_S * 1e9:
            self._known[known] = content
            if len(self._known) > FILES_MAX:
                del self._known[next(iter(self._known))]
        return content


class ByteIds:
    """The content ids of bytes, which are kept until their content is forgotten."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, str]] = {}  #: by identity

    def of(self, source: bytes, data: memoryview) -> str:
        """The content id of bytes, whose view is `data`."""
        found = self._known.get(id(source))
        if found is None:
            found = self._known[id(source)] = source, content_id(data)
        return found[1]

    def forget(self, content: str) -> None:
        """Let the bytes with this content go."""
        self._known = {name: one for name, one in self._known.items() if one[1] != content}

    def clear(self) -> None:
        """Let all bytes go."""
        self._known.clear()
