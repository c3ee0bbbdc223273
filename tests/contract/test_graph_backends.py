"""One suite of graphs over every backend: what a graph means does not depend on the device.

`cpu` is OpenCL on the machine's CPU with memory shared by host and device, `opencl` the same driver
used as if it were a card, with copies. `cuda` needs an NVIDIA GPU. Where a driver is missing, its
tests are skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from operations.kernels.source import read_source
from remote_gpu.client import Graph, OpFailed
from remote_gpu.client.device import OpResult
from remote_gpu.client.graph import GraphResult, run_graph
from remote_gpu.wire.frames import flat_views
from remote_gpu.worker.backends.choice import open_backend
from remote_gpu.worker.lane import Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry

KERNELS = Path(__file__).with_name("kernels.cl").read_text(encoding="utf-8")
FUNCTIONS = Path(__file__).with_name("functions.cl").read_text(encoding="utf-8")
N = 64
ONES = np.ones(N, np.float32)
QUOTA_BYTES = 1 << 20


class Device:
    """A lane's commands without a lane."""

    remote = False

    def __init__(self, kind: str, name: str) -> None:
        self.quota = Quota(QUOTA_BYTES)
        context = Context(kind=kind, device=name, quota=self.quota)
        self._runner = Runner(load_registry(["noop"]), context)
        self._graphs: set[str] = set()
        self.kind = kind

    def op(self, name: str, /, *buffers: Any, out: Any = None, **args: Any) -> OpResult:
        del out
        values, results, ran = self._runner.run(name, args, flat_views(buffers))
        return OpResult(values, [memoryview(bytes(view)) for view in results], ran)

    def run(self, graph: Graph, iterations: int = 1, **inputs: Any) -> GraphResult:
        return run_graph(self, self._graphs, graph, iterations, inputs)

    def free(self) -> None:
        """Every graph; what was built stays, as on a lane."""
        for graph in self._graphs:
            self.op("graph.free", graph=graph)
        self._graphs.clear()


def first_opencl() -> str:
    """The id of the first OpenCL device, as a monitor would name it."""
    if importlib.util.find_spec("pyopencl") is None:
        pytest.skip("pyopencl is not installed")
    from gpu_scheduler.monitor.drivers.opencl import poll

    seen = poll("host")
    if isinstance(seen, str) or not seen.devices:
        pytest.skip(f"no OpenCL driver: {seen}")
    return seen.devices[0].id


@pytest.fixture(
    scope="module", params=["cpu", "opencl", pytest.param("cuda", marks=pytest.mark.gpu)]
)
def kind(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A kind of device that runs kernels here, and the device's name."""
    name = first_opencl() if request.param == "opencl" else ""
    try:
        backend = open_backend(request.param, name)
    except OpFailed as error:
        pytest.skip(error.message)
    if backend.implementation == "host":
        pytest.skip("no OpenCL driver for this machine's CPU")
    return request.param, name


@pytest.fixture(scope="module")
def lane(kind: tuple[str, str]) -> Device:
    return Device(*kind)


@pytest.fixture
def device(lane: Device) -> Iterator[Device]:
    yield lane
    lane.free()
    assert lane.quota.used_bytes == 0


def floats(data: Any) -> list[float]:
    values: list[float] = np.frombuffer(data, np.float32).tolist()
    return values


def test_roles_of_buffers(device: Device) -> None:
    graph = Graph(KERNELS)
    x, y = graph.input("x", 4 * N), graph.output("y", 4 * N)
    both, middle = graph.inout("both", 4 * N), graph.temporary("middle", 4 * N)
    w = graph.constant("w", np.arange(N, dtype=np.float32))
    graph.launch("scale", (N,), (16,), middle, x, 2.0)
    graph.launch("add", (N,), (16,), middle, w, graph.scalar("uint", N - 1))
    graph.launch("scale", (N,), (16,), y, middle, 10.0)
    graph.launch("add", (N,), (16,), both, y, graph.scalar("uint", N))
    for _ in range(2):  # inputs come anew, constants stay
        result = device.run(graph, x=ONES, both=ONES)
        expected = [10.0 * (2 + i) for i in range(N - 1)] + [20.0]
        assert floats(result["y"]) == expected
        assert floats(result["both"]) == [1 + value for value in expected]
    assert result.implementation.startswith("cuda" if device.kind == "cuda" else "opencl")


def test_iterations_run_without_asking(device: Device) -> None:
    graph = Graph(KERNELS)
    x = graph.inout("x", 4 * N)
    graph.launch("scale", (N,), (16,), x, x, 2.0)
    assert floats(device.run(graph, iterations=20, x=ONES)["x"]) == [2.0**20] * N
    odd: tuple[Any, ...] = (0, -1, 10**9, 1.5, True)
    for wrong in odd:
        with pytest.raises(OpFailed, match="EINVAL: 'iterations'"):
            device.run(graph, iterations=wrong, x=ONES)


@pytest.mark.parametrize(
    ("whole", "group"),
    [((8,), (4,)), ((4, 6), (2, 3)), ((4, 6, 8), (4, 3, 2)), ((3, 1, 2), (1, 1, 1))],
)
def test_dimensions(device: Device, whole: tuple[int, ...], group: tuple[int, ...]) -> None:
    graph = Graph(KERNELS)
    graph.launch("where", whole, group, graph.output("y", 4 * math.prod(whole)))
    found = np.frombuffer(device.run(graph).outputs["y"], np.int32).tolist()
    w, h, d = (*whole, 1, 1)[:3]
    lw, lh, ld = (*group, 1, 1)[:3]
    assert found == [
        x % lw
        + 10 * (y % lh)
        + 100 * (z % ld)
        + 1000 * (x // lw)
        + 10_000 * (y // lh)
        + 100_000 * (z // ld)
        + 10**6 * (w // lw)
        + 10**7 * (h // lh)
        + 10**8 * (d // ld)
        for z in range(d)
        for y in range(h)
        for x in range(w)
    ]


def test_groups_share_memory_and_wait_for_each_other(device: Device) -> None:
    graph = Graph(KERNELS)
    x, sums = graph.input("x", 4 * N), graph.output("sums", 4 * (N // 16))
    graph.launch("group_sum", (N,), (16,), x, sums, graph.shared(4 * 16))
    data = np.arange(N, dtype=np.float32)
    expected = data.reshape(-1, 16).sum(axis=1).tolist()
    assert floats(device.run(graph, x=data)["sums"]) == expected


def test_no_group_shares_more_than_its_device_has(device: Device) -> None:
    graph = Graph(KERNELS)
    x, sums = graph.input("x", 4 * N), graph.output("sums", 4 * (N // 16))
    graph.launch("group_sum", (N,), (16,), x, sums, graph.shared(1 << 30))
    with pytest.raises(OpFailed, match="EINVAL: step 1"):
        device.run(graph, x=ONES)


def test_all_address_spaces(device: Device) -> None:
    graph = Graph(KERNELS)
    at, out = graph.output("at", 4 * 16), graph.output("out", 4 * 16)
    given = graph.constant("given", np.arange(8, dtype=np.float32))
    shared = (graph.shared(32), graph.shared(32))
    graph.launch("spaces", (16,), (8,), at, out, given, *shared, 5)
    result = device.run(graph)
    whole = np.frombuffer(result.outputs["at"], np.int32).tolist()
    assert whole == [3] * 8 + [13] * 8
    parts = [(i // 8 * 8 + 7 - i % 8) + (7 - i % 8) + 5 for i in range(16)]
    assert np.allclose(floats(result["out"]), parts, atol=1e-3)


def test_scalars_arrive_as_they_are(device: Device) -> None:
    graph, scalar = Graph(KERNELS), Graph.scalar
    values = (-(2**31), 2**32 - 1, -(2**63), 2**63, 0.1, 0.1)
    kinds = ("int", "uint", "long", "ulong", "float", "double")
    arguments = [scalar(kind, value) for kind, value in zip(kinds, values, strict=True)]
    graph.launch("scalars", (1,), (1,), graph.output("y", 48), *arguments)
    found = np.frombuffer(device.run(graph).outputs["y"]).tolist()
    assert found == [*values[:4], float(np.float32(0.1)), 0.1]


#: What each element of the result of `mathematics` is, with a = 1.25 and b = 0.375.
SUMS = (
    "acos(b) + acosh(2 * a) + asin(b) + asinh(a) + atan(a) + atan2(a, b) + atanh(b) + a ** (1 / 3)",
    "cos(a) + cosh(a) + cos(pi * b) + erf(a) + erfc(a) + exp(b) + 2**b + 10**b + expm1(b)",
    "1 + (a * b + a) + a + b + fmod(a, b) + hypot(a, b) + 0",
    "log(a) + log2(a) + log10(a) + log1p(a) + 0 + (a * b + a) + 2 * a**b",
    "remainder(a, b) + 1 + 1 + a**-0.5 + sin(a) + sinh(a) + sin(pi * b) + a**0.5",
    "exp(b) + log(a) + a**0.5 + sin(a) + cos(a)",
    "a + (b - a) / 4 + 1 + 0 + degrees(a) + radians(a) + 1",
    "1 + 8",
    "a + b + 1 + 0",
    "3",
    "tan(a) + tanh(a) + gamma(a) + 1 + 2 + a + a + (a - b)",
    "4 * a + lgamma(a) + 1 / a + a / b",
)


def test_mathematics(device: Device) -> None:
    a, b = 1.25, 0.375
    expected = [eval(text, {**vars(math), "a": a, "b": b}) for text in SUMS]
    graph = Graph(FUNCTIONS)
    y, x = graph.output("y", 48), graph.constant("x", np.array([a, b], np.float32))
    graph.launch("mathematics", (1,), (1,), y, x)
    np.testing.assert_allclose(floats(device.run(graph)["y"]), expected, rtol=1e-4)


def test_integers_and_atomics(device: Device) -> None:
    graph = Graph(FUNCTIONS)
    y, x = graph.inout("y", 4 * 17), graph.constant("x", np.array([6, -7], np.int32))
    graph.launch("integers", (1,), (1,), y, x)
    found = np.frombuffer(device.run(graph, y=bytes(68)).outputs["y"], np.int32).tolist()
    assert found[:10] == [-7, 6, 1, 7, 2, 26, -42, -36, ((6 << 30) % 2**32 - 2**32) * -7 >> 32, 20]
    assert found[10:] == [4, -1, -3, 9, 3, 77, 88]


def test_temporaries_begin_empty(device: Device) -> None:
    """No lease, and no graph, sees what another one left in the device's memory."""
    filler = Graph(KERNELS)
    x, y = filler.input("x", 1 << 18), filler.temporary("y", 1 << 18)
    filler.launch("scale", (1 << 16,), (16,), y, x, 1.0)
    data = np.full(1 << 16, 7, np.float32)
    device.run(filler, x=data)
    device.free()
    reader = Graph(KERNELS)
    out = reader.output("out", 1 << 18)
    reader.launch("add", (16,), (16,), out, out, reader.scalar("uint", 0))
    assert not np.frombuffer(device.run(reader).outputs["out"], np.float32).any()


def test_inputs_of_a_wrong_size(device: Device) -> None:
    graph = Graph(KERNELS)
    x = graph.inout("x", 4 * N)
    graph.launch("scale", (N,), (16,), x, x, 2.0)
    device.run(graph, x=ONES)
    for wrong in (b"", bytes(4 * N - 1), bytes(4 * N + 1)):
        with pytest.raises(OpFailed, match="EINVAL: this graph takes inputs"):
            device.op("graph.run", wrong, graph=graph.spec.id)


def test_what_does_not_compile_is_named_with_its_line(device: Device) -> None:
    graph = Graph("__kernel void f(__global float *x) {\n  x[0] = 1;\n  y = 2;\n}")
    graph.launch("f", (1,), (1,), graph.inout("x", 4))
    with pytest.raises(OpFailed, match=r"EINVAL: the source does not build: line 3: .*y"):
        device.run(graph, x=bytes(4))
    assert device.quota.used_bytes == 0


def test_a_call_that_does_not_fit_is_named_with_its_step(device: Device) -> None:
    """All that does not fit: `test_source.py`."""
    graph = Graph(KERNELS)
    graph.inout("x", 4 * N)
    graph.launch("group_sum", (N,), (16,), "x", "x", "x")
    with pytest.raises(OpFailed, match=r"EINVAL: step 1: .*argument 2 .* is buffer; 'part' takes"):
        device.run(graph, x=ONES)


def test_a_step_that_cannot_be_launched_is_named(device: Device) -> None:
    graph = Graph(KERNELS)
    x = graph.inout("x", 4 * N)
    graph.launch("scale", (N,), (16,), x, x, 2.0)
    graph.launch("scale", (1 << 20,), (1 << 20,), x, x, 2.0)  # no device has such groups
    with pytest.raises(OpFailed, match="step 2: kernel 'scale' cannot be launched"):
        device.run(graph, x=ONES)
    good = Graph(KERNELS)
    good.launch("scale", (N,), (16,), good.inout("x", 4 * N), "x", 3.0)
    assert floats(device.run(good, x=ONES)["x"]) == [3.0] * N  # nothing is harmed


def test_the_quota_is_asked_before_memory_is_taken(device: Device) -> None:
    graph = Graph(KERNELS)
    x, y = graph.input("x", 4 * N), graph.output("y", 1 << 39)
    graph.launch("scale", (N,), (16,), y, x, 2.0)
    with pytest.raises(OpFailed, match=r"ENOMEM: .*exceed the lease's"):
        device.run(graph, x=ONES)
    assert device.quota.used_bytes == 0


def test_operations_and_kernels_in_one_graph(device: Device) -> None:
    graph = Graph(KERNELS)
    x, y, z = graph.input("x", 4 * N), graph.temporary("y", 4 * N), graph.output("z", 4 * N)
    graph.launch("scale", (N,), (16,), y, x, 3.0)
    graph.op("noop", y, out=[z])
    try:
        assert floats(device.run(graph, x=ONES)["z"]) == [3.0] * N
    except OpFailed as error:  # a trusted operation has an implementation for the kind, or none
        assert (error.code, device.kind == "cpu") == ("ENOTSUP", False)  # noqa: PT017


@pytest.mark.parametrize(
    ("source", "architecture"), [(KERNELS, "sm_80"), (KERNELS, "sm_90"), (FUNCTIONS, "sm_90")]
)
def test_every_kernel_compiles_to_machine_code_of_nvidia(source: str, architecture: str) -> None:
    """By NVRTC, which needs neither GPU nor driver."""
    pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra is not installed")
    from remote_gpu.worker.backends.nvrtc import compile_source

    image = compile_source(read_source(source).text, architecture)
    assert image.startswith(b"\x7fELF")
    assert all(name.encode() in image for name in read_source(source).kernels)


def test_what_was_compiled_for_nvidia_is_kept(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc", reason="the cuda extra is not installed")
    from remote_gpu.worker.backends.nvrtc import compile_source

    source = "__kernel void f(__global int *x) { x[0] = 1; }"
    image = compile_source(source, "sm_90", tmp_path)
    (kept,) = tmp_path.iterdir()
    for damage in (b"", b"damaged"):
        kept.write_bytes(damage + kept.read_bytes())
        assert compile_source(source, "sm_90", tmp_path) == image
    with pytest.raises(OpFailed, match=r"EINVAL: the source does not build: line 2: .*y"):
        compile_source("__kernel void f() {\n y = 1;\n}", "sm_90")
    with pytest.raises(OpFailed, match=r"ENOTSUP: NVRTC .* not for sm_12"):
        compile_source(KERNELS, "sm_12")


def test_without_its_driver_a_card_is_not_there() -> None:
    pytest.importorskip("cuda.bindings.driver", reason="the cuda extra is not installed")
    try:
        implementation = open_backend("cuda").implementation
    except OpFailed as error:
        assert error.code == "ENODEV"  # noqa: PT017 - either is right
    else:
        assert implementation.startswith("cuda: sm_")
    with pytest.raises(OpFailed, match="ENOTSUP: devices of kind vpu run no kernels"):
        open_backend("vpu")
    with pytest.raises(OpFailed, match=r"ENODEV|ENOTSUP"):
        open_backend("opencl", "host/no-such-platform0")
