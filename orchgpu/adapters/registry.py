"""`Registry` over an object store: one small JSON object per function and workflow."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

from corekit.aio.newer import known as known_of
from corekit.decode import decode_json_known
from corekit.errors import AppError, ErrorCode
from orchgpu.core.function import Function
from orchgpu.core.runs.workflow import Workflow
from orchgpu.ports import ObjectStore, Tolerating

logger = logging.getLogger(__name__)

T = TypeVar("T")
PREFIX = "functions/"
WORKFLOWS_PREFIX = "workflows/"
#: The object that every deploy and removal writes last: one cheap GET of its etag finds changes.
CHANGED_KEY = "registry/changed"
#: Polls between two listings without a change: deploys of older versions do not write the object.
LISTED_EVERY = 30
RECORD_BYTES_MAX = 256 * 1024


class _Records(Generic[T]):
    """The records below one prefix; only those with a new etag are read."""

    def __init__(self, store: ObjectStore, bucket: str, prefix: str, kind: type[T]) -> None:
        self._store = store
        self._bucket = bucket
        self._prefix = prefix
        self._kind = kind
        self._known: dict[str, tuple[str, T | None]] = {}  #: by key: etag, record

    async def load(self) -> None:
        etags = await self._store.etags(self._bucket, self._prefix)
        self._known = {
            name: await self._newest(name, etag)
            for name, etag in etags.items()
            if name.endswith(".json")
        }

    @property
    def valid(self) -> list[T]:
        return [record for _, record in self._known.values() if record is not None]

    async def _newest(self, name: str, etag: str) -> tuple[str, T | None]:
        known = self._known.get(name)
        return (etag, await self._read(name)) if known is None or known[0] != etag else known

    async def _read(self, name: str) -> T | None:
        try:
            stored = await self._store.get(self._bucket, name, bytes_max=RECORD_BYTES_MAX)
            read = decode_json_known(self._kind, stored.body or b"", name)
        except AppError as error:
            if error.retryable:
                raise
            logger.warning("skipping %s: %s", name, error, extra={"event": "registry_unreadable"})
            return None
        return known_of(logger, read)


class StoreRegistry:
    """`functions/<name>.json` and `workflows/<name>.json` in the state bucket. Without the bucket
    nothing is deployed yet.

    A poll reads the etag of `registry/changed` (a LIST costs twelve times as much). The records
    are listed when it is new, every `LISTED_EVERY` polls, and always where it is absent; only those
    with a new etag are read. Workflows are listed when the object is new: every deploy that knows
    them writes it. A workflow is deployed after its functions and removed before them, so
    that a listing of workflows comes first: what it finds has all its functions.
    """

    def __init__(self, store: ObjectStore, bucket: str, *, only: Sequence[str] = ()) -> None:
        self._store = store
        self._bucket = bucket
        self._only = only  #: serve just these functions; empty = all
        self._functions = _Records(store, bucket, PREFIX, Function)
        self._workflows = _Records(store, bucket, WORKFLOWS_PREFIX, Workflow)
        self._changed: str | None = None  #: etag of the last listing's CHANGED_KEY
        self._polls_left = 0  #: before the next listing

    async def functions(self) -> Mapping[str, Function]:
        try:
            changed = await self._etag_of_changed()
            if changed is not None and changed == self._changed and self._polls_left:
                self._polls_left -= 1
                return self._served()
            if changed is not None and changed != self._changed:
                with Tolerating(ErrorCode.DENIED):  # rights of an older version do not cover them
                    await self._workflows.load()
            await self._functions.load()
        except AppError as error:
            if error.code is ErrorCode.NOT_FOUND:
                return {}
            raise
        self._changed, self._polls_left = changed, LISTED_EVERY
        served = self._served()
        for function in served.values():
            self._store.expect_owners(function.owners)
        for workflow in self.workflows().values():
            self._store.expect_owners(workflow.owners)
        return served

    def workflows(self) -> Mapping[str, Workflow]:
        served = self._served()
        return {
            workflow.name: workflow
            for workflow in self._workflows.valid
            if all(step.name in served for step in workflow.steps)
        }

    def _served(self) -> dict[str, Function]:
        return {
            function.name: function
            for function in self._functions.valid
            if not self._only or function.name in self._only
        }

    async def _etag_of_changed(self) -> str | None:
        """None where no deploy wrote it, or older rights do not cover it.

        It is read before the listing, which is then at least as new.
        """
        with Tolerating(ErrorCode.NOT_FOUND, ErrorCode.DENIED):
            return (await self._store.head(self._bucket, CHANGED_KEY)).etag
        return None
