"""Graphs of kernels and operations, which run on a device in one round trip.

    graph = Graph(SOURCE)                              # OpenCL C, the portable subset
    x, y = graph.input("x", 4 * n), graph.output("y", 4 * n)
    weights = graph.constant("weights", data)          # sent once, by its hash
    graph.launch("scale", (n,), (64,), y, x, weights, graph.scalar("float", 2.0))
    result = device.run(graph, x=values)               # → result["y"]

Nothing is sent while a graph is built. The first run on a device sends the graph, and the contents
that its host lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.frames import BufferLike, Meta, Out, flat_views
from remote_gpu.wire.graphs import (
    Argument,
    Buffer,
    BufferRole,
    Launch,
    OperationCall,
    Scalar,
    Shared,
    Spec,
    content_id,
)


class GraphBuffer(str):
    """The name of a buffer in its graph, an argument of steps."""

    __slots__ = ()


class Graph:
    """Steps in the order of their addition. Must not change once it has run."""

    def __init__(self, source: str = "") -> None:
        """`source`: OpenCL C with every kernel of the graph; "" for operations alone."""
        self._source = source.encode()
        self._buffers: list[Buffer] = []
        self._steps: list[Launch | OperationCall] = []
        self._contents: Meta = {}
        self._spec: Spec | None = None
        if source:
            self._contents[content_id(self._source)] = self._source

    def input(self, name: str, size: int) -> GraphBuffer:
        """`size` bytes that every run sends."""
        return self._buffer(name, BufferRole.INPUT, size)

    def output(self, name: str, size: int) -> GraphBuffer:
        """`size` bytes that every run returns."""
        return self._buffer(name, BufferRole.OUTPUT, size)

    def inout(self, name: str, size: int) -> GraphBuffer:
        """`size` bytes that a run sends, changes and returns."""
        return self._buffer(name, BufferRole.INOUT, size)

    def temporary(self, name: str, size: int) -> GraphBuffer:
        """`size` bytes that stay on the device."""
        return self._buffer(name, BufferRole.TEMPORARY, size)

    def constant(self, name: str, data: BufferLike) -> GraphBuffer:
        """Bytes that the host keeps under their hash, for later runs and later jobs."""
        view = flat_views([data])[0]
        content = content_id(view)
        self._contents[content] = view
        return self._buffer(name, BufferRole.CONSTANT, view.nbytes, content)

    @staticmethod
    def scalar(kind: str, value: int | float) -> Scalar:
        """A number with its type: int, uint, long, ulong, float, double."""
        return Scalar(kind, value)

    @staticmethod
    def shared(size: int) -> Shared:
        """`size` bytes that the work items of one group share (`__local`)."""
        return Shared(size)

    def launch(
        self,
        kernel: str,
        global_size: Sequence[int],
        local_size: Sequence[int],
        *arguments: Argument | int | float,
    ) -> None:
        """Add a kernel launch. A bare Python int is an `int`, a bare Python float a `float`."""
        typed = tuple(_typed(argument) for argument in arguments)
        self._add(Launch(kernel, tuple(global_size), tuple(local_size), typed))

    def op(self, name: str, /, *inputs: str, out: Sequence[str] = (), **args: object) -> None:
        """Add a trusted operation; its results go to the buffers in `out`."""
        self._add(OperationCall(name, args, inputs, tuple(out)))

    @property
    def spec(self) -> Spec:
        """The graph as it is sent. Raises OpFailed(EINVAL) for one that is not valid."""
        if self._spec is None:
            source = content_id(self._source) if self._source else ""
            built = Spec(source, tuple(self._buffers), tuple(self._steps))
            self._spec = Spec.from_meta(built.to_meta())
        return self._spec

    def content(self, content: str) -> BufferLike:
        """The bytes of a source or a constant of this graph."""
        return self._contents[content]

    def _buffer(self, name: str, role: BufferRole, size: int, content: str = "") -> GraphBuffer:
        self._spec = None
        self._buffers.append(Buffer(name, role, size, content))
        return GraphBuffer(name)

    def _add(self, step: Launch | OperationCall) -> None:
        self._spec = None
        self._steps.append(step)


def payload_of(spec: Spec, inputs: Mapping[str, object]) -> list[memoryview]:
    """The inputs of a run in the order of the wire. Raises OpFailed(EINVAL)."""
    wanted = spec.with_role(BufferRole.INPUT, BufferRole.INOUT)
    names = {buffer.name for buffer in wanted}
    if names != inputs.keys():
        have, need = ", ".join(sorted(inputs)) or "none", ", ".join(sorted(names)) or "none"
        raise invalid(f"this graph takes the inputs {need}, not {have}")
    views = flat_views([inputs[buffer.name] for buffer in wanted])
    for buffer, view in zip(wanted, views, strict=True):
        if view.nbytes != buffer.size:
            raise invalid(f"input {buffer.name!r} has {view.nbytes} bytes, not {buffer.size}")
    return views


class GraphResult(NamedTuple):
    """The result of one run of a graph."""

    outputs: dict[str, memoryview]  #: bytes by the names of output and inout buffers
    implementation: str  #: of the kernels: "opencl: PoCL 3.1 …"; "" for operations alone

    def __getitem__(self, name: Any) -> Any:
        """`result["y"]`: the bytes of one output."""
        return self.outputs[name] if isinstance(name, str) else tuple.__getitem__(self, name)


class Operating(Protocol):
    """The part of a device that graphs and sessions of operations need."""

    remote: bool  #: leased, not the CPU of this process

    def op(self, name: str, /, *buffers: BufferLike, out: Out = None, **args: object) -> Any: ...


def run_graph(
    device: Operating, known: set[str], graph: Graph, iterations: int, inputs: Mapping[str, object]
) -> GraphResult:
    """Run a graph once; `known`: ids of the graphs that the lane has, to which this is added."""
    spec, payload = graph.spec, payload_of(graph.spec, inputs)
    if spec.id not in known:
        _send(device, graph)
        known.add(spec.id)
    try:
        ran = device.op("graph.run", *payload, graph=spec.id, iterations=iterations)
    except OpFailed as error:
        if error.code != OpCode.ENOENT or not _send(device, graph):
            raise  # the lane had it
        ran = device.op("graph.run", *payload, graph=spec.id, iterations=iterations)
    names = [buffer.name for buffer in spec.with_role(BufferRole.OUTPUT, BufferRole.INOUT)]
    return GraphResult(dict(zip(names, ran.buffers, strict=True)), ran.implementation)


def _send(device: Operating, graph: Graph) -> bool:
    """Send the missing contents, then the graph; False when the lane had it already."""
    meta = graph.spec.to_meta()
    put = device.op("graph.put", graph=meta).values
    for content in put["missing"]:
        device.op("content.put", graph.content(content), content=content)
    if put["missing"]:
        put = device.op("graph.put", graph=meta).values
        if put["missing"]:
            raise OpFailed(OpCode.EIO, "the host lost contents just after they were sent")
    return bool(put["new"])


def _typed(argument: Argument | int | float) -> Argument:
    if isinstance(argument, (str, Scalar, Shared)):
        return argument
    return Scalar("float" if isinstance(argument, float) else "int", argument)
