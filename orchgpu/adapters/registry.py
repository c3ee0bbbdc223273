"""`Registry` over an object store: one small JSON object per deployed function."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from corekit.aio.newer import known as known_of
from corekit.decode import decode_json_known
from corekit.errors import AppError, ErrorCode
from orchgpu.core.function import Function
from orchgpu.ports import ObjectStore

logger = logging.getLogger(__name__)

PREFIX = "functions/"
RECORD_BYTES_MAX = 256 * 1024


class StoreRegistry:
    """`functions/<name>.json` in the state bucket. Without the bucket nothing is deployed yet.

    The bucket is listed every few seconds: only records with a new etag are read again.
    """

    def __init__(self, store: ObjectStore, bucket: str, *, only: Sequence[str] = ()) -> None:
        self._store = store
        self._bucket = bucket
        self._only = only  #: serve just these functions; empty = all
        self._known: dict[str, tuple[str, Function | None]] = {}  #: by key: etag, function

    async def functions(self) -> Mapping[str, Function]:
        try:
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
        return {
            function.name: function
            for _, function in known.values()
            if function is not None and (not self._only or function.name in self._only)
        }

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
