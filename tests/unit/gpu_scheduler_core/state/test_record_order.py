"""Order of the records: as a dict has it, with pages whose cost does not depend on their place."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corekit.ids import JobId
from gpu_scheduler.core.state.record_order import Order
from gpu_scheduler.model import Record
from gpu_scheduler.protocol import ops
from tests.scheduler_world import World

NAMES = st.sampled_from("abcdef")


@given(st.lists(st.tuples(st.sampled_from(["add", "remove"]), NAMES)), NAMES)
def test_it_has_the_order_of_a_dict(steps: list[tuple[str, str]], after: str) -> None:
    order: Order[str] = Order()
    model: dict[str, None] = {}
    for what, name in steps:
        model.pop(name, None)
        if what == "add":
            order.add(name)
            model[name] = None
        else:
            order.remove(name)
    names = list(model)
    assert (list(order), len(order)) == (names, len(names))
    assert list(order.newest()) == names[::-1]
    older = names[: names.index(after)] if after in names else []
    assert list(order.newest(after)) == older[::-1]


class CountedOrder(Order[str]):
    """Counts the members that its pages pass."""

    passed = 0

    def newest(self, after: str | None = None) -> Iterator[str]:
        for name in super().newest(after):
            CountedOrder.passed += 1
            yield name


def test_a_whole_reading_passes_every_member_once() -> None:
    order, after, read, page_size = CountedOrder(), None, 0, 7
    for number in range(1000):
        order.add(str(number))
    while page := list(islice(order.newest(after), page_size)):
        after, read = page[-1], read + len(page)
    assert (read, CountedOrder.passed) == (1000, 1000)


class RecordsOfPages(dict[JobId, Record]):
    """Records that are only looked up by name: an iteration of all of them fails."""

    def __iter__(self) -> Iterator[JobId]:
        raise AssertionError("a page passed all records")

    __reversed__ = __iter__


def test_the_scheduler_reads_only_the_records_of_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(9):
        world.attempt(f"j{number}", session="s1")
    state = world.machine.state
    monkeypatch.setattr("tests.scheduler_world.check", lambda _: [])  # it passes all records
    monkeypatch.setattr(state, "records", RecordsOfPages(state.records))
    pages, after = [], None
    while True:
        world.ask(ops.Records, limit=4, after=after)
        page = [record.holder for record in world.answer().records]
        if not page:
            break
        pages.append(page)
        after = page[-1]
    assert pages == [["j8", "j7", "j6", "j5"], ["j4", "j3", "j2", "j1"], ["j0"]]
