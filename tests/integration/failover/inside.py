"""The rounds themselves, as a program: `rounds.py` starts it, in namespaces or not.

Writes one JSON line per round to its output, so that a failed run leaves what it measured.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.integration.failover.networks import NETWORKS
from tests.integration.failover.pair import pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The rounds of one run."""

    log: str  #: its address, with `{}` in place of host and port
    engine: str  #: a Unix socket to the engine
    network: str  #: one of `NETWORKS`
    faults: tuple[str, ...]
    folder: str


async def run(plan: Plan) -> None:
    """Inject the faults one after the other, and write the gap of each."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with (
        NETWORKS[plan.network](Path(plan.engine)) as network,
        pair(Path(plan.folder), network, plan.log) as system,
    ):
        for fault in plan.faults:
            await system.round(fault)
            line = {**dataclasses.asdict(system.gaps[-1]), "load": os.getloadavg()[0]}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run(Plan(**json.loads(sys.argv[1]))))
