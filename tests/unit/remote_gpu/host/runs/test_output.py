"""The output of a run: its end, and its lines within the limits of one call."""

from __future__ import annotations

import array
import asyncio
import fcntl
import os
import termios
from dataclasses import replace
from functools import partial

import pytest

from corekit.errors import AppError
from remote_gpu.host.runs import output as outputs
from remote_gpu.host.runs.output import TAIL_BYTES, CloudWatchSender, Event, RunOutput, send
from tests.unit.remote_gpu.wire.test_runs import ORDER


def written(data: bytes) -> RunOutput:
    reading, writing = os.pipe()
    output = RunOutput(reading)
    for at in range(0, len(data), 1 << 15):
        os.write(writing, data[at : at + (1 << 15)])
        output.drain()
    os.close(writing)
    output.finish()
    output.finish()
    return output


@pytest.mark.asyncio
async def test_lines_are_kept_in_order_with_the_last_without_an_end() -> None:
    output = written("one\n\ntwo ü\r\nthr".encode())
    assert [text for _, text in output.take()] == ["one", "two ü", "thr"]
    assert output.take() == []
    assert output.tail == "one\n\ntwo ü\r\nthr"


@pytest.mark.asyncio
async def test_a_batch_has_at_most_what_one_call_takes() -> None:
    lines = [b"x" * 30_000 + b"\n"] * 50
    output = written(b"".join(lines))
    first, second = output.take(), output.take()
    assert len(first) + len(second) == 50
    assert sum(len(text) + 26 for _, text in first) <= 1 << 20
    assert output.take() == []
    assert len(output.tail) <= TAIL_BYTES


@pytest.mark.asyncio
async def test_what_is_too_much_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_WAITING_BYTES_MAX", 100)
    output = written(b"a line of twenty chars\n" * 10)
    found = [text for _, text in output.take()]
    assert found[-1] == f"[log: {10 - len(found) + 1} lines more are not shown]"
    assert len(found) < 10


@pytest.mark.asyncio
async def test_a_line_without_an_end_is_cut() -> None:
    output = written(b"y" * (1 << 18))
    assert {len(text) for _, text in output.take()} <= {1 << 16, 0} | set(range(1 << 16))


@pytest.mark.asyncio
async def test_bytes_that_are_no_characters_count_as_they_are_sent() -> None:
    output = written((b"\xff" * 30_000 + b"\n") * 200)
    taken: list[Event] = []
    while batch := output.take():
        assert sum(len(text.encode()) + 26 for _, text in batch) <= 1 << 20
        taken += batch
    sent = sum(len(text.encode()) for _, text in taken)
    assert sent <= outputs._WAITING_BYTES_MAX + 3 * 30_000
    assert (output._waiting_bytes, list(output._waiting)) == (0, [])


@pytest.mark.asyncio
async def test_the_count_of_lines_not_shown_is_one_of_the_batchs_events() -> None:
    output = written(b"y\n" * 400_000)
    batches = []
    while batch := output.take():
        batches.append(batch)
    assert max(map(len, batches)) == 10_000
    shown = sum(map(len, batches)) - 1
    assert batches[0][-1][1] == f"[log: {400_000 - shown} lines more are not shown]"


@pytest.mark.asyncio
async def test_a_run_that_writes_without_a_pause_is_read_at_a_limited_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outputs, "_READS_MAX", 2)
    monkeypatch.setattr(outputs, "_READS_S", 3600.0)
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 18)
    os.write(writing, (b"y" * 1023 + b"\n") * (1 << 8))
    output = RunOutput(reading)
    for _ in range(10):
        await asyncio.sleep(0)
    left = array.array("i", [0])
    fcntl.ioctl(reading, termios.FIONREAD, left)
    assert left[0] == (1 << 18) - 2 * (1 << 16)
    os.close(writing)
    output.finish()
    assert sum(len(text) for _, text in output.take()) == 1023 << 8


class Refusing:
    """A log that refuses its first calls."""

    stream = "s"

    def __init__(self, refusals: int, over: asyncio.Event) -> None:
        self._left, self._over = refusals, over
        self.refused, self._loop = asyncio.Event(), asyncio.get_running_loop()
        self.lines: list[str] = []

    def put(self, events: list[Event]) -> None:
        if self._left:
            self._left -= 1
            if not self._left:
                self._loop.call_soon_threadsafe(self.refused.set)
            raise OSError("not now")
        self.lines += [text for _, text in events]
        self._loop.call_soon_threadsafe(self._over.set)

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("refusals", "expected"),
    [(1, ["one", "two"]), (5, ["three", "[log: 2 lines more are not shown]"])],
)
@pytest.mark.asyncio
async def test_a_failed_call_does_not_end_the_log(
    monkeypatch: pytest.MonkeyPatch, refusals: int, expected: list[str]
) -> None:
    monkeypatch.setattr(outputs, "_EVERY_S", 0.0)
    over = asyncio.Event()
    log = Refusing(refusals, over)
    output = written(b"one\ntwo\n")
    sending = asyncio.create_task(send(output, log, over))
    await log.refused.wait()
    if refusals == 5:
        output._add(b"three")
    await sending
    assert log.lines == expected


def test_an_order_without_credentials_never_has_those_of_gpud(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OFGPUD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "OFGPUD")
    url = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "eu-west-1"}
    half: list[dict[str, str]] = [{}, {"AWS_ACCESS_KEY_ID": ""}, {"AWS_ACCESS_KEY_ID": "AKIA"}]
    for keys in half:
        order = replace(ORDER, aws=url | keys, log_group="/aws/lambda/f")
        sender = CloudWatchSender(partial(replace, order), "s")
        with pytest.raises(AppError, match="no credentials of its function"):
            sender.put([(0, "line")])
        sender.close()
