"""The commands `data.open` and `data.read` of a lane: the data beside the device, for functions.

Folders of the operator (`gpud --data`) are there for operations alone: a function sees the files of
the sets that its own definition declared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from remote_gpu.wire.errors import invalid
from remote_gpu.wire.frames import Meta
from remote_gpu.wire.uses import DATA
from remote_gpu.worker.arguments import Arguments, Integer, Signature, Text
from remote_gpu.worker.operation import Context, Outcome

#: Of one answer: their paths fit the header of a frame.
FILES_MAX = 500
READ_BYTES_MAX = 1 << 30
_NAME = Text(name="name", meaning="of the data")
_OPEN = Signature(arguments=(_NAME,))
_READ = Signature(
    arguments=(
        _NAME,
        Text(name="file", meaning="its path", default=""),
        Integer(name="offset", meaning="bytes", least=0, most=1 << 62, default=0),
        Integer(name="size", meaning="bytes", least=0, most=READ_BYTES_MAX, default=READ_BYTES_MAX),
    )
)


def opened(context: Context, args: Arguments) -> Outcome:
    """`name` → `sha256`, and `files`: sizes of a declared set's first files by path, which is "" in
    a set of one file. Raises OpFailed(ENOENT)."""
    name = _OPEN.read(args)["name"]
    root = context.data_path(name)
    found = islice(_files(root), FILES_MAX) if name in context.declared else ()
    files: Meta = {_inside(root, path): path.stat().st_size for path in found}
    return {"sha256": context.digests.get(DATA, {}).get(name, ""), "files": files}, []


def read(context: Context, args: Arguments) -> Outcome:
    """`name`, `file`, `offset`, `size` → the bytes, fewer at the file's end. Raises OpFailed:
    ENOENT, EINVAL for data of the operator, ENOMEM beyond the quota."""
    asked = _READ.read(args)
    context.data_path(asked["name"])
    if asked["name"] not in context.declared:
        text = f"data {asked['name']!r} is the host's own, for operations alone"
        raise invalid(f"{text}: declare a set by `data:` to read its files")
    path = context.data_file(asked["name"], asked["file"])
    size = min(asked["size"], max(0, path.stat().st_size - asked["offset"]))
    with context.quota.held(size), path.open("rb") as stream:
        stream.seek(asked["offset"])
        return {}, [memoryview(stream.read(size))]


def _files(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (Path(folder, name) for name in sorted(names))


def _inside(root: Path, path: Path) -> str:
    return "" if path == root else str(path.relative_to(root))
