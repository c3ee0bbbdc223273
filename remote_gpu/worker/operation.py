"""The interface of a trusted named operation, what it may use, and the registry of them.

An operation is a class with one implementation for one or more device kinds; several classes may
share a `name` (one per library or kind), and the first registered that fits the device runs.
Modules in `remote_gpu/worker/operations/` declare `OPERATIONS = (MyOperation(), …)`.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.backends.base import Backend, HostBackend
from remote_gpu.worker.contents import Contents
from remote_gpu.worker.quota import Quota
from remote_gpu.worker.turns import Gate

T = TypeVar("T")

#: Anything contiguous with the buffer protocol: bytes, bytearray, memoryview, numpy.ndarray.
Buffer: TypeAlias = Any
#: What `Operation.run` returns: JSON-serialisable values, and buffers sent as they are.
Outcome: TypeAlias = "tuple[dict[str, Any], list[Buffer]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an operation takes; checked before a byte of payload is allocated."""

    inputs_min: int = 0
    inputs_max: int = 0
    input_bytes_max: int = 1 << 30  #: of all inputs together

    def check(self, name: str, sizes: Sequence[int]) -> None:
        """Inputs of these bytes for operation `name`. Raises OpFailed: EINVAL, E2BIG."""
        if not self.inputs_min <= len(sizes) <= self.inputs_max:
            message = f"{name} takes {self.inputs_min}…{self.inputs_max} inputs, not {len(sizes)}"
            raise OpFailed(OpCode.EINVAL, message)
        if (total := sum(sizes)) > self.input_bytes_max:
            message = f"{name} takes {self.input_bytes_max} bytes of input, not {total}"
            raise OpFailed(OpCode.E2BIG, message)


class Warm:
    """Loaded resources by key. Filled before a lease's process is forked, it is shared by all."""

    def __init__(self) -> None:
        self._entries: dict[str, Any] = {}

    def get(self, key: str, load: Callable[[], T]) -> T:
        """The resource of `key`, loaded at most once in this process and its children."""
        if key not in self._entries:
            self._entries[key] = load()
        return cast("T", self._entries[key])

    def find(self, key: str) -> Any | None:
        """The resource of `key` if it is resident."""
        return self._entries.get(key)

    def keys(self) -> tuple[str, ...]:
        """What is resident, in order of loading: the warm keys a request may name."""
        return tuple(self._entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an operation may use besides its arguments and inputs."""

    data: Mapping[str, Path] = field(default_factory=dict)  #: `gpud --data NAME=PATH`
    kind: str = "cpu"  #: of the device it runs on
    tenant: str = "default"
    warm: Warm = field(default_factory=Warm)
    quota: Quota = field(default_factory=Quota)  #: reserve before allocating, free after
    contents: Contents = field(default_factory=Contents)  #: what the tenant sent by its hash
    compiled: Path | None = None  #: folder for compiled kernels of the tenant
    gate: Gate | None = None  #: of the device; None: nobody else is on it

    def data_path(self, name: str) -> Path:
        """Where host-resident data lies. Raises OpFailed(ENOENT) naming what there is."""
        try:
            return self.data[name]
        except KeyError:
            known = ", ".join(sorted(self.data)) or "none"
            raise OpFailed(
                OpCode.ENOENT, f"no data {name!r} on this host; it has {known}"
            ) from None

    def turn(self) -> AbstractContextManager[None]:
        """To compute within; without a gate it is always one's own turn."""
        return contextlib.nullcontext() if self.gate is None else self.gate.turn()

    def open_backend(self) -> Backend:
        """Where kernels of this device's kind run. Starts threads: never before a fork."""
        try:
            opencl = importlib.import_module("remote_gpu.worker.backends.opencl")
            opened: Backend = opencl.open_opencl(self.kind, self.compiled)
        except ImportError as error:
            return HostBackend(f"the opencl extra is not installed ({error})")
        except OpFailed as error:
            return HostBackend(error.message)
        return opened


@runtime_checkable
class Operation(Protocol):
    """One implementation of a named operation. Instances are stateless; state is in `Warm`."""

    @property
    def name(self) -> str:
        """What a caller asks for: `onnx`."""
        ...

    @property
    def version(self) -> int:
        """Rises when arguments or results change their meaning."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Device kinds it runs on."""
        ...

    @property
    def implementation(self) -> str:
        """What ran, for the caller: `numpy`, `onnxruntime`; travels with every result."""
        ...

    @property
    def limits(self) -> Limits: ...

    def prepare(self, context: Context) -> None:
        """Load into `context.warm` what every lease may share; called once, before any lease.

        May do nothing. An error is logged and disables this implementation on the host.
        """
        ...

    def run(
        self, context: Context, args: Mapping[str, Any], inputs: Sequence[memoryview]
    ) -> Outcome:
        """Compute. `inputs` are flat byte views, valid only until it returns.

        Raises OpFailed with the code that says who has to act; anything else becomes EIO.
        """
        ...


class Registry:
    """Operations by name and kind."""

    def __init__(self) -> None:
        self._operations: dict[tuple[str, str], Operation] = {}
        self.failures: dict[str, str] = {}  #: module or operation → why it is not here

    def add(self, operation: Operation) -> None:
        """Register for each of its kinds; an earlier one of the same name and kind stays."""
        for kind in operation.kinds:
            self._operations.setdefault((operation.name, kind), operation)

    def find(self, name: str, kind: str) -> Operation:
        """Raises OpFailed: ENOENT for an unknown name, ENOTSUP for a kind without it."""
        if (found := self._operations.get((name, kind))) is not None:
            return found
        if any(known == name for known, _ in self._operations):
            raise OpFailed(OpCode.ENOTSUP, f"operation {name!r} has no implementation for {kind}")
        names = ", ".join(self.names(kind))
        raise OpFailed(OpCode.ENOENT, f"no operation {name!r}; this device has {names}")

    def names(self, kind: str) -> tuple[str, ...]:
        """What a device of `kind` can do, sorted."""
        return tuple(sorted(name for name, k in self._operations if k == kind))

    def prepare(self, context: Context) -> None:
        """Warm every operation of the context's kind; one that fails is taken out, with why."""
        for key, operation in list(self._operations.items()):
            if key[1] != context.kind:
                continue
            try:
                operation.prepare(context)
            except Exception as error:
                self.failures[operation.name] = f"{type(error).__name__}: {error}"
                del self._operations[key]


def load_registry(only: Sequence[str] = ()) -> Registry:
    """Operations of `remote_gpu.worker.operations`; a module that cannot load is noted.

    `only`: names of the modules to load; empty = all. Others cost neither time nor memory.
    """
    package = importlib.import_module("remote_gpu.worker.operations")
    found = sorted(m.name for m in pkgutil.iter_modules(package.__path__))
    registry = Registry()
    for name in only:
        if name not in found:
            registry.failures[name] = f"no such operation; there are {', '.join(found)}"
    for module in [name for name in found if not only or name in only]:
        try:
            loaded = importlib.import_module(f"{package.__name__}.{module}")
        except ImportError as error:  # an optional library is missing: the others still serve
            registry.failures[module] = str(error)
            continue
        for operation in getattr(loaded, "OPERATIONS", ()):
            registry.add(operation)
    return registry
