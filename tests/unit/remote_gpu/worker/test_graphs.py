"""Graphs: checks without a device, operations and contents. Kernels: tests/contract."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_gpu.client import Graph, Local, OpFailed
from remote_gpu.wire.frames import BufferLike, Meta
from remote_gpu.wire.graphs import Spec, content_id
from remote_gpu.worker import graphs
from remote_gpu.worker.backends.choice import trim
from remote_gpu.worker.lane import Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context, Outcome
from remote_gpu.worker.registry import load_registry
from remote_gpu.worker.store.contents import Contents
from remote_gpu.worker.turns import Gate

KERNELS = """
__kernel void scale(__global float *y, __global const float *x, const float k) {
    y[get_global_id(0)] = k * x[get_global_id(0)];
}
__kernel void add(__global float *y, __global const float *w, const uint n) {
    if (get_global_id(0) < n) y[get_global_id(0)] += w[get_global_id(0)];
}
"""
N = 256


@pytest.fixture
def local() -> Iterator[Local]:
    with Local() as device:
        yield device


def refusal_of(call: Callable[[], object]) -> OpFailed | None:
    try:
        call()
    except OpFailed as error:
        return error
    return None


def floats(data: BufferLike) -> list[float]:
    values: list[float] = np.frombuffer(data, np.float32).tolist()
    return values


def scaled_and_added() -> Graph:
    graph = Graph(KERNELS)
    x, y = graph.input("x", 4 * N), graph.output("y", 4 * N)
    w = graph.constant("w", np.arange(N, dtype=np.float32))
    graph.launch("scale", (N,), (64,), y, x, 2.0)
    graph.launch("add", (N,), (64,), y, w, graph.scalar("uint", N))
    return graph


def test_graphs_of_operations_need_no_opencl(local: Local) -> None:
    graph = Graph()
    one, two = graph.input("a", 16), graph.input("b", 16)
    graph.op("sgemm", one, two, out=[graph.output("c", 16)], m=2, n=2, k=2)
    matrix = np.array([[1, 2], [3, 4]], np.float32)
    result = local.run(graph, a=matrix, b=matrix)
    assert floats(result["c"]) == (matrix @ matrix).ravel().tolist()


def test_results_must_fit_their_buffers(local: Local) -> None:
    graph = Graph()
    a = graph.input("a", 16)
    graph.op("sgemm", a, a, out=[graph.output("c", 12)], m=2, n=2, k=2)
    with pytest.raises(OpFailed, match="step 1: sgemm returned results"):
        local.run(graph, a=bytes(16))


@pytest.mark.parametrize("inputs", [{}, {"a": b"x" * 15}, {"b": b"x" * 16}, {"a": b"", "b": b""}])
def test_inputs_are_checked_by_name_and_size(local: Local, inputs: dict[str, Any]) -> None:
    graph = Graph()
    graph.op("noop", graph.input("a", 16))
    with pytest.raises(OpFailed, match="EINVAL"):
        local.run(graph, **inputs)


def test_a_launch_needs_a_source() -> None:
    graph = Graph()
    graph.launch("scale", (1,), (1,))
    with pytest.raises(OpFailed, match="EINVAL"):
        _ = graph.spec


def launched_with(graph: Graph, kind: str, value: Any) -> None:
    graph.launch("scale", (1,), (1,), Graph.scalar(kind, value))


@pytest.mark.parametrize(
    "build",
    [
        lambda g: None,
        lambda g: g.op("noop", "nowhere"),
        lambda g: (g.input("a", 4), g.output("a", 4), g.op("noop")),
        lambda g: (g.input("a", 0), g.op("noop")),
        lambda g: (g.input("", 4), g.op("noop")),
        lambda g: g.launch("scale", (10,), (3,)),
        lambda g: g.launch("scale", (), ()),
        lambda g: g.launch("scale", (4, 4), (4,)),
        lambda g: g.launch("scale", (1,) * 4, (1,) * 4),
        lambda g: g.launch("scale", (0,), (1,)),
        lambda g: launched_with(g, "int", 2**31),
        lambda g: launched_with(g, "uint", -1),
        lambda g: launched_with(g, "long", 1.5),
        lambda g: launched_with(g, "float", "x"),
        lambda g: launched_with(g, "half", 1),
        lambda g: launched_with(g, "float", 1e39),
        lambda g: launched_with(g, "float", 10**400),
        lambda g: launched_with(g, "double", 10**400),
    ],
)
def test_invalid_graphs_are_refused(build: Callable[[Graph], object]) -> None:
    graph = Graph(KERNELS)
    build(graph)
    with pytest.raises(OpFailed, match="EINVAL"):
        _ = graph.spec


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["source", "buffers", "steps", "op", "args", "in"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON)
@settings(max_examples=200)
def test_any_meta_is_a_graph_or_is_refused(meta: Any) -> None:
    specs: list[Spec] = []
    refused = refusal_of(lambda: specs.append(Spec.from_meta(meta)))
    assert refused is None or refused.code == "EINVAL"
    assert all(Spec.from_meta(spec.to_meta()) == spec for spec in specs)


def test_a_graph_round_trips() -> None:
    spec = scaled_and_added().spec
    assert Spec.from_meta(spec.to_meta()) == spec
    assert spec.id == scaled_and_added().spec.id
    assert len(spec.contents) == 2


def lane(quota_bytes: int = 1 << 20, contents: Contents | None = None) -> tuple[Runner, Quota]:
    quota = Quota(quota_bytes)
    context = Context(quota=quota, contents=contents or Contents())
    return Runner(load_registry(["noop", "sgemm"]), context), quota


def noop_graph(size: int, data: bytes = b"") -> Graph:
    graph = Graph()
    names = [graph.input("a", size)]
    if data:
        names.append(graph.constant("w", data))
    graph.op("noop", *names, out=[])
    return graph


def test_memory_counts_in_the_quota_until_it_is_freed() -> None:
    runner, quota = lane()
    meta = noop_graph(1 << 19).spec.to_meta()
    name = runner.run("graph.put", {"graph": meta}, [])[0]["graph"]
    assert quota.used_bytes == 1 << 19
    with quota.held(1 << 19), pytest.raises(OpFailed, match="ENOMEM"):
        runner.run("graph.put", {"graph": noop_graph((1 << 19) + 1).spec.to_meta()}, [])
    assert quota.used_bytes == 0, "it has tried all"
    assert runner.run("graph.put", {"graph": meta}, [])[0]["new"]
    assert quota.used_bytes == 1 << 19
    runner.run("graph.free", {"graph": name}, [])
    assert quota.used_bytes == 0
    with pytest.raises(OpFailed, match="ENOENT"):
        runner.run("graph.run", {"graph": name}, [memoryview(bytes(1 << 19))])
    runner.close()


def echo_graph(size: int) -> Graph:
    graph = Graph()
    graph.op("noop", graph.input("a", size), out=[graph.output("y", size)])
    return graph


def test_the_least_recently_used_graph_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    """To others, and to their memory; who runs it again does not notice."""
    with Local() as device:
        quota = device._runner._context.quota
        first, second, third = (echo_graph(size) for size in (300, 301, 302))
        puts: list[str] = []
        put: Callable[[Meta], Outcome] = device._runner._commands["graph.put"]

        def counted(args: Meta) -> Outcome:
            puts.append("put")
            return put(args)

        monkeypatch.setitem(device._runner._commands, "graph.put", counted)

        def run(graph: Graph, size: int) -> int:
            puts.clear()
            assert len(device.run(graph, a=bytes(size))["y"]) == size
            return len(puts)

        assert [run(first, 300), run(second, 301), run(first, 300)] == [1, 1, 0]
        quota.limit_bytes = 1400
        assert run(third, 302) == 1  # in the place of the second
        assert [run(first, 300), run(second, 301), run(first, 300)] == [0, 1, 0]
        monkeypatch.setattr(graphs, "GRAPHS_MAX", 2)
        quota.limit_bytes = None
        assert run(third, 302) == 1
        assert [run(first, 300), run(second, 301)] == [0, 1]
        with pytest.raises(OpFailed, match="this graph takes inputs of these bytes"):
            device.op("graph.run", b"x", graph=first.spec.id)


def test_compiling_takes_a_turn() -> None:
    """A compiler computes as a kernel does, and others may have the device."""
    asked: queue.Queue[Any] = queue.Queue()
    gate = Gate(0, asked.put)
    runner = Runner(load_registry(["noop"]), Context(gate=gate, contents=Contents()))
    source = "__kernel void f(__global float *x) { x[0] = 1; }"
    graph = Graph(source)
    graph.launch("f", (1,), (1,), graph.inout("x", 4))
    runner.run("content.put", {"content": graph.spec.source}, [memoryview(source.encode())])
    done = threading.Thread(target=_put, args=(runner, graph))
    done.start()
    _, ticket = asked.get(timeout=60)["ask"]
    assert done.is_alive()
    gate.granted(ticket, None, 1)
    done.join(60)
    assert not done.is_alive()
    runner.close()


def _put(runner: Runner, graph: Graph) -> None:
    with contextlib.suppress(OpFailed):  # a machine without a compiler says so in its turn
        runner.run("graph.put", {"graph": graph.spec.to_meta()}, [])


def test_contents_are_requested_once_per_tenant(tmp_path: Path) -> None:
    graph = noop_graph(4, b"weights")
    meta = graph.spec.to_meta()
    missing = [content_id(b"weights")]
    for tenant, expected in (("one", missing), ("one", []), ("two", missing)):
        runner, _ = lane(contents=Contents.of_tenant(tmp_path, tenant))
        assert runner.run("graph.put", {"graph": meta}, [])[0]["missing"] == expected
        for content in expected:
            runner.run("content.put", {"content": content}, [memoryview(b"weights")])
            assert runner.run("graph.put", {"graph": meta}, [])[0]["missing"] == []
        runner.close()


def test_contents_match_their_hash(tmp_path: Path) -> None:
    contents = Contents.of_tenant(tmp_path, "one")
    name = content_id(b"right")
    with pytest.raises(OpFailed, match="EINVAL"):
        contents.put(name, memoryview(b"wrong"))
    contents.put(name, memoryview(b"right"))
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    file.write_bytes(b"wrong")
    assert Contents.of_tenant(tmp_path, "one").find(name) is None
    assert not file.exists()
    for bad in ("sha256:../../etc/passwd", "sha256:" + "A" * 64, "", 5, None):
        runner, _ = lane(contents=contents)
        with pytest.raises(OpFailed, match="EINVAL"):
            runner.run("content.put", {"content": bad}, [memoryview(b"right")])


def test_the_oldest_contents_are_evicted(tmp_path: Path) -> None:
    contents = Contents(tmp_path / "one", bytes_max=250)
    names = []
    for number in range(4):
        data = bytes([number]) * 100
        names.append(content_id(data))
        contents.put(names[-1], memoryview(data))
    fresh = Contents(tmp_path / "one", bytes_max=250)
    assert [fresh.find(name) is not None for name in names] == [False, False, True, True]
    with pytest.raises(OpFailed, match="E2BIG"):
        contents.put(content_id(bytes(251)), memoryview(bytes(251)))


def test_the_cache_of_compiled_kernels_is_limited(tmp_path: Path) -> None:
    folder = tmp_path / "compiled"
    trim(folder)
    (folder / "ab" / "cd").mkdir(parents=True)
    (folder / "ab" / "cd" / "kernel.so").write_bytes(bytes(100))
    trim(folder, 100)
    assert (folder / "ab" / "cd" / "kernel.so").exists()
    trim(folder, 99)
    assert list(tmp_path.iterdir()) == []
