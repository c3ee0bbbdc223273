"""`python lease_in_namespace.py SCHEDULER MIDDLEWARE HOSTS ENV_JSON`: a lease, as an orchestrator.

Reserves one device on each of so many hosts, writes the envelope's `env.json`, prints a line and
holds the reservation until its standard input ends. The key is in the environment.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from corekit.aio.environment import budget_from_environment
from gpu_scheduler.client.access import find_access
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.model import LeaseLifetime, Placement, Request
from remote_gpu.middleware import render


async def main(scheduler: str, middleware: str, hosts: int, target: Path) -> None:
    request = Request(memory_mib=64, count=hosts, placement=Placement.SPREAD, middleware=middleware)
    async with (
        asyncio.timeout(60),
        SchedulerClient(
            scheduler, budget=budget_from_environment(), access=find_access()
        ) as client,
    ):
        while True:
            answer = await client.reserve("job:1", request, wait=True, hold=LeaseLifetime.SESSION)
            if answer.granted is not None:
                break
            await asyncio.sleep(0.02)
        envelope = json.dumps(render(middleware, answer.granted))
        await asyncio.to_thread(target.write_text, envelope)
        print("granted", flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
