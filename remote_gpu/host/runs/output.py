"""The output of one run: its end for errors, and all of it for CloudWatch Logs.

Lines are sent by batches, in a thread, with the function's own credentials: by each second, and at
the end. What cannot be sent is dropped; gpud's log has the reason once, and the run is not harmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from remote_gpu.host.runs.private import session_variables
from remote_gpu.wire.runs import RunOrder

logger = logging.getLogger(__name__)

TAIL_BYTES = 2000
_READ_BYTES = 1 << 16
_READS_AT_END = 32  #: as much as a pipe can hold
_EVERY_S = 1.0
#: PutLogEvents: a batch has 10,000 events and 1 MiB at most, with 26 bytes for each.
#: https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html
_EVENTS_MAX, _BATCH_BYTES_MAX, _EVENT_BYTES = 10_000, 1 << 20, 26
_LINE_BYTES_MAX = 1 << 16
_WAITING_BYTES_MAX = 4 << 20  #: of a run that writes faster than they are sent

Event = tuple[int, str]  #: milliseconds since the epoch, one line


class RunOutput:
    """Reads a pipe until every process of the run has closed it."""

    def __init__(self, pipe: int) -> None:
        """Takes the pipe's reading end; -1 = it is closed already."""
        self._pipe = pipe
        self._tail = self._part = b""
        self._waiting: deque[Event] = deque()
        self._waiting_bytes = 0
        self._dropped = 0
        if pipe >= 0:
            os.set_blocking(pipe, False)
            asyncio.get_running_loop().add_reader(pipe, self._read)

    @property
    def tail(self) -> str:
        """Its end, for people."""
        return self._tail.decode("utf-8", "replace").strip()

    def drain(self) -> None:
        """Read what is there."""
        for _ in range(_READS_AT_END):
            if self._pipe < 0 or not self._read():
                break

    def finish(self) -> None:
        """Read what is there, and no more. Idempotent."""
        self.drain()
        if self._pipe >= 0:
            self._close()

    def handed_on(self) -> RunOutput:
        """Read what is there, and leave the rest of the pipe to another reader, of the next job."""
        self.drain()
        pipe = -1 if self._pipe < 0 else os.dup(self._pipe)
        self.finish()
        return RunOutput(pipe)

    def take(self) -> list[Event]:
        """The oldest lines, within the limits of one call."""
        found: list[Event] = []
        size = 0
        while self._waiting and len(found) < _EVENTS_MAX:
            size += len(self._waiting[0][1].encode()) + _EVENT_BYTES
            if size > _BATCH_BYTES_MAX:
                break
            found.append(self._waiting.popleft())
        self._waiting_bytes = 0 if not self._waiting else max(0, self._waiting_bytes - size)
        if found and self._dropped:
            found.append((found[-1][0], f"[log: {self._dropped} lines more are not shown]"))
            self._dropped = 0
        return found

    def _read(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            output = os.read(self._pipe, _READ_BYTES)
            if not output:
                self._close()
                return False
            self._tail = (self._tail + output)[-TAIL_BYTES:]
            *lines, self._part = (self._part + output).split(b"\n")
            if len(self._part) > _LINE_BYTES_MAX:
                lines.append(self._part)
                self._part = b""
            for line in lines:
                self._add(line)
            return True
        return False

    def _add(self, line: bytes) -> None:
        text = line[:_LINE_BYTES_MAX].decode("utf-8", "replace").rstrip("\r")
        if not text:  # an event has at least one character
            return
        if self._waiting_bytes > _WAITING_BYTES_MAX:
            self._dropped += 1
            return
        self._waiting_bytes += len(line) + _EVENT_BYTES
        self._waiting.append((int(time.time() * 1000), text))

    def _close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
        if self._part:
            self._add(self._part)
            self._part = b""


async def send(
    output: RunOutput, newest: Callable[[], RunOrder], stream: str, over: asyncio.Event
) -> None:
    """Send its lines until `over` and all are sent, or one call fails. Raises nothing.

    `newest`: the last order, which has the newest credentials.
    """
    sender = _Sender(newest, stream)
    try:
        while True:
            last = over.is_set()
            while events := output.take():
                await asyncio.to_thread(sender.put, events)
            if last:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):
                    await over.wait()
    except Exception as error:  # of botocore, which has many
        about = {"event": "run_log", "stream": stream, "why": str(error)[:500]}
        logger.warning("the output of a run is not in its function's log", extra=about)
    finally:
        sender.close()


class _Sender:
    """CloudWatch Logs for one stream; used by one thread at a time."""

    def __init__(self, newest: Callable[[], RunOrder], stream: str) -> None:
        self._newest = newest
        self._stream = stream
        self._order: RunOrder | None = None
        self._client: Any = None
        self._made = False

    def put(self, events: list[Event]) -> None:
        """Raises botocore's errors."""
        client, where = self._current()
        if not self._made:
            _make_stream(client, where)
            self._made = True
        shown = [{"timestamp": at_ms, "message": text} for at_ms, text in events]
        client.put_log_events(**where, logEvents=shown)

    def close(self) -> None:
        """Idempotent."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _current(self) -> tuple[Any, dict[str, str]]:
        order = self._newest()
        if order is not self._order:
            self.close()
            self._client, self._order = _client(order), order
        return self._client, {"logGroupName": order.log_group, "logStreamName": self._stream}


def _client(order: RunOrder) -> Any:
    import boto3  # half a second, which only hosts with runs need
    from botocore.config import Config

    from contract.aws.clients import patience

    endpoint = order.aws.get("AWS_ENDPOINT_URL_LOGS") or order.aws.get("AWS_ENDPOINT_URL")
    config = Config(**patience(tries=3, connect_s=5, read_s=10))
    session = boto3.Session(**session_variables(order))
    return session.client("logs", endpoint_url=endpoint, config=config)


def _make_stream(client: Any, where: dict[str, str]) -> None:
    exists = client.exceptions.ResourceAlreadyExistsException
    with contextlib.suppress(exists):
        try:
            client.create_log_stream(**where)
        except client.exceptions.ResourceNotFoundException:  # Lambda makes it for its functions
            with contextlib.suppress(exists):
                client.create_log_group(logGroupName=where["logGroupName"])
            client.create_log_stream(**where)
