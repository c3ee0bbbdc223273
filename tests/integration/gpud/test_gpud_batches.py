"""Batches across leases on a real gpud: joined calls, tenants apart, leases that end meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from gpu_scheduler.model import Batch
from gpu_scheduler.protocol.host import Install
from operations.numpy_arrays import Array
from remote_gpu.client import Devices, Operations, OpFailed, Refused, connect
from tests.integration.gpud.conftest import WAIT_S, Gpud, until

WIDTH = 64
BATCH = Batch(joins=True, wait_ms=20.0, size_max=16)


def _field(number: int, payload: bytes) -> bytes:
    size, parts = len(payload), bytearray()
    while size > 0x7F:
        parts.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2, *parts, size]) + payload


def weights() -> Array:
    """An orthogonal matrix: products with it keep their size."""
    random = np.random.default_rng(7).normal(size=(WIDTH, WIDTH))
    return np.ascontiguousarray(np.linalg.qr(random)[0], np.float32)


def products(layers: int) -> bytes:
    """The ONNX model `y = x · w · w …` for items of `WIDTH` numbers, as protobuf by hand."""

    def tensor(name: bytes) -> bytes:
        dimensions = _field(1, _field(2, b"n")) + _field(1, b"\x08" + bytes([WIDTH]))
        return _field(1, name) + _field(2, _field(1, b"\x08\x01" + _field(2, dimensions)))

    names = [b"x", *(b"t%d" % number for number in range(layers - 1)), b"y"]
    nodes = b"".join(
        _field(1, _field(1, a) + _field(1, b"w") + _field(2, b) + _field(4, b"MatMul"))
        for a, b in itertools.pairwise(names)
    )
    shape = b"\x08" + bytes([WIDTH]) + b"\x08" + bytes([WIDTH])
    matrix = shape + b"\x10\x01" + _field(8, b"w") + _field(9, weights().tobytes())
    ends = _field(11, tensor(b"x")) + _field(12, tensor(b"y"))
    graph = nodes + _field(2, b"g") + _field(5, matrix) + ends
    return b"\x08\x08" + _field(7, graph) + _field(8, _field(1, b"") + b"\x10\x0d")


@dataclass
class Tenant:
    """A lease that calls the model, and what came back."""

    install: Install
    device: Devices
    model: str
    joined: list[int] = field(default_factory=list)
    wrong: int = 0
    failed: Exception | None = None

    def call(self, x: Array) -> Array:
        described = [{"name": "x", "shape": list(x.shape)}]
        values, results, _ = self.device.op(
            "onnx", x, model=self.model, inputs=described, batch=True
        )
        self.joined.append(values["joined"])
        return np.frombuffer(results[0], np.float32).reshape(x.shape)

    def loop(self, end: threading.Event) -> None:
        """Call until `end`, with other numbers than every other lease."""
        x = np.random.default_rng(self.install.fence).normal(size=(2, WIDTH)).astype(np.float32)
        expected = x @ weights()
        deadline_s = time.monotonic() + WAIT_S
        try:
            while not end.is_set() and time.monotonic() < deadline_s:
                self.wrong += not np.allclose(self.call(x), expected, rtol=1e-4, atol=1e-5)
        except (OpFailed, Refused) as error:
            self.failed = error


@contextlib.contextmanager
def leases(
    gpud: Gpud, *tenants: str, workload: str = "w", layers: int = 1
) -> Iterator[list[Tenant]]:
    """Leases that join, with the model registered."""
    with contextlib.ExitStack() as stack:
        found = []
        for tenant in tenants:
            install = gpud.install(64, tenant=tenant, workload=workload, batch=BATCH)
            session = stack.enter_context(gpud.open(install))
            device = stack.enter_context(connect(session.environment()))
            operations = stack.enter_context(Operations(device))
            content = operations.resource("model", products(layers)).content
            found.append(Tenant(install, device, content))
        yield found


@contextlib.contextmanager
def looping(*tenants: Tenant) -> Iterator[None]:
    """The tenants call at the same time, each in a thread."""
    end = threading.Event()
    threads = [threading.Thread(target=tenant.loop, args=(end,)) for tenant in tenants]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_calls_of_several_leases_are_joined_and_right(shared_gpud: Gpud) -> None:
    with leases(shared_gpud, "t", "t", "t") as tenants:
        with looping(*tenants):
            until(lambda: any(max(tenant.joined, default=1) > 1 for tenant in tenants))
        assert [(tenant.wrong, tenant.failed) for tenant in tenants] == [(0, None)] * 3
        assert max(max(tenant.joined) for tenant in tenants) * 2 <= BATCH.size_max


def test_one_tenant_never_joins_another(shared_gpud: Gpud) -> None:
    """Nor does one workload join another of the same tenant."""
    with (
        leases(shared_gpud, "a", "b") as tenants,
        leases(shared_gpud, "a", workload="v") as others,
    ):
        every = [*tenants, *others]
        with looping(*every):
            until(lambda: all(len(tenant.joined) >= 100 for tenant in every))
        assert {joined for tenant in every for joined in tenant.joined} == {1}
        assert [(tenant.wrong, tenant.failed) for tenant in every] == [(0, None)] * 3


def test_a_lease_that_ends_leaves_the_batches_of_the_others(shared_gpud: Gpud) -> None:
    with leases(shared_gpud, "t", "t", "t") as tenants:
        first, *rest = tenants
        with looping(*tenants):
            until(lambda: max(first.joined, default=1) > 1)
            shared_gpud.scheduler.end(first.install)
            until(lambda: shared_gpud.scheduler.is_cut(first.install.lease))
            seen = [len(tenant.joined) for tenant in rest]
            until(
                lambda: all(
                    len(tenant.joined) > before + 10
                    for tenant, before in zip(rest, seen, strict=True)
                )
            )
        assert isinstance(first.failed, Refused)
        assert [(tenant.wrong, tenant.failed) for tenant in rest] == [(0, None)] * 2


def test_a_run_with_a_revoked_lease_is_repeated_for_the_others(shared_gpud: Gpud) -> None:
    """Whether the run ends in time or its process is killed, the other lease has its result."""
    x = np.ones((8, WIDTH), np.float32)
    with leases(shared_gpud, "t", "t", layers=40_000) as (revoked, other):
        results: dict[int, Array | Exception] = {}

        def call(tenant: Tenant) -> None:
            try:
                results[tenant.install.fence] = tenant.call(x)
            except (OpFailed, Refused) as error:
                results[tenant.install.fence] = error

        alone = other.call(x)  # loaded
        calls = [threading.Thread(target=call, args=(tenant,)) for tenant in (revoked, other)]
        for thread in calls:
            thread.start()
        shared_gpud.scheduler.end(revoked.install)
        until(lambda: shared_gpud.scheduler.is_cut(revoked.install.lease))
        for thread in calls:
            thread.join()
        found = results[other.install.fence]
        assert not isinstance(found, Exception)
        assert np.allclose(found, alone, rtol=1e-2)


def test_answers_do_not_depend_on_the_contents_of_other_calls(shared_gpud: Gpud) -> None:
    """Bitwise, among runs of equal size; between sizes the sums have another order."""
    with leases(shared_gpud, "t", "t") as tenants:
        x = np.random.default_rng(1).normal(size=(1, WIDTH)).astype(np.float32)
        results: dict[int, list[bytes]] = {1: [], 2: []}
        done = threading.Event()

        def others() -> None:
            number = 0
            while not done.is_set():
                number += 1
                tenants[1].call(np.full((1, WIDTH), number, np.float32))

        thread = threading.Thread(target=others)
        thread.start()
        try:
            deadline_s = time.monotonic() + WAIT_S
            while len(results[2]) < 20 and time.monotonic() < deadline_s:
                result = tenants[0].call(x)
                results[tenants[0].joined[-1]].append(result.tobytes())
        finally:
            done.set()
            thread.join()
        results[1].append(tenants[0].call(x).tobytes())  # alone: the other has stopped
        assert len(results[2]) == 20
        assert len(set(results[2])) == 1
        one, two = (np.frombuffer(results[size][-1], np.float32) for size in (1, 2))
        assert np.allclose(one, two, rtol=1e-5, atol=1e-6)
