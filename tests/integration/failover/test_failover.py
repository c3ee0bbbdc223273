"""A standby takes over from a leader that dies, stops, is cut off, or stops in order.

Times are measured and reported, never asserted: `docs/high-availability.md` has the figures of 200
rounds (`make soak`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.integration.failover.links import Link
from tests.integration.failover.pair import FAULTS, Pair, free_port, pair
from tests.integration.failover.timeline import summary
from tests.log_engines import ENGINES

ROUNDS = 200
SOCKET = ".s.PGSQL.5432"
_ENDPOINT = re.compile(r"endpoint=http://([^:&]+):(\d+)")


@contextlib.contextmanager
def linked(log: str) -> Iterator[tuple[list[str], list[Link]]]:
    """For each of two daemons its own way to a log that can be cut: addresses and links."""
    if (endpoint := _ENDPOINT.search(log)) is not None:
        ports = [free_port(), free_port()]
        to = (endpoint[1], int(endpoint[2]))
        logs = [log.replace(f":{endpoint[2]}", f":{port}") for port in ports]
        yield logs, [Link(("127.0.0.1", port), to) for port in ports]
        return
    (folder,) = re.findall(r"host=([^&]+)", log)
    with tempfile.TemporaryDirectory(prefix="log-") as short:  # a socket's path is at most 107
        ways = [Path(short, one) for one in "ab"]
        for way in ways:
            way.mkdir()
        logs = [log.replace(f"host={folder}", f"host={way}") for way in ways]
        yield logs, [Link(way / SOCKET, Path(folder) / SOCKET) for way in ways]


async def rounds(log: str, folder: Path, faults: Sequence[str]) -> Pair:
    with linked(log) as (logs, links):
        async with pair(folder, logs, links) as system:
            for fault in faults:
                await system.round(fault)
            return system


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("engine", "faults"), [("postgres", FAULTS), ("s3", ("SIGSTOP", "cut"))])
def test_a_standby_takes_over_after_each_kind_of_fault(
    engine: str, faults: Sequence[str], tmp_path: Path
) -> None:
    with ENGINES[engine]() as running:
        system = asyncio.run(rounds(running.fresh(), tmp_path, faults))
    assert [gap.fault for gap in system.gaps] == list(faults)
    print(json.dumps(summary(system.gaps)))  # noqa: T201


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["postgres", "s3"])
def test_two_hundred_rounds(engine: str, tmp_path: Path) -> None:
    faults = [FAULTS[number % len(FAULTS)] for number in range(ROUNDS)]
    with ENGINES[engine]() as running:
        system = asyncio.run(rounds(running.fresh(), tmp_path, faults))
    print(json.dumps(summary(system.gaps)))  # noqa: T201
