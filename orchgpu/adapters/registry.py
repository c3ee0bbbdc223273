"""`Registry` over an object store: one small JSON object per deployed function."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from corekit.aio.newer import known as known_of
from corekit.decode import decode_json_known
from corekit.errors import AppError, ErrorCode
from orchgpu.core.function import Function
from orchgpu.ports import ObjectStore, Tolerating

logger = logging.getLogger(__name__)

PREFIX = "functions/"
#: The object that every deploy and removal writes last: one cheap GET of its etag finds changes.
CHANGED_KEY = "registry/changed"
#: Polls between two listings without a change: deploys of older versions do not write the object.
LISTED_EVERY = 30
RECORD_BYTES_MAX = 256 * 1024


class StoreRegistry:
    """`functions/<name>.json` in the state bucket. Without the bucket nothing is deployed yet.

    A poll reads the etag of `registry/changed` (a LIST costs twelve times as much). The records
    are listed when it is new, every `LISTED_EVERY` polls, and always where it is absent; only those
    with a new etag are read.
    """

    def __init__(self, store: ObjectStore, bucket: str, *, only: Sequence[str] = ()) -> None:
        self._store = store
        self._bucket = bucket
        self._only = only  #: serve just these functions; empty = all
        self._known: dict[str, tuple[str, Function | None]] = {}  #: by key: etag, function
        self._changed: str | None = None  #: etag of the last listing's CHANGED_KEY
        self._polls_left = 0  #: before the next listing

    async def functions(self) -> Mapping[str, Function]:
        try:
            changed = await self._etag_of_changed()
            if changed is not None and changed == self._changed and self._polls_left:
                self._polls_left -= 1
                return self._served()
            etags = await self._store.etags(self._bucket, PREFIX)
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return {}
            raise
        known = {
            name: await self._newest(name, etag)
            for name, etag in etags.items()
            if name.endswith(".json")
        }
        self._known = known
        self._changed, self._polls_left = changed, LISTED_EVERY
        served = self._served()
        for function in served.values():
            self._store.expect_owners(function.owners)
        return served

    def _served(self) -> dict[str, Function]:
        return {
            function.name: function
            for _, function in self._known.values()
            if function is not None and (not self._only or function.name in self._only)
        }

    async def _etag_of_changed(self) -> str | None:
        """None where no deploy wrote it, or older rights do not cover it.

        It is read before the listing, which is then at least as new.
        """
        with Tolerating(ErrorCode.NOT_FOUND, ErrorCode.DENIED):
            return (await self._store.head(self._bucket, CHANGED_KEY)).etag
        return None

    async def _newest(self, name: str, etag: str) -> tuple[str, Function | None]:
        known = self._known.get(name)
        return (etag, await self._read(name)) if known is None or known[0] != etag else known

    async def _read(self, name: str) -> Function | None:
        try:
            stored = await self._store.get(self._bucket, name, bytes_max=RECORD_BYTES_MAX)
            read = decode_json_known(Function, stored.body or b"", name)
        except AppError as error:
            if error.retryable:
                raise
            logger.warning("skipping %s: %s", name, error, extra={"event": "registry_unreadable"})
            return None
        return known_of(logger, read)
