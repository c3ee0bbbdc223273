"""Pinned memory of a card's process: its pool, and the inputs of a lane's calls in it."""

from __future__ import annotations

import ctypes
import gc
import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker import control
from remote_gpu.worker.cards.pinned import PinnedBlock, PinnedPool
from remote_gpu.worker.memory.memory import Area
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.process import MemoryLimit

PAGE = 4096
LIMIT = 16 * PAGE


class Machine:
    """A machine that pins ordinary memory, up to a size."""

    def __init__(self, most_bytes: int = LIMIT) -> None:
        self.most_bytes = most_bytes
        self.pages: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.requests: list[int] = []
        self.waits: list[int] = []

    def pin(self, size: int) -> int:
        self.requests.append(size)
        if size > self.most_bytes:
            raise OpFailed(OpCode.ENOMEM, "no pages")
        page = ctypes.create_string_buffer(size)
        self.pages[ctypes.addressof(page)] = page
        return ctypes.addressof(page)

    def unpin(self, address: int) -> None:
        del self.pages[address]

    def await_copy(self, number: int) -> None:
        self.waits.append(number)


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("take"), st.integers(0, LIMIT + 1)),
            st.tuples(st.just("drop"), st.integers(0, 9)),
            st.tuples(st.just("trim"), st.just(0)),
        ),
        max_size=40,
    ),
    st.integers(PAGE, LIMIT),
)
def test_a_pool_is_within_its_limit_and_no_two_blocks_overlap(
    actions: list[tuple[str, int]], most_bytes: int
) -> None:
    machine, pool = Machine(most_bytes), PinnedPool(LIMIT)
    live: list[PinnedBlock] = []
    for action, number in actions:
        if action == "take":
            block = pool.take(machine, number)
            assert block is None or len(block.view) == number
            live += [] if block is None else [block]
            del block
        elif action == "drop" and live:
            del live[number % len(live)]
        elif action == "trim":
            pool.trim()
            assert pool.pinned_bytes == pool.used_bytes
        assert pool.pinned_bytes == sum(map(ctypes.sizeof, machine.pages.values())) <= LIMIT
        places = sorted((one.address, one.address + len(one.view)) for one in live)
        ends = [end for _, end in places[:-1]]
        assert all(end <= start for end, (start, _) in zip(ends, places[1:], strict=True))
        assert all(pool.address_in(one.view) == one.address for one in live)
    live.clear()
    pool.trim()
    assert machine.pages == {}


def test_a_machine_that_refuses_memory_is_not_asked_for_as_much() -> None:
    machine, pool = Machine(2 * PAGE), PinnedPool(LIMIT)
    assert pool.take(machine, 3 * PAGE) is None
    assert pool.take(machine, 4 * PAGE) is None
    assert machine.requests == [3 * PAGE]
    small = pool.take(machine, PAGE)
    assert small is not None
    del small
    pool.trim()  # the machine has more now, perhaps
    assert pool.take(machine, 3 * PAGE) is None
    assert machine.requests == [3 * PAGE, PAGE, 3 * PAGE]


def test_a_block_is_used_again_after_the_last_copy_from_it() -> None:
    machine, pool = Machine(), PinnedPool(LIMIT)
    block = pool.take(machine, PAGE)
    assert block is not None
    pool.copied(block.address + 7, machine, 5)
    del block
    assert machine.waits == []
    again = pool.take(machine, PAGE)
    assert again is not None
    assert machine.waits == [5]
    again.settle()
    assert machine.waits == [5], "once"


def test_a_pool_of_nothing_has_no_memory() -> None:
    machine = Machine()
    assert PinnedPool(0).take(machine, 1) is None
    assert machine.requests == []


class Lane:
    """The area of a lane, and a pool that it may use."""

    def __init__(self, limit_bytes: int = 1 << 20) -> None:
        self.quota, self.machine = Quota(8 << 20), Machine(1 << 20)
        self.pool, self.area = PinnedPool(limit_bytes), Area(self.quota)

    def source(self, size: int) -> PinnedBlock | None:
        return self.pool.take(self.machine, size)

    def call(self, size: int, *, pinned: bool = True) -> bool:
        """One call with an input of that size; returns whether it was pinned."""
        view = self.area.take(size, self.source if pinned else None)
        assert len(view) == size
        view[:] = bytes(size)
        found = self.pool.address_in(view) is not None
        del view
        self.area.done()
        return found


def test_the_area_of_a_lane_is_pinned_when_a_call_wants_it() -> None:
    lane = Lane()
    assert not lane.call(1000, pinned=False)
    assert lane.call(1000)
    assert lane.call(1000, pinned=False), "it stays, any memory will do"
    assert lane.call(200_000)
    assert lane.machine.requests == [1 << 16, 1 << 18], "powers of two, each once"
    assert lane.quota.used_bytes == 1 << 18
    lane.quota.evict_caches()
    assert (lane.quota.used_bytes, lane.pool.used_bytes) == (0, 0)
    lane.area.close()


def test_ordinary_memory_is_kept_while_the_pool_has_none() -> None:
    lane = Lane(limit_bytes=100_000)
    assert not lane.call(150_000)
    before = lane.quota.used_bytes
    assert not lane.call(140_000)
    assert lane.quota.used_bytes == before
    assert lane.call(90_000), "of its exact size, where a larger one does not fit"
    lane.area.close()


def test_a_device_that_fails_leaves_ordinary_memory() -> None:
    lane = Lane()

    def lost(size: int) -> PinnedBlock | None:
        raise OpFailed(OpCode.EIO, f"no {size} bytes")

    view = lane.area.take(1000, lost)
    assert len(view) == 1000
    del view
    lane.area.done()
    lane.area.close()
    assert lane.quota.used_bytes == 0


def test_memory_beyond_the_quota_is_refused_and_returned() -> None:
    lane = Lane(limit_bytes=8 << 20)
    lane.machine.most_bytes = 8 << 20
    lane.quota.limit_bytes = 1 << 20
    with pytest.raises(OpFailed, match="exceed the lease's"):
        lane.area.take(2 << 20, lane.source)
    gc.collect()  # the exception has held the block
    assert (lane.quota.used_bytes, lane.pool.used_bytes) == (0, 0)
    lane.area.close()


def test_the_kernels_limit_of_a_worker_includes_its_pinned_memory() -> None:
    before, limit, found = resource.getrlimit(resource.RLIMIT_DATA), MemoryLimit(), []
    try:
        for pinned_bytes in (0, 3 << 20):
            start = control.WorkerStart(
                lease="l",
                tenant="t",
                memory_bytes=8 << 30,
                cap_s=60.0,
                warm=True,
                pinned_bytes=pinned_bytes,
            )
            limit.set(start)
            found.append(resource.getrlimit(resource.RLIMIT_DATA)[0])
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)
    assert found[1] - found[0] == 3 << 20
