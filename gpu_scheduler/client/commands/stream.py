"""The events of `ssgm events`.

The HTTP endpoint sends those of leases, records, queue, hosts, devices and parameters; the socket
endpoint, which every command uses, those of leases. Both have the form of `protocol/watch.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any

from corekit.decode import encode
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.client.access import Access
from gpu_scheduler.client.pushes import Connected, Disconnected, PushWord
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import LeasePush

if TYPE_CHECKING:
    from gpu_scheduler.client.commands.options import CommandContext

Event = Mapping[str, Any]


async def of_leases(context: CommandContext) -> AsyncGenerator[Event, None]:
    """Changes of leases and of the connection, across reconnects, without end."""
    words: asyncio.Queue[PushWord] = asyncio.Queue()
    async with context.client(on_push=words.put_nowait) as client:
        await client.wait_connected(context.timeout_s or context.budget.client_gone_s)
        while True:
            word = await words.get()
            if isinstance(word, Connected):
                await client.ask(ops.Watch(all=True))
                yield {"event": "connected", **encode(word)}
            elif isinstance(word, Disconnected):
                yield {"event": "disconnected", **encode(word)}
            elif isinstance(word, LeasePush):
                yield {"event": "lease", **encode(word)}


async def of_everything(http: str, access: Access, within_s: float) -> AsyncGenerator[Event, None]:
    """`GET /v1/watch` of the first of these endpoints that serves, until it ends.

    Raises UNAVAILABLE, or the endpoint's error.
    """
    addresses = http.split(",")
    for number, one in enumerate(addresses, 1):
        has_started = False
        try:
            async with contextlib.aclosing(_of_endpoint(one, access, within_s)) as events:
                async for event in events:
                    has_started = True
                    yield event
            return
        except AppError as error:
            is_last = has_started or number == len(addresses)
            if is_last or error.code is not ErrorCode.UNAVAILABLE:
                raise


async def _of_endpoint(http: str, access: Access, within_s: float) -> AsyncGenerator[Event, None]:
    # aiohttp takes 0.2 s to import, and no other command needs it
    from gpu_scheduler.client.events import endpoint_events

    async with contextlib.aclosing(endpoint_events(http, access, within_s)) as events:
        async for event in events:
            if event["event"] not in ("beat", "current"):
                yield event


def in_words(event: Event) -> str:
    """One line for people; the name of the event first."""
    name = str(event["event"])
    known = _TEXTS.get(name)
    values = {key: "" if value is None else value for key, value in event.items()}
    text = f"{name}  {known(values)}" if known else f"{name}  {json.dumps(event)}"
    return text.rstrip()


def _lease(event: Event) -> str:
    state = " ".join(str(part) for part in (event["state"], event["reason"]) if part)
    return f"{event['lease']}  {state}  {event['attempt']}  {event['device']}  {event['detail']}"


def _record(event: Event) -> str:
    record = event["record"]
    if not record:
        return f"{event['holder']}  forgotten"
    words = (record["outcome"] or record["step"], record["reason"])
    state = " ".join(str(word) for word in words if word)
    return f"{event['holder']}  {state}  attempt {record['attempt']}"


def _device(event: Event) -> str:
    symptoms = " ".join(event["symptoms"])
    state = "DRAINED" if event["drained"] else event["health"] or "gone"
    return f"{event['host']}  {event['device']}  {state}  {symptoms}"


_TEXTS: Mapping[str, Callable[[Event], str]] = {
    "connected": lambda event: f"epoch {event['epoch']}",
    "started": lambda event: f"epoch {event['epoch']}",
    "disconnected": lambda event: str(event["detail"]),
    "lost": lambda event: str(event["why"]),
    "lease": _lease,
    "record": _record,
    "queue": lambda event: (
        f"{event['attempt']}  {'waits' if event['queued'] else 'left the queue'}  "
        f"{event['waiting']} in the queue"
    ),
    "host": lambda event: f"{event['host']}  {event['state'] or 'forgotten'}",
    "device": _device,
    "pool": lambda event: f"{event['pool']}  {event['hosts']} hosts",
    "parameter": lambda event: f"{event['name']}  {event['value']}",
}
