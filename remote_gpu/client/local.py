"""`Local()`: the same operations in this process, for a function without a lease.

The implementations in `remote_gpu.worker` are imported when a `Local` is made: function packages
do not have them, and the client itself needs the standard library only.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from remote_gpu.client.device import Device, DeviceBuffer, OpResult, fitting, kept_in, new_views
from remote_gpu.client.graph import Graph, GraphResult, run_graph
from remote_gpu.client.resources import Resource
from remote_gpu.client.uncaught import end_in_own_line
from remote_gpu.wire.connection import DeviceInfo
from remote_gpu.wire.errors import OpFailed, Refusal, Refused
from remote_gpu.wire.frames import HEADER_BYTES, BufferLike, Meta, Out, flat_views, pack, parse_meta

if TYPE_CHECKING:
    from pathlib import Path


class Local(Sequence["Local"], Device):
    """The CPU of this process as a device, without quota and isolation. See `Device`.

    A sequence of one device, like `Devices`. Thread-safe; calls are serialised.
    """

    remote = False

    def __init__(self, data: Mapping[str, Path | str] | None = None) -> None:
        """`data`: as of `gpud --data NAME=PATH`. Raises Refused(NOT_INSTALLED) without the package
        of the operations."""
        end_in_own_line()
        try:
            module = importlib.import_module("remote_gpu.worker.lane")
        except ImportError as error:
            message = f"this installation has no operations: {error}"
            raise Refused(Refusal.NOT_INSTALLED, message) from None
        self._runner = module.local_runner(data or {})
        self._lock = threading.Lock()
        self._closed = False
        self._sticky: OpFailed | None = None
        self._graphs: set[str] = set()
        self.info = DeviceInfo(0, "cpu", "this process", 0)

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, index: int) -> Local: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Local]: ...

    def __getitem__(self, index: int | slice) -> Local | Sequence[Local]:
        """This device. Raises IndexError for any other index."""
        return (self,)[index]

    @property
    def infos(self) -> tuple[DeviceInfo, ...]:
        """See `Devices.infos`."""
        return (self.info,)

    def op(self, name: str, /, *buffers: BufferLike, out: Out = None, **args: object) -> OpResult:
        """See `Device.op`."""
        with self._lock:
            if self._closed:
                raise Refused(Refusal.ENDED, "the device was closed")
            return self._op(name, buffers, out, args)

    def run(self, graph: Graph, /, *, iterations: int = 1, **inputs: BufferLike) -> GraphResult:
        """See `Device.run`."""
        return run_graph(self, self._graphs, graph, iterations, inputs)

    def post(
        self, name: str, /, *buffers: BufferLike, out: Sequence[DeviceBuffer] = (), **args: object
    ) -> None:
        """See `Device.post`."""
        try:
            self.op(name, *buffers, out=out or None, **args)
        except OpFailed as error:
            self._sticky = self._sticky or error

    def close(self) -> None:
        """See `Device.close`."""
        with self._lock:
            self._closed = True
            self._runner.close()

    def _op(self, name: str, buffers: Sequence[BufferLike], out: Out, args: Meta) -> OpResult:
        kept, inputs, args = kept_in(out), [_input(buffer) for buffer in buffers], _as_sent(args)
        sticky = self._sticky
        if name == "sync":
            self._sticky = None
        if sticky is not None:
            raise sticky
        values, results, implementation = self._runner.run(name, args, inputs)
        if kept:
            self._runner.keep(results, kept)
            return OpResult(_as_sent(values), [], implementation)
        sizes = [view.nbytes for view in results]
        views = new_views(sizes) if out is None else fitting(out, sizes)
        for target, view in zip(views, results, strict=True):
            target[:] = view  # copied: a result may be an input
        return OpResult(_as_sent(values), views, implementation)


def _as_sent(values: Meta) -> Meta:
    """The values after encoding and decoding. Raises as sending does."""
    return parse_meta(pack(values)[HEADER_BYTES:]) if values else {}


def _input(buffer: BufferLike) -> Any:
    if isinstance(buffer, DeviceBuffer):
        return buffer.handle
    return buffer.content if isinstance(buffer, Resource) else flat_views([buffer])[0]
