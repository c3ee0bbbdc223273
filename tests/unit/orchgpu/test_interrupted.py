"""An error at any await of an orchestrator's tasks ends one call, never the orchestrator."""

from __future__ import annotations

import asyncio

from tests.interruptions import interruptions
from tests.unit.orchgpu.test_replica import Bench, played

#: The core, whose state an error would leave unknown, and the requester that the test plays.
OF_THE_DAEMON = {"driver", "beat"}


def test_every_job_ends_whatever_call_fails() -> None:
    """Here each job is rejected, because no host has what it asks for."""

    async def story(bench: Bench) -> None:
        await bench.replica.start()
        await asyncio.sleep(5.0)
        jobs = 0

        async def ended() -> None:
            nonlocal jobs
            jobs += 1
            await bench.upload(1)
            async with asyncio.timeout(3600):  # an unanswered message comes again
                while bench.machine.jobs or bench.count("jobs") != (0, 0):  # noqa: ASYNC110
                    await asyncio.sleep(1.0)

        await ended()
        for kind in sorted(found.kinds - OF_THE_DAEMON):
            for _ in found.points(kind):
                await ended()
                await asyncio.sleep(30.0)  # for loops that run seldom
            await asyncio.sleep(60.0)  # a loop may fail so often in a minute
        assert len(found.places) > 10

    with interruptions() as found:
        played(story)
    assert not found.failures
