"""A standby takes over from a leader that dies, stops, is cut off, or stops in order.

Times are measured and reported, never asserted: `docs/high-availability.md` has the figures of 200
rounds (`make soak`).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.failover.links import Link
from tests.integration.failover.pair import FAULTS, Pair, pair
from tests.postgres_server import PostgresServer, postgres_server

ROUNDS = 200
SOCKET = ".s.PGSQL.5432"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def shown(system: Pair) -> dict[str, dict[str, float]]:
    """Seconds without a grant, for each kind of fault."""
    return {
        fault: {
            "rounds": len(times),
            "median_s": round(statistics.median(times), 2),
            "longest_s": round(max(times), 2),
        }
        for fault, times in system.again_s.items()
    }


async def rounds(server: PostgresServer, folder: Path, name: str, count: int) -> Pair:
    with tempfile.TemporaryDirectory(prefix="log-") as short:  # a socket's path is at most 107
        links, logs = [], []
        for one in "ab":
            (Path(short) / one).mkdir()
            links.append(Link(Path(short) / one / SOCKET, server.folder / SOCKET))
            logs.append(f"postgres://tests@/postgres?host={short}/{one}&name={name}")
        async with pair(folder, logs, links) as system:
            for number in range(count):
                await system.round(FAULTS[number % len(FAULTS)])
            return system


@pytest.mark.timeout(300)
def test_a_standby_takes_over_after_each_kind_of_fault(
    server: PostgresServer, tmp_path: Path
) -> None:
    system = asyncio.run(rounds(server, tmp_path, "short", len(FAULTS)))
    assert [len(system.again_s[fault]) for fault in FAULTS] == [1] * len(FAULTS)
    print(json.dumps(shown(system)))  # noqa: T201


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_rounds(server: PostgresServer, tmp_path: Path) -> None:
    system = asyncio.run(rounds(server, tmp_path, "long", ROUNDS))
    print(json.dumps(shown(system)))  # noqa: T201
