"""The files of a step of a run, from the list that the orchestrator stored (`contract.run`).

Each lies at `<step that wrote it>/<name>` below the folder of inputs, as it was in the result of
that step: pinned by its version or etag.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from contract.run import FILES_MAX
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed, StorageError
from lambda_functions.gpu_runner.storage.s3 import S3, download

#: boto3's own limit of connections is 10.
DOWNLOADS_AT_ONCE = 8
MIB = 2**20


@dataclass(frozen=True, slots=True)
class ListedFile:
    """One file of the list."""

    path: Path  #: below the folder of inputs
    bucket: str
    key: str
    version: str | None
    etag: str
    size: int  #: bytes


def read_list(data: bytes) -> list[ListedFile]:
    """The files of a list. Raises AttemptFailed(INPUT_ERROR) for one that is not valid."""
    try:
        value = json.loads(data)
        if value["version"] != 1:
            raise ValueError(f"its version is {value['version']!r}")
        files = [
            ListedFile(
                path=_path(str(entry["step"]), str(entry["name"])),
                bucket=str(entry["bucket"]),
                key=str(entry["key"]),
                version=entry.get("version") or None,
                etag=str(entry.get("etag") or ""),
                size=int(entry.get("size") or 0),
            )
            for entry in value["files"]
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise AttemptFailed(
            Reason.INPUT_ERROR, f"the list of the step's files is not valid: {error!r}"
        ) from None
    if len(files) > FILES_MAX:
        text = f"the step gets {len(files)} files; at most {FILES_MAX} are accepted"
        raise AttemptFailed(Reason.INPUT_ERROR, text)
    return files


def _path(step: str, name: str) -> Path:
    """A place below the folder of inputs. Raises ValueError for one that may lead out of it."""
    place = PurePosixPath(step, name)
    if place.is_absolute() or "\0" in str(place) or not {"..", "."}.isdisjoint(place.parts):
        raise ValueError(f"{name!r} is not a path below a folder")
    if len(PurePosixPath(step).parts) != 1 or len(place.parts) < 2:
        raise ValueError(f"{step!r} is not the name of a step, or {name!r} no name of a file")
    return Path(place)


def fetch_files(
    s3: S3, files: list[ListedFile], folder: Path, left_s: Callable[[], float] = lambda: 1.0
) -> None:
    """Read every file into `folder`. Raises AttemptFailed(INPUT_ERROR) that names the first fault.

    `left_s`: seconds that are left for it; at 0 it gives up.
    """
    _check_room(files, folder)

    def fetch(file: ListedFile) -> None:
        if left_s() <= 0:
            raise AttemptFailed(Reason.TIMEOUT, "the function's time ended while it read its files")
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            download(
                s3, target, bucket=file.bucket, key=file.key, version=file.version, etag=file.etag
            )
        except (StorageError, OSError) as error:
            raise AttemptFailed(Reason.INPUT_ERROR, f"input {file.key!r}: {error}") from None

    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        works = [pool.submit(fetch, file) for file in files]
        try:
            for work in as_completed(works):
                work.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _check_room(files: list[ListedFile], folder: Path) -> None:
    needed, free = sum(file.size for file in files), shutil.disk_usage(folder).free
    if needed > free:
        text = (
            f"the {len(files)} files of the step have {needed / MIB:.0f} MiB, and its disk has"
            f" {free / MIB:.0f} MiB left: give the function a larger `ephemeral_storage`"
        )
        raise AttemptFailed(Reason.INPUT_ERROR, text)
