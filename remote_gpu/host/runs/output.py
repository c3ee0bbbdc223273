"""The output of one run: its end for errors, and all of it for CloudWatch Logs.

Lines are sent by batches, in a thread, with the function's own credentials: by each second, and at
the end. After a failure the pauses become longer; what cannot be sent is dropped and counted, and
gpud's log has the reason once. A run that writes too fast waits for its pipe, not gpud for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from corekit.errors import invalid
from remote_gpu.host.runs.private import has_credentials, session_variables
from remote_gpu.wire.runs import RunOrder

logger = logging.getLogger(__name__)

TAIL_BYTES = 2000
_READ_BYTES = 1 << 16
_READS_AT_END = 32  #: as much as a pipe can hold
#: Reads of one pipe within a time: 16 MiB/s, which a run's own text never has.
_READS_MAX, _READS_S = 25, 0.1
_EVERY_S, _PAUSE_S_MAX = 1.0, 60.0
_TRIES = 5  #: of one batch
#: PutLogEvents: a batch has 10,000 events and 1 MiB at most, with 26 bytes for each.
#: https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_PutLogEvents.html
_EVENTS_MAX, _BATCH_BYTES_MAX, _EVENT_BYTES = 10_000, 1 << 20, 26
_NOTE_BYTES_MAX = 100  #: of the event that counts lines which are not shown
_LINE_BYTES_MAX = 1 << 16
_WAITING_BYTES_MAX = 4 << 20  #: of a run that writes faster than they are sent

Event = tuple[int, str]  #: milliseconds since the epoch, one line


class RunOutput:
    """Reads a pipe until every process of the run has closed it."""

    def __init__(self, pipe: int) -> None:
        """Takes the pipe's reading end; -1 = it is closed already."""
        self._pipe = pipe
        self._tail = self._part = b""
        self._waiting: deque[tuple[Event, int]] = deque()  # with its bytes in a batch
        self._waiting_bytes = 0  # the sum of those
        self._dropped = 0
        self._reads, self._since_s = 0, 0.0
        self._paused: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        if pipe >= 0:
            os.set_blocking(pipe, False)
            self._loop.add_reader(pipe, self._on_readable)

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
        left = _BATCH_BYTES_MAX - _EVENT_BYTES - _NOTE_BYTES_MAX
        while self._waiting and len(found) < _EVENTS_MAX - 1:
            event, size = self._waiting[0]
            if size > left:
                break
            left -= size
            self._waiting_bytes -= size
            found.append(event)
            self._waiting.popleft()
        if found and self._dropped:
            found.append((found[-1][0], f"[log: {self._dropped} lines more are not shown]"))
            self._dropped = 0
        return found

    def lost(self, events: list[Event]) -> None:
        """Count lines that were taken and not sent."""
        self._dropped += len(events)

    def _on_readable(self) -> None:
        """Read; a run that writes without a pause waits until the time of its reads is over."""
        now_s = self._loop.time()
        if now_s - self._since_s >= _READS_S:
            self._reads, self._since_s = 0, now_s
        self._reads += 1
        if self._read() and self._reads >= _READS_MAX:
            self._loop.remove_reader(self._pipe)
            self._paused = self._loop.call_at(self._since_s + _READS_S, self._resume)

    def _resume(self) -> None:
        self._paused = None
        self._loop.add_reader(self._pipe, self._on_readable)

    def _read(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            output = os.read(self._pipe, _READ_BYTES)
            if not output:
                self._close()
                return False
            self._tail = (self._tail + output)[-TAIL_BYTES:]
            if self._waiting_bytes > _WAITING_BYTES_MAX:
                self._dropped += output.count(b"\n")
                self._part = output.rpartition(b"\n")[2]
                return True
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
        size = len(text.encode()) + _EVENT_BYTES  # three bytes for one of an invalid character
        self._waiting_bytes += size
        self._waiting.append(((int(time.time() * 1000), text), size))

    def _close(self) -> None:
        if self._paused is not None:
            self._paused.cancel()
            self._paused = None
        self._loop.remove_reader(self._pipe)
        os.close(self._pipe)
        self._pipe = -1
        if self._part:
            self._add(self._part)
            self._part = b""


class LogSender(Protocol):
    """A log; used by one thread at a time."""

    stream: str  #: its name, for people

    def put(self, events: list[Event]) -> None:
        """Append the lines of one batch. Raises anything; a repetition may show lines twice."""

    def close(self) -> None:
        """Idempotent."""


async def send(output: RunOutput, sender: LogSender, over: asyncio.Event) -> None:
    """Send its lines until `over` and all are sent, or one call fails then. Raises nothing.

    Closes the sender.
    """
    events: list[Event] = []
    failures = 0  # since a call succeeded
    try:
        while True:
            last = over.is_set()
            try:
                while events := events or output.take():
                    await asyncio.to_thread(sender.put, events)
                    events, failures = [], 0
            except Exception as error:  # of botocore, which has many
                failures += 1
                if failures == 1:
                    about = {"event": "run_log", "stream": sender.stream, "why": str(error)[:500]}
                    text = "the output of a run is not in its function's log"
                    logger.warning(text, extra=about)
                if failures % _TRIES == 0:
                    output.lost(events)
                    events = []
            if last:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_EVERY_S * 2**failures, _PAUSE_S_MAX)):
                    await over.wait()
    finally:
        sender.close()


class CloudWatchSender:
    """CloudWatch Logs for one stream."""

    def __init__(self, newest: Callable[[], RunOrder], stream: str) -> None:
        """`newest`: the last order, which has the newest credentials."""
        self._newest = newest
        self.stream = stream
        self._order: RunOrder | None = None
        self._client: Any = None
        self._made = False

    def put(self, events: list[Event]) -> None:
        """Raises botocore's errors, and AppError(INVALID) without credentials."""
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
        if not has_credentials(order):  # botocore would look for those of gpud
            raise invalid("the order has no credentials of its function")
        if order is not self._order:
            self.close()
            self._client, self._order = _client(order), order
        return self._client, {"logGroupName": order.log_group, "logStreamName": self.stream}


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
