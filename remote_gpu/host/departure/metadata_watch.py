"""The watch of the instance metadata: a notice of EC2 or Auto Scaling begins a drain.

AWS recommends to look every 5 seconds. A service that does not answer changes no notice. An item is
evaluated when its text changes, so that the limit of a notice counts from its first sight.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from corekit.budget import Budget
from corekit.errors import AppError
from remote_gpu.host.departure.departure import Departure
from remote_gpu.host.departure.metadata import InstanceMetadata
from remote_gpu.host.departure.metadata_notices import ITEMS, Moment
from remote_gpu.host.departure.notices import Source

logger = logging.getLogger(__name__)


class MetadataWatch:
    """Passes the notices of the metadata on to the departure of this host."""

    def __init__(
        self,
        metadata: InstanceMetadata,
        departure: Departure,
        budget: Budget,
        sources: Sequence[Source] = tuple(ITEMS),
    ) -> None:
        self._metadata = metadata
        self._departure = departure
        self._budget = budget
        self._sources = sources
        self._seen: dict[Source, str | None] = {}
        self._problem = ""  #: the newest one, logged once

    async def run(self) -> None:
        """Look at all items again and again. Endless."""
        fields = {"event": "instance_metadata", "endpoint": self._metadata.endpoint}
        logger.info("watching the instance metadata", extra=fields)
        async with self._metadata:
            while True:
                await self.look()
                await asyncio.sleep(self._budget.instance_metadata_poll_s)

    async def look(self) -> None:
        """Look at all items once, inside `async with metadata`."""
        try:
            for source in self._sources:
                text = await self._metadata.item(ITEMS[source][0])
                if text != self._seen.get(source):
                    self._seen[source] = text
                    self._take(source, text)
        except AppError as error:
            self._failed(error.message)
        else:
            self._problem = ""

    def _take(self, source: Source, text: str | None) -> None:
        path, read = ITEMS[source]
        logger.info("instance metadata", extra={"event": "notice", "item": path, "value": text})
        moment = Moment(
            at_s=asyncio.get_running_loop().time(),
            wall_s=time.time(),
            drain_s=self._departure.drain_s,
            reserve_s=self._budget.worker_cut_s,
        )
        try:
            self._departure.notice(source, None if text is None else read(text, moment))
        except AppError as error:
            logger.warning("%s", error.message)

    def _failed(self, why: str) -> None:
        if why != self._problem:
            logger.warning("%s", why, extra={"event": "instance_metadata"})
        self._problem = why
