"""The loop of a fleet beside a scheduler and hosts in memory: edits of its file, groups that go."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.protocol import ops
from orchgpu.fleet.ports.memory import MemoryFleet
from orchgpu.fleet.program import Fleet, MemoryFile
from tests.scheduler_thread import scheduler_in_thread

ONE = "offers:\n- {name: a, kind: cpu, memory: 1GiB, min: 1, max: 3}\n"
TWO = ONE + "- {name: b, kind: cpu, memory: 1GiB, min: 1, max: 2, group: %s}\n"


class System:
    """A folder with the files of a fleet, and a provider that has two groups."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.offers = folder, folder / "offers.yaml"
        self.port = MemoryFleet(time.time, ["a", "asg-b"])

    def fleet(self, client: SchedulerClient, wall_s: Callable[[], float] = time.time) -> Fleet:
        memory = MemoryFile(self.folder / "memory.json")
        return Fleet(client, self.port, self.offers, memory, wall_s)

    def hosts(self) -> dict[str, int]:
        return {group: len(hosts) for group, hosts in self.port.hosts.items() if hosts}

    def run(self, part: Callable[[SchedulerClient], Coroutine[object, object, None]]) -> None:
        async def connected(address: str) -> None:
            async with SchedulerClient(address) as client:
                await part(client)

        with scheduler_in_thread(self.folder / "state") as address:
            asyncio.run(connected(address))


@pytest.fixture
def system(tmp_path: Path) -> System:
    return System(tmp_path)


async def looked(fleet: Fleet) -> None:
    """A step that starts hosts, and one that sees them."""
    await fleet.step()
    await fleet.step()


def test_an_edit_with_an_unknown_group_leaves_the_offers_in_force(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    async def part(client: SchedulerClient) -> None:
        system.offers.write_text(ONE)
        fleet = system.fleet(client)
        await looked(fleet)
        system.offers.write_text(TWO % "wrong")
        await looked(fleet)
        assert system.hosts() == {"a": 1}
        system.offers.write_text(TWO % "asg-b")
        await looked(fleet)
        await looked(fleet)
        assert system.hosts() == {"a": 1, "asg-b": 1}

    system.run(part)
    assert caplog.text.count("the offers in force stay: there is no group 'wrong'") == 1


def test_half_of_a_file_that_is_being_written_is_not_taken(system: System) -> None:
    async def part(client: SchedulerClient) -> None:
        system.offers.write_text(TWO % "asg-b")
        fleet = system.fleet(client)
        await looked(fleet)
        whole = (TWO % "asg-b").replace("max: 3", "max: 4")
        seen = []
        for text in (whole[: len(ONE)], whole, whole):
            if text != system.offers.read_text():
                system.offers.write_text(text)
            await fleet.step()
            found = (await client.inventory()).fleet
            seen.append({pool.name: pool.max for pool in found.pools} if found else {})
        assert seen == [{"a": 3, "b": 2}, {"a": 3, "b": 2}, {"a": 4, "b": 2}]

    system.run(part)


def test_a_removed_offer_whose_group_is_gone_is_forgotten(
    system: System, caplog: pytest.LogCaptureFixture
) -> None:
    async def part(client: SchedulerClient) -> None:
        system.offers.write_text(TWO % "asg-b")
        await looked(system.fleet(client))
        system.offers.write_text(ONE)
        system.port.groups = ["a"]
        fleet = system.fleet(client)
        decision = await fleet.step()
        assert list(decision.memory.pools) == ["a"]
        await fleet.step()

    system.run(part)
    assert caplog.text.count("a removed offer is forgotten: there is no group 'asg-b'") == 1


def test_hosts_in_the_former_group_of_an_offer_stay_known_after_a_restart(system: System) -> None:
    async def part(client: SchedulerClient) -> None:
        system.offers.write_text(TWO % "asg-b")
        await looked(system.fleet(client))
        system.port.groups = ["a", "asg-b", "asg-c"]
        system.offers.write_text(TWO % "asg-c")
        decision = await system.fleet(client).step()
        assert {n: p.group for n, p in decision.memory.pools.items()} == {
            "a": "a",
            "b": "asg-c",
            "b@asg-b": "asg-b",
        }
        again = system.fleet(client)
        await looked(again)
        assert system.hosts() == {"a": 1, "asg-b": 1, "asg-c": 1}
        await again.stop_hosts(60.0)
        assert system.hosts() == {}

    system.run(part)


def test_the_end_of_all_hosts_passes_over_a_group_that_is_gone(system: System) -> None:
    async def part(client: SchedulerClient) -> None:
        system.offers.write_text(TWO % "asg-b")
        await looked(system.fleet(client))
        system.offers.write_text(ONE)
        system.port.groups = ["a"]
        await system.fleet(client).stop_hosts(60.0)
        assert not system.port.hosts["a"]

    system.run(part)


def test_the_scheduler_has_the_pools_that_the_fleet_sees(system: System) -> None:
    async def part(client: SchedulerClient) -> None:
        system.offers.write_text(ONE)
        await looked(system.fleet(client))
        found = (await client.inventory()).fleet
        assert found is not None
        (pool,) = found.pools
        assert (pool.name, pool.size, pool.states) == ("a", 1, {"starting": 1})

    system.run(part)


def test_a_clock_that_steps_back_ends_neither_the_loop_nor_the_reports(system: System) -> None:
    readings = itertools.count()

    async def part(client: SchedulerClient) -> None:
        system.offers.write_text(ONE)
        fleet = system.fleet(client, lambda: time.time() - 60.0 * next(readings))
        await looked(fleet)
        found = (await client.inventory()).fleet
        assert found is not None
        assert [pool.started_ago_s for pool in found.pools] == [pytest.approx(0.0, abs=30.0)]

    system.run(part)


def test_a_fleet_works_with_a_scheduler_that_takes_no_report(
    system: System, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ops.OPS, "report_fleet")  # as in the version before

    async def part(client: SchedulerClient) -> None:
        system.offers.write_text(ONE)
        await looked(system.fleet(client))
        assert (await client.inventory()).fleet is None

    system.run(part)
    assert system.hosts() == {"a": 1}
    assert caplog.text.count("the scheduler takes no report of the fleet") == 1
