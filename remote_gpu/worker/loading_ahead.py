"""Loads in another worker ahead of a lease, of all that the calls of a worker use.

A worker notes for each call of an operation with `CpuOperation.loads` the arguments that say what
it uses, and names them to gpud when its lease is over. A worker for the next lease of the workload
gets them before that lease has its device, and loads the same.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from remote_gpu.wire.errors import OpFailed
from remote_gpu.worker.arguments import IMPLEMENTATION, Arguments
from remote_gpu.worker.joining import registered_model
from remote_gpu.worker.store.resources import Resources

if TYPE_CHECKING:
    from remote_gpu.worker.operation import Context, CpuOperation
    from remote_gpu.worker.registry import Registry

#: Of one workload.
USED_MAX = 32
#: Of all of them as JSON: a packet to gpud has room for more.
USED_BYTES_MAX = 8 << 10


class Used:
    """The operations and arguments of the calls of one worker, by their first use. Thread-safe."""

    def __init__(self) -> None:
        self._used: dict[tuple[object, ...], tuple[str, Arguments]] = {}
        self._lock = threading.Lock()  # lanes call at the same time

    def note(self, operation: CpuOperation, args: Arguments) -> None:
        """A call has succeeded."""
        names = operation.loads
        if names is None:
            return
        key = (operation.name, args.get(IMPLEMENTATION), *map(args.get, names))
        try:
            if key in self._used:
                return
        except TypeError:  # a list or a mapping, which no operation takes there
            return
        given = {name: args[name] for name in (*names, IMPLEMENTATION) if name in args}
        with self._lock:
            self._used[key] = operation.name, given
            if len(self._used) > USED_MAX:
                del self._used[next(iter(self._used))]

    def loaded(self, resources: Resources) -> list[list[object]]:
        """Those that are still loaded, as JSON values; the newest, as far as a packet has room."""
        kept, size, found = set(resources.unused()), 0, list[list[object]]()
        for name, args in reversed(list(self._used.values())):
            model = registered_model(args)
            if model is None or model in kept:
                size += len(json.dumps(args))
                if size > USED_BYTES_MAX:
                    break
                found.insert(0, [name, dict(args)])
        return found


def load(
    registry: Registry, context: Context, used: Iterable[tuple[str, Mapping[str, Any]]]
) -> None:
    """Load what calls with these operations and arguments use; one that fails is left out."""
    resources = context.resources
    session = resources.new_session()
    try:
        for name, args in used:
            with contextlib.suppress(OpFailed, MemoryError):
                operation = registry.find(name, context.kind, args.get(IMPLEMENTATION))
                if (model := registered_model(args)) is not None:
                    if (data := context.contents.find(model)) is None:
                        continue
                    resources.register(session, "model", model, data)
                operation.load(context, args)
                if context.used is not None:
                    context.used.note(operation, args)
    finally:
        resources.end_session(session)
