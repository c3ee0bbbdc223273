"""A function's package on this host: fetched once, checked, and unpacked for one tenant.

Runs in the sandbox of a run, as the lease's user, with the function's credentials, before any code
of the package does. zipfile makes no links; the names of its entries are checked here.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from corekit.errors import invalid
from remote_gpu.wire.runs import Package

#: Beyond Lambda's 250 MiB: a host has a disk.
UNPACKED_BYTES_MAX = 2 << 30
ENTRIES_MAX = 50_000
_UMASK = 0o027  #: other leases of the tenant read it
_CHUNK_BYTES = 1 << 20

#: Downloads a package to a file.
Fetch = Callable[[Package, Path], None]


def unpacked(package: Package, packages: Path, tmp: Path, fetch: Fetch) -> Path:
    """The folder with the package's files, made unless the tenant has it.

    `packages`: the tenant's folder; `tmp`: for the download. Raises AppError(INVALID) for another
    content than the order names and for a zip that is not a package; OSError; errors of `fetch`.
    """
    target = packages / package.sha256
    if target.is_dir():
        return target
    before = os.umask(_UMASK)
    fresh = packages / f".unpacking-{secrets.token_hex(8)}"
    fresh.mkdir(mode=0o755)
    try:
        archive = tmp / "package.zip"
        fetch(package, archive)
        _check(archive, package)
        _extract(archive, fresh)
        archive.unlink()
        compileall.compile_dir(fresh, quiet=2, workers=1)
        try:
            fresh.rename(target)
        except OSError:
            if not target.is_dir():  # another run was faster: the same content
                raise
    finally:
        os.umask(before)
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _check(archive: Path, package: Package) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.sha256:
        where = f"s3://{package.bucket}/{package.key}"
        raise invalid(f"{where} has another content than its order: deploy the function again")


def _extract(archive: Path, folder: Path) -> None:
    try:
        with zipfile.ZipFile(archive) as opened:
            entries = opened.infolist()
            if len(entries) > ENTRIES_MAX:
                raise invalid(f"the package has {len(entries)} entries; {ENTRIES_MAX} are allowed")
            left = UNPACKED_BYTES_MAX
            for entry in entries:
                target = folder / _checked(entry.filename)
                if entry.is_dir():
                    target.mkdir(parents=True, exist_ok=True)
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                left -= _write(opened, entry, target, left)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        raise invalid(f"the package is not a readable zip archive: {error}") from error


def _checked(name: str) -> str:
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name:
        raise invalid(f"the package has an entry outside of its folder: {name[:100]!r}")
    return name


def _write(opened: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, most: int) -> int:
    """Write one file with its mode, which no later call can set everywhere; returns its size."""
    mode = 0o755 if (entry.external_attr >> 16) & 0o111 else 0o644
    size = 0
    with (
        opened.open(entry) as source,
        os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file,
    ):
        while chunk := source.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > most:
                raise invalid(f"the package unpacks to more than {UNPACKED_BYTES_MAX} bytes")
            file.write(chunk)
    return size
