"""The output of a run: its end, and its lines within the limits of one call."""

from __future__ import annotations

import os

import pytest

from remote_gpu.host.runs import output as outputs
from remote_gpu.host.runs.output import TAIL_BYTES, RunOutput


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
