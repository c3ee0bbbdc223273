"""A standby takes over from a leader that dies, stops, is cut off, or stops in order.

Times are measured and reported, never asserted: `docs/how-to/high-availability.md` has the
figures of 200 rounds (`make soak`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import pytest

from tests.integration.failover.pair import FAULTS
from tests.integration.failover.rounds import best_network, rounds
from tests.integration.failover.timeline import Gap, summary
from tests.log_engines import ENGINES
from tests.namespaces import why_not_unshared

ROUNDS = 200


def run(engine: str, network: str, faults: Sequence[str]) -> list[Gap]:
    with ENGINES[engine]() as running:
        gaps = asyncio.run(rounds(running.fresh(), network, faults))
    assert [gap.fault for gap in gaps] == list(faults)
    print(json.dumps(summary(gaps)))  # noqa: T201
    return gaps


@pytest.fixture(scope="module")
def network() -> str:
    return best_network()


@pytest.mark.timeout(300)
def test_a_standby_takes_over_after_each_kind_of_fault(network: str) -> None:
    run("postgres", network, FAULTS)


def test_cuts_are_made_in_a_network() -> None:
    """Where they are not, links hold bytes back, and the other tests use those."""
    if (why := why_not_unshared()) is not None:
        pytest.skip(f"NOT TESTED: cuts in a network, but in links: {why}")
    assert best_network() == "namespaces"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["s3", pytest.param("dynamodb", marks=pytest.mark.soak)])
def test_a_standby_over_another_engine_takes_over(engine: str) -> None:
    """Through links, which every machine has."""
    run(engine, "links", ["cut"])


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ["postgres", "s3", "dynamodb"])
def test_two_hundred_rounds(engine: str, network: str) -> None:
    run(engine, network, [FAULTS[number % len(FAULTS)] for number in range(ROUNDS)])
