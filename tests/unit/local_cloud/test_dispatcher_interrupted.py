"""An error at any await of an invocation ends that one, and its function runs the next."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from corekit.aio.supervise import Nursery
from corekit.aio.vloop import run_virtual
from local_cloud.model.functions.function import (
    DestinationRecord,
    Invocation,
    InvocationQueue,
    InvokeConfig,
    Outcome,
)
from local_cloud.sandbox.dispatcher import Dispatcher
from tests.interruptions import interruptions


@dataclass
class Named:
    """A function whose failed events have a destination."""

    name: str = "f"
    invocations: InvocationQueue = field(
        default_factory=lambda: InvocationQueue(
            function_arn="arn", config=InvokeConfig(retries_max=0, on_failure="arn:dlq")
        )
    )


def test_the_next_event_is_run_whatever_await_fails() -> None:
    run: list[str] = []
    delivered: list[str] = []

    async def work(_: object, invocation: Invocation) -> Outcome:
        await asyncio.sleep(1.0)
        run.append(invocation.request_id)
        return Outcome(payload="", error="Unhandled")

    async def deliver(record: DestinationRecord) -> None:
        await asyncio.sleep(1.0)
        delivered.append(record.arn)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        target: Any = Named()
        async with Nursery("cloud") as nursery:
            dispatcher = Dispatcher(nursery, loop.time, work, deliver)

            async def served(request_id: str) -> None:
                target.invocations.accept(loop.time(), request_id, "{}")
                dispatcher.pump(target)
                await asyncio.sleep(10.0)

            await served("first")
            for kind in sorted(found.kinds):
                for _ in found.points(kind):
                    await served(f"interrupted {kind}")
                    found.disarm()
                    before = len(run), len(delivered)
                    await served(f"next {len(run)}")
                    assert (len(run), len(delivered)) == (before[0] + 1, before[1] + 1)
            dispatcher.close()

    with interruptions() as found:
        run_virtual(main())
    assert not found.failures
    assert {"invoke", "deliver"} <= found.kinds
