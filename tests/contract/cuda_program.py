"""A program over the stand-in driver (`cuda_driver.c`), which a process must find before its first
call; prints "right" when all of it was."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from operations.matrix.cublas import WORK_AREA_BYTES
from operations.plugins import sgemm
from remote_gpu.client import Graph
from remote_gpu.wire.errors import OpFailed
from remote_gpu.wire.graphs import Scalar, Shared
from remote_gpu.worker.backends import staging
from remote_gpu.worker.backends.base import DeviceMemory
from remote_gpu.worker.backends.cuda import CudaBackend, open_cuda
from remote_gpu.worker.cards.card import Card, Watchdog
from remote_gpu.worker.lane import Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry
from tests.contract.cuda_payloads import check_payloads, copies, pinned_bytes

N = 3 * staging.PAGE_BYTES // 4 + 5  #: three full pages, and some bytes of a fourth


def code_of(call: Callable[[], object]) -> str:
    try:
        call()
    except OpFailed as error:
        return f"{error.code}: {error.message}"
    return "no error"


def check_memory(backend: CudaBackend) -> None:
    quota = Quota(1 << 40)
    x, y = backend.allocate(quota, 4 * N), backend.allocate(quota, 4 * N)
    assert not np.frombuffer(y.read(), np.uint8).any(), "what the last one left is seen"
    data = np.arange(N, dtype=np.float32)
    x.write(data.data.cast("B"))
    kernel = backend.build("").kernel("scale", [y, x, Scalar("float", 2.0)])
    kernel.enqueue((N,), (1,))
    assert (np.frombuffer(y.read(), np.float32) == 2 * data).all()
    assert code_of(lambda: backend.allocate(quota, 1 << 30)).startswith("ENOMEM")
    assert quota.used_bytes == 8 * N
    x.close()
    y.close()
    assert quota.used_bytes == 0


def check_pinned(backend: CudaBackend) -> None:
    """Payloads are received in pinned memory and sent from it, by one copy of the card each."""
    pool = backend.card.pinned
    pool.trim()
    at_first = pinned_bytes()
    quota = Quota(1 << 40)
    memory = backend.allocate(quota, 4 * N)
    place = memory.place
    assert place is not None
    place[:] = bytes(range(256)) * (4 * N // 256) + bytes(4 * N % 256)
    sent = bytes(place)
    before = copies()
    memory.write(place)
    assert copies() == [*before, f"up {4 * N}"]
    place[:] = bytes(len(place))
    assert bytes(memory.read()) == sent
    assert copies() == [*before, f"up {4 * N}", f"down {4 * N}"]
    memory.write(memoryview(sent))  # any other memory, by pages
    assert copies()[-1] == f"up {4 * N % staging.PAGE_BYTES}"
    assert 4 * N <= pool.used_bytes < 4 * N + 4096
    rest = backend.host_memory((256 << 20) - pool.used_bytes)
    assert rest is not None
    small = backend.allocate(quota, 4096)
    assert has_place(small) is False
    small.write(memoryview(sent)[:4096])
    assert bytes(small.read()) == sent[:4096]
    del rest
    assert has_place(small)
    result = memory.result()
    small.close()
    memory.close()
    assert bytes(result) == sent, "it outlives the memory of the card"
    del place, result
    assert pool.used_bytes == 0
    pool.trim()
    assert pinned_bytes() == at_first


def has_place(memory: DeviceMemory) -> bool:
    return memory.place is not None


def check_graph() -> None:
    """A lane's payload for a graph goes into pinned memory; its kernel is the real compiler's."""
    source = "__kernel void nothing(__global float *x) { x[get_global_id(0)] += 1.0f; }"
    size = 4 * N
    graph = Graph(source)
    x = graph.inout("x", size)
    graph.launch("nothing", (N,), (1,), x)
    runner = Runner(load_registry(["noop"]), Context(kind="cuda", quota=Quota(1 << 30)))
    content = memoryview(source.encode())
    runner.run("content.put", {"content": graph.spec.source}, [content])
    put, _, _ = runner.run("graph.put", {"graph": graph.spec.to_meta()}, [])
    args = {"graph": put["graph"], "iterations": 1}
    for value in (1, 2):
        places = runner.places("graph.run", args, [size])
        assert places is not None
        [place] = places
        place[:] = bytes([value]) * size
        _, [result], _ = runner.run("graph.run", args, places)
        assert bytes(result) == bytes([value]) * size
    assert [line for line in copies()[-6:] if line.endswith(f" {size}")] == [
        f"up {size}",
        f"down {size}",
    ] * 2
    runner.close()


def check_launches(backend: CudaBackend) -> None:
    program, memory = backend.build(""), backend.allocate(Quota(), 64)
    sums = program.kernel("group_sum", [memory, memory, Shared(40), Shared(60_000)])
    sums.enqueue((8, 6), (4, 3))
    too_much = code_of(lambda: program.kernel("group_sum", [memory, memory, Shared(200_000)]))
    assert too_much.startswith("EINVAL: kernel 'group_sum' cannot be launched"), too_much
    wide = code_of(lambda: sums.enqueue((2048,), (2048,)))
    assert wide.startswith("EINVAL: kernel 'group_sum' cannot be launched"), wide


def check_lost(backend: CudaBackend, ended: list[str]) -> None:
    quota = Quota()
    memory = backend.allocate(quota, 64)
    backend.build("").kernel("wild", []).enqueue((1,), (1,))
    failed = code_of(backend.finish)
    assert failed.startswith("EIO: the device failed")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in failed
    memory.close()  # as operations do before their answer is sent
    assert (ended, quota.used_bytes) == ([], 0)
    assert code_of(backend.finish).startswith("EIO")
    assert ended == ["ended"]


def check_watchdog() -> None:
    """A call is hung after twenty looks during it, and calls one after the other are not."""
    found: list[str] = []
    watchdog = Watchdog(3600.0, found.append)  # its own looks come once a second
    looks = 3601
    for _ in range(looks):
        with watchdog.call("quick"):
            assert watchdog.look() is None
    with watchdog.call("slow"):
        assert [watchdog.look() for _ in range(looks)][-1] == "slow"
    assert watchdog.look() is None


def check_context_memory() -> None:
    """A context counts once per card and process; without room for it nothing is opened."""
    quota = Quota(10 << 20)
    card = Card(context_bytes=8 << 20)
    card.charge(quota)
    card.charge(quota)
    assert quota.used_bytes == 8 << 20
    large = code_of(lambda: Card(context_bytes=4 << 20).charge(quota))
    assert large.startswith("ENOMEM: a context takes 4 MiB of this card: "), large


def check_device_errors() -> None:
    """An error of the device is reported once; the context is lost with it."""
    found: list[str] = []
    card = Card(report=found.append)
    os.environ["FAKE_CUDA_NO_DEVICE"] = "1"
    for _ in range(2):
        words = "ENODEV: the NVIDIA driver has no devices: CUDA_ERROR_NO_DEVICE"
        assert code_of(lambda: open_cuda("", card=card)) == words
    del os.environ["FAKE_CUDA_NO_DEVICE"]
    assert found == ["the NVIDIA driver has no devices: CUDA_ERROR_NO_DEVICE"], found


def check_products() -> None:
    """cuBLAS multiplies row-major matrices, in memory that the quota counts."""
    quota = Quota(1 << 28)
    context = Context(kind="cuda", quota=quota)
    by_library = next(one for one in sgemm.OPERATIONS if one.implementation == "cublas")
    by_library.prepare(context)
    m, n, k = 3, 5, 4
    a = np.arange(m * k, dtype=np.float32).reshape(m, k)
    b = np.arange(k * n, dtype=np.float32).reshape(k, n)
    views = [a.data.cast("B"), b.data.cast("B")]
    sides = {"m": m, "n": n, "k": k}
    values, (c,) = by_library.run(context, sides, views)
    assert values == {"shape": [m, n]}
    assert (np.asarray(c) == a @ b).all(), c
    assert quota.used_bytes > WORK_AREA_BYTES
    wide = np.zeros((1, 7), np.float32)
    views = [wide[:, :1].copy().data.cast("B"), wide.data.cast("B")]
    failed = code_of(lambda: by_library.run(context, {"m": 1, "n": 7, "k": 1}, views))
    assert failed == "EIO: the device failed: cublasSgemm_v2 returned EXECUTION_FAILED", failed


def check_choice() -> None:
    """The device that was lent is the one that is opened."""
    for visible, words in (
        ("GPU-2", "ENODEV: GPU-1 is not among the devices of this process"),
        ("GPU-2,GPU-1", "ENODEV: the NVIDIA driver does not list GPU-1: CUDA_ERROR_INVALID_VALUE"),
        ("GPU-1", "no error"),
    ):
        os.environ["CUDA_VISIBLE_DEVICES"] = visible
        assert (found := code_of(lambda: open_cuda("GPU-1"))) == words, found
    os.environ["FAKE_CUDA_NO_DEVICE"] = "1"
    words = "ENODEV: the NVIDIA driver has no devices: CUDA_ERROR_NO_DEVICE"
    assert (found := code_of(lambda: open_cuda("GPU-1"))) == words, found


def main() -> None:
    """Everything; an assertion says what was wrong."""
    image = b"\x7fELF, as far as the stand-in looks"
    check_products()
    check_watchdog()
    check_context_memory()
    check_device_errors()
    backend = open_cuda("", None, lambda source, architecture, cache: image)
    assert backend.implementation == "cuda: sm_90, Stand-in", backend.implementation
    check_memory(backend)
    check_pinned(backend)
    check_graph()
    check_launches(backend)
    log = os.environ.pop("FAKE_CUDA_LOG")  # its launches are of other tests
    check_payloads(backend)
    os.environ["FAKE_CUDA_LOG"] = log
    ended: list[str] = []
    lost = Card(on_lost=lambda: ended.append("ended"))
    check_lost(open_cuda("", None, lambda source, architecture, cache: image, lost), ended)
    check_choice()
    print("right")  # noqa: T201


if __name__ == "__main__":
    main()
