"""The registry of operations: by name and kind of device, best implementation first.

An operation has one or more implementations (classes that share its `name`); the first registered
one that fits the device runs unless the caller names another. A file `operations/NAME.py` that
declares `OPERATIONS = (MyOperation(), …)` is registered by its presence; another distribution
registers such a tuple as an entry point of the group `orchgpu.operations`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points
from importlib.metadata import version as version_of

from corekit.plugins import find_plugins
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import Meta
from remote_gpu.worker.arguments import IMPLEMENTATION
from remote_gpu.worker.backends.drivers import working_kinds
from remote_gpu.worker.operation import Context, CpuOperation

#: Of entry points whose objects are tuples of operations.
GROUP = "orchgpu.operations"
_PACKAGE = "operations.plugins"


class Registry:
    """Operations by name and kind, best implementation first."""

    def __init__(self) -> None:
        self._operations: dict[tuple[str, str], list[CpuOperation]] = {}
        self._found: dict[
            tuple[str, str, str], CpuOperation
        ] = {}  # by name, kind and implementation
        self.failures: dict[str, str] = {}  #: file, entry point or operation → reason

    def add(self, operation: CpuOperation) -> None:
        """Register for each of its kinds, after those of the same name and kind."""
        for kind in operation.kinds:
            self._operations.setdefault((operation.name, kind), []).append(operation)

    def find(self, name: str, kind: str, wanted: object = None) -> CpuOperation:
        """The best implementation, or the one whose first word is `wanted`.

        Raises OpFailed: ENOENT for an unknown name, ENOTSUP for a kind or implementation without
        it.
        """
        if wanted is None:
            first = next(self._available(name, kind), None)
            if first is None:
                raise self._unknown(name, kind)
            return first
        if type(wanted) is str and (known := self._found.get((name, kind, wanted))) is not None:
            return known
        found = self.all(name, kind)
        if not found:
            raise self._unknown(name, kind)
        for operation in found:
            if first_word(operation) == wanted:
                self._found[name, kind, wanted] = operation
                return operation
        there = ", ".join(first_word(operation) for operation in found)
        raise OpFailed(
            OpCode.ENOTSUP, f"{name!r} has no implementation {wanted!r}; there are {there}"
        )

    def refuse(self, name: str, why: str) -> None:
        """Remove an operation; calls of it fail with the reason."""
        for key in [key for key in self._operations if key[0] == name]:
            del self._operations[key]
        self._found.clear()
        self.failures[name] = why

    def clear(self, kind: str) -> None:
        """Remove all operations of a kind of device."""
        for key in [key for key in self._operations if key[1] == kind]:
            del self._operations[key]
        self._found.clear()

    def names(self, kind: str) -> tuple[str, ...]:
        """The operations of a device of `kind`, sorted."""
        named = sorted(name for name, k in self._operations if k == kind)
        return tuple(name for name in named if any(self._available(name, kind)))

    def libraries(self, kind: str) -> dict[str, str]:
        """The versions of the libraries of the implementations for `kind`, by name."""
        named = (
            library
            for name in self.names(kind)
            for operation in self.all(name, kind)
            for library in operation.libraries
        )
        return {name: version for name in sorted(set(named)) if (version := _installed(name))}

    def registered(self, kind: str) -> list[CpuOperation]:
        """All implementations for `kind`, by name, whether its driver works or not."""
        keys = sorted(key for key in self._operations if key[1] == kind)
        return [operation for key in keys for operation in self._operations[key]]

    def all(self, name: str, kind: str) -> tuple[CpuOperation, ...]:
        """The implementations of an operation for `kind`, best first; none: ()."""
        return tuple(self._available(name, kind))

    def _available(self, name: str, kind: str) -> Iterator[CpuOperation]:
        """The implementations whose drivers work; drivers are tried on first use."""
        for operation in self._operations.get((name, kind), ()):
            if not operation.by_kernels or kind in working_kinds():
                yield operation

    def described(self, kind: str) -> list[Meta]:
        """The descriptions of all implementations for `kind`, by name, best first."""
        names = self.names(kind)
        return [_described(operation) for name in names for operation in self.all(name, kind)]

    def prepare(self, context: Context) -> None:
        """Prepare every operation of the context's kind; remove the ones that fail."""
        self._found.clear()
        for key in [key for key in self._operations if key[1] == context.kind]:
            kept = [found for found in self._available(*key) if self._prepared(found, context)]
            if kept:
                self._operations[key] = kept
            else:
                del self._operations[key]

    def _prepared(self, operation: CpuOperation, context: Context) -> bool:
        try:
            operation.prepare(context)
        except Exception as error:
            name = f"{operation.name} by {first_word(operation)}"
            self.failures[name] = f"{type(error).__name__}: {error}"
            return False
        return True

    def _unknown(self, name: str, kind: str) -> OpFailed:
        if any(known == name for known, _ in self._operations):
            return OpFailed(OpCode.ENOTSUP, f"operation {name!r} has no implementation for {kind}")
        if why := self.failures.get(name):  # such as a library that is not installed
            return OpFailed(OpCode.ENOTSUP, f"operation {name!r} cannot be loaded here: {why}")
        names = ", ".join(self.names(kind))
        return OpFailed(OpCode.ENOENT, f"no operation {name!r}; this device has {names}")


def _installed(distribution: str) -> str:
    try:
        return version_of(distribution)
    except PackageNotFoundError:
        return ""


def first_word(operation: CpuOperation) -> str:
    """The name of an implementation for callers, without its version."""
    return operation.implementation.partition(" ")[0]


def wanted_implementation(args: Mapping[str, object]) -> object:
    """The implementation that a call's arguments name; None: the best."""
    return args.get(IMPLEMENTATION)


def _described(operation: CpuOperation) -> Meta:
    return {
        "name": operation.name,
        "version": operation.version,
        "kinds": list(operation.kinds),
        "implementation": operation.implementation,
        "limits": asdict(operation.limits),
        **operation.signature.to_meta(),
    }


def load_registry(only: Sequence[str] = ()) -> Registry:
    """All installed operations; one that cannot be loaded is noted in `failures`.

    `only`: names of files or entry points to load; empty = all. Others cost neither time nor
    memory.
    """
    registry = Registry()
    found = installed()
    for name in only:
        if name not in found:
            registry.failures[name] = f"no such operation; installed are {', '.join(sorted(found))}"
    for entry in entry_points(group=GROUP):
        if found[entry.name] != entry:
            registry.failures[entry.value] = f"the name {entry.name!r} is taken; rename the entry"
    for name, entry in found.items():
        if only and name not in only:
            continue
        try:
            operations = tuple(entry.load())
        except Exception as error:  # one that is broken does not keep the others from serving
            registry.failures[name] = _reason(entry, error)
            continue
        for operation in operations:
            if isinstance(operation, CpuOperation) and _is_complete(operation):
                registry.add(operation)
            else:
                registry.failures[name] = f"{entry.value}: {operation!r} is not an operation"
    return registry


def _is_complete(operation: CpuOperation) -> bool:
    return all(
        hasattr(operation, name) for name in ("name", "implementation", "signature", "limits")
    )


def installed() -> Mapping[str, EntryPoint]:
    """Files and entry points of operations by name; of equal names the project's own wins."""
    return find_plugins(GROUP, _PACKAGE, "OPERATIONS")


def _reason(entry: EntryPoint, error: Exception) -> str:
    if not isinstance(error, ImportError):
        return f"{type(error).__name__}: {error}"
    own = entry.value.startswith(f"{_PACKAGE}.")
    return f"{error}; install orchgpu[host]" if own else str(error)
