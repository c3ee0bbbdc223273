"""The images of this host: fetched by digest, kept for the next run, evicted beyond a space.

A reference is an image's name with its digest, so a tenant gets an image only by naming its
content; names inside an archive are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from corekit.aio.files import replace_json
from corekit.errors import AppError, ErrorCode, invalid
from gpu_scheduler.names import ImageArchive, archive_of
from remote_gpu.host.containers.podman import Podman

logger = logging.getLogger(__name__)

_CALL_S = 60.0
_FETCH_S = 3600.0  #: of a pull; the run's own limit ends it earlier

_COPY_BYTES = 1 << 20
#: Of what belongs to a run that is under way: a new gpud removes it.
RUN_PREFIX = "run-"


class ArchiveNeeded(Exception):
    """The image is an archive that is not loaded here: its bytes must be given."""

    def __init__(self, archive: ImageArchive) -> None:
        super().__init__(f"s3://{archive.bucket}/{archive.key} is not loaded")
        self.archive = archive


def to_evict(
    sizes: Mapping[str, int],
    used_s: Mapping[str, float],
    in_use: Collection[str],
    space_bytes: int,
) -> list[str]:
    """Images to remove until the rest fits, the least recently used first, none in use. Pure.

    Layers that images share count for each of them.
    """
    excess = sum(sizes.values()) - space_bytes
    found: list[str] = []
    for image in sorted(sizes, key=lambda one: (used_s.get(one, 0.0), one)):
        if excess <= 0:
            break
        if image not in in_use:
            found.append(image)
            excess -= sizes[image]
    return found


class Images:
    """The images in podman's store of this host."""

    def __init__(self, podman: Podman, folder: Path, space_bytes: int) -> None:
        """`folder`: for the record of references and the archives that are being fetched."""
        self._podman = podman
        self._folder = folder
        self._space_bytes = space_bytes
        self._record = folder / "images.json"
        self._known: dict[str, tuple[str, float]] = self._read()  # reference → id, last use
        self._in_use: Counter[str] = Counter()
        self._fetches = 0  #: under way
        #: Of one reference: fetched once, and no registry holds up the images of others.
        self._fetching: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._loading = asyncio.Lock()  #: one archive takes the space at a time, and its name
        self._changing = asyncio.Lock()  #: of sizes, evictions and the record; short

    @contextlib.asynccontextmanager
    async def lent(self, reference: str, given: int | None = None) -> AsyncIterator[str]:
        """The id of an image, fetched if it is not here; it is not evicted during the block.

        `given`: a descriptor of the archive that `reference` names, trusted in nothing. Raises
        ArchiveNeeded without it, INVALID for a reference or content that is not valid, UNAVAILABLE
        with podman's reason where it cannot be had.
        """
        archive = archive_of(reference)
        fetching = self._fetching.setdefault(reference, asyncio.Lock())
        with contextlib.ExitStack() as kept:
            async with fetching:
                image = self._known.get(reference, ("", 0.0))[0]
                kept.enter_context(self._kept(image))
                if not await self._taken(reference, image):
                    kept.close()
                    self._fetches += 1
                    try:
                        image = await self._fetched(reference, archive, given)
                        kept.enter_context(self._kept(image))
                    finally:
                        self._fetches -= 1
                    if not await self._taken(reference, image):
                        text = f"podman does not list {image}, as which it fetched {reference}"
                        raise AppError(ErrorCode.UNAVAILABLE, text)
            yield image

    @contextlib.contextmanager
    def _kept(self, image: str) -> Iterator[None]:
        """The image is not evicted during the block."""
        self._in_use[image] += 1
        try:
            yield
        finally:
            self._in_use[image] -= 1

    async def _taken(self, reference: str, image: str) -> bool:
        """Note the use of an image and make its space; False: podman has none."""
        async with self._changing:
            sizes = await self._sizes()
            if image not in sizes:
                return False
            self.note(reference, image)
            await self._evict(image, sizes)
            await asyncio.to_thread(replace_json, self._record, self._known)
            return True

    def note(self, reference: str, image: str) -> None:
        """A reference names this image, and it is used now."""
        self._known[reference] = image, time.time()

    async def _fetched(
        self, reference: str, archive: ImageArchive | None, given: int | None
    ) -> str:
        begun_s = time.monotonic()
        if archive is None:
            output = await self._podman.call("pull", "--quiet", reference, limit_s=_FETCH_S)
            image = output.split()[-1].removeprefix("sha256:")
        elif given is None:
            raise ArchiveNeeded(archive)
        else:
            async with self._loading:
                image = await self._loaded(archive, given)
        about = {"event": "image_fetched", "image": reference, "id": image}
        logger.info("image fetched", extra={**about, "s": round(time.monotonic() - begun_s, 1)})
        return image

    async def _loaded(self, archive: ImageArchive, given: int) -> str:
        with tempfile.TemporaryDirectory(prefix=RUN_PREFIX, dir=self._folder) as place:
            file = Path(place, "image.tar")
            # a copy: the giver of the descriptor may write to its file between check and load
            digest = await _copy(given, file, self._space_bytes)
            if digest != archive.sha256:
                text = f"s3://{archive.bucket}/{archive.key} has the SHA-256 {digest}"
                raise invalid(f"{text}, not {archive.sha256}")
            output = await self._podman.call("load", "--input", str(file), limit_s=_FETCH_S)
        names = [line.partition(":")[2].strip() for line in output.splitlines() if ":" in line]
        if len(names) != 1:
            raise invalid(f"s3://{archive.bucket}/{archive.key} has {len(names)} images, not one")
        image = (
            await self._podman.call(
                "image", "inspect", "--format={{.Id}}", "--", names[0], limit_s=_CALL_S
            )
        ).strip()
        await self._podman.call("untag", image, limit_s=_CALL_S)
        return image

    async def _evict(self, newest: str, sizes: Mapping[str, int]) -> None:
        if sizes[newest] > self._space_bytes and self._in_use[newest] == 1:
            await self._remove(newest)
            mib = (sizes[newest] >> 20, self._space_bytes >> 20)
            raise invalid(f"the image takes {mib[0]} MiB, this host keeps {mib[1]} MiB of images")
        used_s: dict[str, float] = {}
        for image, at_s in self._known.values():
            used_s[image] = max(at_s, used_s.get(image, 0.0))
        in_use = {image for image, count in self._in_use.items() if count}
        if self._fetches:  # one that is not known may be theirs
            in_use |= sizes.keys() - used_s.keys()
        for image in to_evict(sizes, used_s, in_use, self._space_bytes):
            if self._in_use[image]:  # since a moment ago
                continue
            with contextlib.suppress(AppError):  # a container of a run that ends just now
                await self._remove(image)
                logger.info("image evicted", extra={"event": "image_evicted", "id": image})

    async def _remove(self, image: str) -> None:
        await self._podman.call("rmi", "--force", image, limit_s=_CALL_S)
        self._known = {name: value for name, value in self._known.items() if value[0] != image}

    async def _sizes(self) -> dict[str, int]:
        output = await self._podman.call("images", "--format=json", limit_s=_CALL_S)
        return {one["Id"]: int(one["Size"]) for one in json.loads(output or "[]") or ()}

    def _read(self) -> dict[str, tuple[str, float]]:
        try:
            found = json.loads(self._record.read_bytes())
            return {str(name): (str(image), float(at)) for name, (image, at) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # absent, or torn: all are fetched again


async def _copy(given: int, file: Path, bytes_max: int) -> str:
    """Copy to a new file; returns its SHA-256. Raises INVALID, also beyond `bytes_max`.

    When it is cancelled, its thread ends too. It has its own descriptor, because the number
    `given` is another file's once the giver has closed it.
    """
    own, stop = os.dup(given), threading.Event()
    copying = asyncio.ensure_future(asyncio.to_thread(_copied, own, file, bytes_max, stop))
    copying.add_done_callback(lambda _: os.close(own))
    try:
        return await asyncio.shield(copying)
    finally:
        stop.set()
        await asyncio.wait({copying})


def _copied(own: int, file: Path, bytes_max: int, stop: threading.Event) -> str:
    digest, at = hashlib.sha256(), 0
    try:
        with file.open("xb") as copy:
            while not stop.is_set() and (chunk := os.pread(own, _COPY_BYTES, at)):
                at += len(chunk)
                if at > bytes_max:
                    raise invalid(f"the archive is over {bytes_max >> 20} MiB, this host's space")
                digest.update(chunk)
                copy.write(chunk)
    except OSError as error:
        raise invalid(f"the archive cannot be read: {error}") from None
    return digest.hexdigest()
