"""A sandbox alone, with real processes, for the tests of its runs and its starts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from corekit.aio.clock import SystemClock
from local_cloud.model.functions.environments import EnvironmentPool
from local_cloud.sandbox.log_store import LogStore
from local_cloud.sandbox.runtime import RunSpec, Runtime
from local_cloud.sandbox.sandbox import Sandbox

ARN = "arn:aws:lambda:us-east-1:000000000000:function:f"
PID = "import os\ndef handle(e, c): return os.getpid()"


@asynccontextmanager
async def sandbox(
    folder: Path, *, concurrency_max: int = 10, starts_max: int | None = None
) -> AsyncIterator[Sandbox]:
    async with Sandbox(
        folder / "environments",
        runtime=Runtime(folder / "runtime", endpoint="http://127.0.0.1:1", region="us-east-1"),
        pool=EnvironmentPool(concurrency_max=concurrency_max),
        logs=LogStore(),
        clock=SystemClock(),
        revisions=lambda: {"f": "1"},
        starts_max=starts_max,
    ) as made:
        yield made


def spec(folder: Path, source: str, **changes: Any) -> RunSpec:
    code = folder / "code"
    code.mkdir(exist_ok=True)
    (code / "app.py").write_text(source)
    fields = {"name": "f", "arn": ARN, "revision": "1", "handler": "app.handle", "code": code}
    return RunSpec(**{"timeout_s": 10.0, "memory_mib": 256, **fields, **changes})


async def run(box: Sandbox, what: RunSpec, payload: Any = None) -> Any:
    outcome, _ = await box.invoke(what, "request", json.dumps(payload))
    assert not outcome.error, outcome.payload
    return json.loads(outcome.payload)


async def fail(box: Sandbox, what: RunSpec) -> dict[str, Any]:
    outcome, _ = await box.invoke(what, "request", "{}")
    assert outcome.error == "Unhandled", outcome
    return dict(json.loads(outcome.payload))


async def until(holds: Any) -> None:
    ends_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends_s, "it did not come to that"
        await asyncio.sleep(0.01)


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


async def idle(box: Sandbox) -> None:
    await until(lambda: box.pool.busy("f") == 0)


def lines(box: Sandbox) -> list[str]:
    streams = box.logs.streams("/aws/lambda/f") or {}
    return [event.message for stream in streams.values() for event in stream]


async def still_up(box: Sandbox) -> bool:
    """No task of the sandbox failed: a failure would end the whole cloud."""
    failing = asyncio.ensure_future(box._nursery.failed())
    await asyncio.sleep(0)
    failed = failing.done()
    failing.cancel()
    await asyncio.wait([failing])
    return not failed
