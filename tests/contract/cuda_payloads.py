"""Payloads of operations on a card, through pinned memory; over the stand-in driver."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from cuda.bindings import driver

from remote_gpu.client.device import Lane
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import DeviceInfo
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import FrameLimits
from remote_gpu.worker.backends.cuda import CudaBackend
from remote_gpu.worker.backends.staging import PAGE_BYTES
from remote_gpu.worker.cards.card import Card
from remote_gpu.worker.cards.pinned import PinnedPool
from remote_gpu.worker.lane import LaneServer, Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry
from remote_gpu.worker.settings import WorkerOptions

#: More than a page of `staging`, so that a copy through its pages shows.
SIDE = 1300
BYTES = 4 * SIDE * SIDE
assert BYTES > PAGE_BYTES
MODULES = ("arrays", "sgemm", "aes_cbc", "noop")


def copies() -> list[str]:
    return Path(os.environ["FAKE_CUDA_COPIES"]).read_text().splitlines()


def pinned_bytes() -> int:
    """Memory that the driver has pinned, for all of this process."""
    pinned = ctypes.CDLL("libcuda.so.1").standin_pinned
    pinned.restype = ctypes.c_size_t
    return int(pinned())


@contextmanager
def failing_pins() -> Iterator[None]:
    """The driver pins no memory."""
    facts = Path(os.environ["FAKE_CUDA_COPIES"]).with_name("facts")
    facts.write_text("0.fail cuMemHostAlloc 2\n")
    try:
        yield
    finally:
        facts.unlink()


class OpenLane:
    """A lane to the stand-in card, served by a thread."""

    def __init__(self, pinned_mib: int = 256) -> None:
        self.card = Card(WorkerOptions(card_call_s=0.0, pinned_mib=pinned_mib))
        self.quota = Quota(1 << 30)
        self.context = Context(kind="cuda", quota=self.quota, card=self.card)
        client, server = socket.socketpair()
        runner = Runner(load_registry(MODULES), self.context)
        self._server, self._serving = server, LaneServer(server, runner, self.quota)
        self._thread = threading.Thread(target=self._serving.serve, daemon=True)
        self._thread.start()
        self.lane = Lane(
            client, Channel(client, FrameLimits()), DeviceInfo(0, "cuda", "Stand-in", 1024)
        )

    def close(self) -> None:
        self.lane.close()
        self._thread.join()
        self._server.close()

    def run(self, name: str, inputs: Sequence[bytes], **args: Any) -> tuple[list[str], int]:
        """The whole copies of one call, and the bytes of its first result."""
        before = len(copies())
        result = self.lane.op(name, *inputs, **args)
        large = [line for line in copies()[before:] if int(line.split()[1]) > PAGE_BYTES]
        return large, len(result.buffers[0])

    def open(self) -> None:
        """Open the device, and free what that took of pinned memory."""
        self.run("sgemm", [bytes(4)] * 2, m=1, n=1, k=1)
        self.quota.evict_caches()

    def square(self) -> tuple[list[str], int]:
        """Map a large array."""
        return self.run("map", [bytes(BYTES)], function="square", shapes=[[SIDE, SIDE]])


def check_operations() -> None:
    """Every operation's payload is received where the card's copy engine reads it, and the result
    is written where it is sent from: one copy of the card each, of all bytes."""
    row, data, shape = bytes(4 * SIDE), bytes(BYTES), [SIDE, SIDE]
    calls: list[tuple[str, list[bytes], dict[str, Any], int, int]] = [
        ("map", [data], {"function": "square", "shapes": [shape]}, 1, 1),
        ("map", [data, data], {"function": "add", "shapes": [shape, shape]}, 2, 1),
        ("reduce", [data], {"function": "sum", "shapes": [shape], "axis": 0}, 1, 0),
        ("sgemm", [row, data], {"m": 1, "n": SIDE, "k": SIDE}, 1, 0),
        ("sgemm", [row, row], {"m": SIDE, "n": SIDE, "k": 1}, 0, 1),
        ("aes_cbc", [bytes(16), bytes(16), data], {"direction": "encrypt"}, 1, 1),
    ]
    lane = OpenLane()
    for name, inputs, args, ups, downs in calls:
        found, size = lane.run(name, inputs, **args)
        assert found == [f"up {BYTES}"] * ups + [f"down {BYTES}"] * downs, (name, found)
        assert size == (BYTES if downs else 4 * SIDE), name
    used = lane.card.pinned.used_bytes
    assert BYTES <= used <= 4 * BYTES, "the lane's inputs; no result is held"
    at_most = pinned_bytes()
    for name, inputs, args, _, _ in calls:
        lane.run(name, inputs, **args)
    assert pinned_bytes() == at_most, "blocks are used again"
    assert lane.run("noop", [data]) == ([], BYTES), "an operation of the host needs no card"
    lane.close()
    assert lane.card.pinned.used_bytes == 0
    kept = lane.card.pinned.pinned_bytes
    before = pinned_bytes()
    lane.quota.evict_caches()  # as at the end of a lease
    assert pinned_bytes() == before - kept
    assert lane.card.pinned.pinned_bytes == 0


def check_limits() -> None:
    """Beyond the limit, and where nothing can be pinned, payloads go through two pages."""
    for pinned_mib in (0, BYTES >> 20):
        lane = OpenLane(pinned_mib)
        assert lane.square() == ([], BYTES)
        assert lane.card.pinned.pinned_bytes == 0
        lane.close()
    lane = OpenLane((BYTES >> 20) + 1)  # the input; no room for the result
    assert lane.square() == ([f"up {BYTES}"], BYTES)
    lane.close()
    lane = OpenLane()
    lane.open()
    with failing_pins():
        assert lane.square() == ([], BYTES)
    assert lane.square() == ([], BYTES), "the machine is not asked for as much again"
    lane.quota.evict_caches()
    lane.close()


def check_quota() -> None:
    """Inputs count in the lease's quota, pinned or not; too large ones are refused as before."""
    lane = OpenLane()
    lane.open()
    before = lane.quota.used_bytes
    lane.run("reduce", [bytes(BYTES)], function="sum", shapes=[[SIDE, SIDE]])
    assert lane.quota.used_bytes >= before + BYTES
    lane.quota.limit_bytes = lane.quota.used_bytes
    try:
        lane.run("reduce", [bytes(8 * BYTES)], function="sum", shapes=[[8, SIDE, SIDE]])
    except OpFailed as error:
        assert error.code == OpCode.ENOMEM, error  # noqa: PT017
    else:
        raise AssertionError("more than the lease has")
    lane.close()


def check_pool(backend: CudaBackend) -> None:
    """A block returns with its last view, and serves requests of about its size."""
    pool = PinnedPool(1 << 20)
    first = pool.take(backend, 1 << 19)
    assert first is not None
    address, view = first.address, first.view
    part = np.frombuffer(view, np.uint8)[16:]
    assert pool.address_in(part.data.cast("B")) == address + 16
    assert pool.address_in(memoryview(bytearray(16))) is None
    assert pool.address_in(memoryview(bytes(16))) is None
    del first, view
    assert pool.used_bytes == 1 << 19, "a view is left"
    assert pool.take(backend, (1 << 19) + 1) is None, "the limit is that of all blocks"
    del part
    assert (pool.used_bytes, pool.pinned_bytes) == (0, 1 << 19)
    small = pool.take(backend, 100)
    assert small is not None
    assert small.address != address, "a small request takes no large block"
    again = pool.take(backend, 1 << 18)
    assert again is not None
    assert (again.address, len(again.view)) == (address, 1 << 18)
    del again
    whole = pool.take(backend, (1 << 20) - 4096)  # frees what is kept
    assert whole is not None
    assert pool.pinned_bytes == 1 << 20
    del small, whole
    pool.trim()
    assert pool.pinned_bytes == 0


class CountingBackend(CudaBackend):
    """A backend that counts its waits."""

    waits = 0

    def finish(self) -> None:
        self.waits += 1
        super().finish()


def check_reuse() -> None:
    """A block is written again only after the last copy from it."""
    backend = CountingBackend(driver.cuDeviceGet(0)[1], None)
    memory = backend.allocate(Quota(), 64)
    block = backend.host_memory(64)
    assert block is not None
    memory.write(block.view)
    block.settle()
    block.settle()
    assert backend.waits == 1
    memory.write(block.view)
    backend.finish()
    block.settle()
    assert backend.waits == 2, "the copy had ended"
    memory.close()


def check_payloads(backend: CudaBackend) -> None:
    """Everything of this module."""
    check_pool(backend)
    check_reuse()
    check_operations()
    check_limits()
    check_quota()
