"""The graphs of one lane: memory and kernels made once, runs in one round trip.

`graph.put` returns the missing contents; when there are none, the graph is ready. Its memory is
kept until `graph.free`, the lane's end, or until another graph of the lane needs it: the least
recently used graph is evicted, and must be put again for its next run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from operations.kernels.source import KernelSource, read_source
from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.frames import flat_views
from remote_gpu.wire.graphs import (
    ITERATIONS_MAX,
    BufferRole,
    Launch,
    OperationCall,
    Spec,
    check_content_id,
)
from remote_gpu.worker.arguments import Arguments
from remote_gpu.worker.backends.base import Backend, DeviceMemory, HostBackend, Program
from remote_gpu.worker.backends.bounds import Bounds
from remote_gpu.worker.operation import Context, Outcome
from remote_gpu.worker.registry import Registry, wanted_implementation

GRAPHS_MAX = 64  #: of one lane


class Graphs:
    """The graphs of one lane, as commands. Not thread-safe."""

    def __init__(self, context: Context, registry: Registry) -> None:
        self._context = context
        self._registry = registry
        self._graphs: dict[str, _Graph] = {}
        self._backend: Backend | None = None
        self._bounds: Bounds | None = None
        self._modules: dict[str, Module] = {}  # by the content id of their source

    @property
    def implementation(self) -> str:
        return "" if self._backend is None else self._backend.implementation

    def put(self, args: Arguments) -> Outcome:
        """`graph` → {"graph": id, "missing": [content, …], "new": whether this call made it}."""
        spec = Spec.from_meta(args.get("graph"))
        name = spec.id
        contents = self._context.contents
        missing = [content for content in spec.contents if contents.find(content) is None]
        new = not missing and name not in self._graphs
        if new:
            self._graphs[name] = self._made(spec)
        return {"graph": name, "missing": missing, "new": new}, []

    def _made(self, spec: Spec) -> _Graph:
        backend, module = self._open(spec), self._module(spec)
        while len(self._graphs) >= GRAPHS_MAX:
            self._evict()
        while True:
            try:
                return _Graph(spec, backend, module, self._context, self._registry)
            except OpFailed as error:
                if error.code != OpCode.ENOMEM or not self._graphs:
                    raise
            self._evict()

    def _evict(self) -> None:
        self._graphs.pop(next(iter(self._graphs))).close()

    def content(self, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        """`content` and one input → nothing; stores the input under its hash."""
        if len(inputs) != 1:
            raise invalid("content.put takes one input")
        self._context.contents.put(check_content_id(args.get("content")), inputs[0])
        return {}, []

    def places(self, args: Arguments, sizes: Sequence[int]) -> list[memoryview] | None:
        """Memory to receive the inputs of a run in; None: any. Raises OpFailed."""
        return self._find(args).places(sizes)

    def run(self, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        """`graph`, `iterations` and the inputs → the outputs in their order."""
        graph = self._find(args)
        self._graphs[args["graph"]] = self._graphs.pop(args["graph"])  # used last
        return {}, graph.run(args.get("iterations", 1), inputs)

    def free(self, args: Arguments) -> Outcome:
        """`graph` → nothing; frees its memory."""
        self._find(args).close()
        del self._graphs[args["graph"]]
        return {}, []

    def close(self) -> None:
        """Free all memory."""
        for graph in self._graphs.values():
            graph.close()
        self._graphs.clear()
        if self._bounds is not None:
            self._bounds.close()
            self._bounds = None

    def _find(self, args: Arguments) -> _Graph:
        name = args.get("graph")
        graph = self._graphs.get(name) if isinstance(name, str) else None
        if graph is None:
            raise OpFailed(OpCode.ENOENT, "no such graph on this lane; send it with graph.put")
        return graph

    def _open(self, spec: Spec) -> Backend:
        """The backend of a graph. A graph of operations alone needs no compiler and its threads."""
        if not spec.source:
            return self._backend or HostBackend("the graph has operations only")
        if self._backend is None:
            self._backend = self._context.open_backend_of_callers()
        return self._backend

    def _module(self, spec: Spec) -> Module | None:
        """The graph's source, built once per lane. Raises OpFailed for launches that do not fit."""
        if not spec.source:
            return None
        known = self._modules.get(spec.source)
        content = self._context.contents.find(spec.source)
        assert content is not None, "a graph is made only when no content is missing"
        source = read_source(_text(content)) if known is None else known.source
        for number, step in enumerate(spec.steps, 1):
            if isinstance(step, Launch):  # before the compiler runs
                _check_call(source, step, number)
        if known is None:
            while len(self._modules) >= GRAPHS_MAX:
                del self._modules[next(iter(self._modules))]
            with self._context.turn():  # a compiler computes for seconds
                built = self._open(spec).build(source.text)
            if self._bounds is None:
                self._bounds = Bounds(self._open(spec))
            known = self._modules[spec.source] = Module(source, built, self._bounds)
        return known


class Module(NamedTuple):
    """A built source, shared by the graphs of one lane."""

    source: KernelSource
    program: Program
    bounds: Bounds


class _Graph:
    """One graph on its device."""

    def __init__(
        self,
        spec: Spec,
        backend: Backend,
        module: Module | None,
        context: Context,
        registry: Registry,
    ) -> None:
        self._spec = spec
        self._backend = backend
        self._module = module
        self._context = context
        self._inside = replace(context, within_turn=True)  # for steps: a run takes one turn
        self._memories: dict[str, DeviceMemory] = {}
        self._pending = False  #: enqueued kernels may still run
        self._inputs = [b.name for b in spec.with_role(BufferRole.INPUT, BufferRole.INOUT)]
        self._outputs = [b.name for b in spec.with_role(BufferRole.OUTPUT, BufferRole.INOUT)]
        try:
            self._allocate()
            self._steps = self._bind(registry)
        except BaseException:
            self.close()
            raise

    def places(self, sizes: Sequence[int]) -> list[memoryview] | None:
        """The memory of each input, in the order of the wire."""
        self._check_sizes(sizes)
        wanted = [self._memories[name] for name in self._inputs]
        places = [memory.place for memory in wanted]
        views = [place for place in places if place is not None]
        return views if len(views) == len(wanted) else None

    def _check_sizes(self, sizes: Sequence[int]) -> None:
        if [self._memories[name].size for name in self._inputs] != list(sizes):
            expected = ", ".join(f"{name}: {self._memories[name].size}" for name in self._inputs)
            raise invalid(f"this graph takes inputs of these bytes: {expected}")

    def run(self, iterations: object, inputs: Sequence[memoryview]) -> list[memoryview]:
        if type(iterations) is not int or not 1 <= iterations <= ITERATIONS_MAX:
            raise invalid(f"'iterations' must be an integer of 1…{ITERATIONS_MAX}")
        self._check_sizes([view.nbytes for view in inputs])
        for name, view in zip(self._inputs, inputs, strict=True):
            self._memories[name].write(view)
        with self._context.turn():
            for _ in range(iterations):
                self._iterate()
            self._wait()
        return [self._memories[name].read() for name in self._outputs]

    def close(self) -> None:
        self._steps = []  # kernels refer to the memory of their arguments
        for memory in self._memories.values():
            memory.close()
        self._memories.clear()

    def _iterate(self) -> None:
        for number, step in enumerate(self._steps, 1):
            try:
                step()
            except OpFailed as error:
                self._wait()
                raise OpFailed(error.code, f"step {number}: {error.message}") from None

    def _allocate(self) -> None:
        for buffer in self._spec.buffers:
            memory = self._backend.allocate(self._context.quota, buffer.size)
            self._memories[buffer.name] = memory
            if buffer.role is BufferRole.CONSTANT:
                memory.write(self._content(buffer.content, buffer.size))

    def _content(self, content: str, size: int) -> memoryview:
        view = self._context.contents.find(content)
        if view is None:
            raise OpFailed(OpCode.ENOENT, f"this host no longer has {content}; send it again")
        if len(view) != size:
            raise invalid(f"{content} has {len(view)} bytes, not {size}")
        return view

    def _bind(self, registry: Registry) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = []
        for number, step in enumerate(self._spec.steps, 1):
            try:
                if isinstance(step, OperationCall):
                    steps.append(self._bind_call(step, registry))
                else:
                    assert self._module is not None, "a graph with kernels has a source"
                    steps.append(self._bind_launch(step, self._module))
            except OpFailed as error:
                raise OpFailed(error.code, f"step {number}: {error.message}") from None
        return steps

    def _bind_launch(self, step: Launch, module: Module) -> Callable[[], None]:
        arguments = [self._memories[a] if isinstance(a, str) else a for a in step.arguments]
        signature = module.source.kernels[step.kernel]
        kernel = module.bounds.kernel(module.program, signature, arguments)

        def enqueue() -> None:
            kernel.enqueue(step.global_size, step.local_size)
            self._pending = True

        return enqueue

    def _bind_call(self, step: OperationCall, registry: Registry) -> Callable[[], None]:
        wanted = wanted_implementation(step.arguments)
        operation = registry.find(step.operation, self._context.kind, wanted)
        sources = [self._memories[name] for name in step.inputs]
        targets = [self._memories[name] for name in step.outputs]
        operation.limits.check(step.operation, [memory.size for memory in sources])

        def call() -> None:
            if self._pending:
                self._wait()
            inputs = [memory.read() for memory in sources]
            _, results = operation.run(self._inside, step.arguments, inputs)
            if operation.loads is not None and self._context.used is not None:
                self._context.used.note(operation, step.arguments)
            if results or targets:
                _store(step.operation, flat_views(results), targets)

        return call

    def _wait(self) -> None:
        if self._pending:
            self._pending = False
            self._backend.finish()
            assert self._module is not None, "only kernels are pending"
            self._module.bounds.check(self._module.source)


def _store(operation: str, results: Sequence[memoryview], targets: Sequence[DeviceMemory]) -> None:
    sizes = [memory.size for memory in targets]
    if [view.nbytes for view in results] != sizes:
        found = ", ".join(str(view.nbytes) for view in results) or "none"
        raise invalid(f"{operation} returned results of bytes ({found}), not {sizes}")
    for memory, view in zip(targets, results, strict=True):
        memory.write(view)


def _check_call(source: KernelSource, step: Launch, number: int) -> None:
    try:
        source.check_call(step.kernel, step.arguments, step.local_size)
    except OpFailed as error:
        raise OpFailed(error.code, f"step {number}: {error.message}") from None


def _text(source: memoryview) -> str:
    try:
        return str(source, "utf-8")
    except UnicodeDecodeError as error:
        raise invalid(f"the source is not UTF-8: {error}") from None
