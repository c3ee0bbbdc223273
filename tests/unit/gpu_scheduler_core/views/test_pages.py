"""Long lists are read page by page, within the limit of a reply."""

from collections.abc import Callable
from typing import Any

from gpu_scheduler.core import events as on
from gpu_scheduler.model import LeaseLifetime, Placement, Request
from gpu_scheduler.protocol import answers, ops
from tests.scheduler_world import World, device


def pages(
    world: World, event: type[Any], cursor: Callable[[Any], dict[str, Any]], limit: int
) -> list[Any]:
    """All pages in their order."""
    found: list[Any] = []
    after: dict[str, Any] = {}
    while True:
        found.append(world.ask(event, limit=limit, **after))
        if not found[-1].more:
            return found
        after = {"after": cursor(found[-1])}


def test_pages_of_hosts_are_by_name_and_do_not_split_a_host(world: World) -> None:
    for name, count in (("c", 2), ("a", 3), ("b", 1), ("d", 1)):
        world.host(name, *(device(f"{name}{n}", index=n) for n in range(count)))
    found = pages(world, ops.Inventory, lambda page: page.hosts[-1].host, 2)
    assert [[host.host for host in page.hosts] for page in found] == [["a"], ["b"], ["c"], ["d"]]
    found = pages(world, ops.Inventory, lambda page: page.hosts[-1].host, 4)
    assert [[host.host for host in page.hosts] for page in found] == [["a", "b"], ["c", "d"]]
    world.ask(ops.Inventory)
    assert [host.host for host in world.answer().hosts] == ["a", "b", "c", "d"]


def test_declared_devices_are_on_the_first_page(world: World) -> None:
    world.host("a", device("a0"))
    world.host("b", device("b0"))
    world.handle(on.CapacityDeclared, devices=tuple(device(f"x{n}", index=n) for n in range(3)))
    first, second = pages(world, ops.Inventory, lambda page: page.hosts[-1].host, 1)
    assert (len(first.declared), first.declared_left_out) == (1, 2)
    assert (len(second.declared), second.declared_left_out) == (0, 0)


def test_the_next_page_of_leases_is_above_the_last_fence(world: World) -> None:
    world.host("h", *(device(f"d{n}", index=n) for n in range(4)))
    gang = Request(count=2, memory_mib=10, placement=Placement.SPREAD)
    for n in range(5):
        world.reserve(f"a{n}", gang, hold=LeaseLifetime.DEADLINE, lease_s=60.0 + n)
    world.advance(10.0)
    found = pages(world, ops.Leases, lambda page: page.leases[-1].fence, 5)
    assert [len(page.leases) for page in found] == [2, 2, 1]
    leases = [lease for page in found for lease in page.leases]
    assert [lease.attempt for lease in leases] == [f"a{n}" for n in range(5)]
    ends_in_s = {name: left_s for page in found for name, left_s in page.ends_in_s.items()}
    assert [ends_in_s[lease.id] for lease in leases] == [50.0 + n for n in range(5)]


def test_a_long_queue_is_cut_and_counted(one: World, whole: Request) -> None:
    one.reserve("held", whole)
    for n in range(5):
        assert one.reserve(f"w{n}", whole).outcome is answers.Outcome.WAITING
    answer = one.ask(ops.Queue, limit=2)
    assert [view.attempt for view in answer.queue] == ["w0", "w1"]
    assert answer.left_out == 3
