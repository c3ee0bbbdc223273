"""A device for programs: named operations, resident buffers, pipelining."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from remote_gpu.client.graph import Graph, GraphResult, run_graph
from remote_gpu.client.host_data import HostData
from remote_gpu.client.resources import Resource
from remote_gpu.client.transport.handshake import ANSWER_S, Carrier, open_connection
from remote_gpu.client.transport.prompt import PromptSocket
from remote_gpu.client.uses import uses_file
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import Access, DeviceInfo
from remote_gpu.wire.errors import OpFailed, Refusal, Refused, WireError
from remote_gpu.wire.frames import (
    CALL_MAX,
    NO_REPLY,
    BufferLike,
    FrameLimits,
    Header,
    Meta,
    Out,
    flat_views,
    numbered,
    pack,
    parse_sizes,
)
from remote_gpu.wire.proof import ConnectionRole
from remote_gpu.wire.segment import SHARED_BYTES_MIN
from remote_gpu.wire.uses import lacks_in

if TYPE_CHECKING:
    from remote_gpu.client.transport.segment import SharedMemory


#: The cause of a lane that closes without an error frame.
_CLOSED = "its worker died, or the lease is over"


class OpResult(NamedTuple):
    """The result of one operation."""

    values: Meta  #: JSON values
    buffers: list[memoryview]  #: bytes; `numpy.frombuffer` fits
    implementation: str  #: "numpy", "onnxruntime", …


class DeviceBuffer:
    """Memory that stays on the device between calls; counted in the lease's quota."""

    def __init__(self, device: Device, handle: int, size: int) -> None:
        self._device = device
        self.handle = handle
        self.size = size  #: bytes

    @property
    def reference(self) -> dict[str, int]:
        """Its form in the list of inputs: no bytes are sent."""
        return {"buffer": self.handle}

    def write(self, data: BufferLike, offset: int = 0) -> None:
        """Copy `data` in: bytes, received straight into the device's memory, or another buffer of
        the device or a resource, without sending bytes."""
        self._device.op("buffer.write", data, buffer=self.handle, offset=offset)

    def read(self, offset: int = 0, size: int | None = None, out: BufferLike = None) -> memoryview:
        """Copy bytes out, to `out` if given."""
        count = self.size - offset if size is None else size
        result = self._device.op(
            "buffer.read",
            buffer=self.handle,
            offset=offset,
            size=count,
            out=None if out is None else [out],
        )
        return result.buffers[0]

    def free(self) -> None:
        """Free the memory; the handle must not be used again."""
        self._device.op("buffer.free", buffer=self.handle)


class Device(Protocol):
    """The interface of the devices of `connect()` and `Local()`, with its calls by `op`."""

    info: DeviceInfo
    remote: bool = True

    def op(self, name: str, /, *buffers: BufferLike, out: Out = None, **args: object) -> OpResult:
        """Run a named operation and wait for its result.

        `buffers`: anything contiguous with the buffer protocol, a `DeviceBuffer`, or a registered
        `Resource`. `implementation=` selects one of several, by the first word of its name. `out`:
        one target per result in place of new memory: writable memory here, or `DeviceBuffer`s
        only, and then no bytes are returned. Raises OpFailed when the operation fails (the device
        stays usable), Refused when the lane or lease has ended.
        """
        ...

    def run(self, graph: Graph, /, *, iterations: int = 1, **inputs: BufferLike) -> GraphResult:
        """Run a graph `iterations` times in one round trip, with its inputs by their names.

        The first run on a device also sends the graph, and the contents that its host lacks.
        Raises as `op` does; the message names the failed step.
        """
        ...

    def post(
        self, name: str, /, *buffers: BufferLike, out: Sequence[DeviceBuffer] = (), **args: object
    ) -> None:
        """Run an operation without waiting. Later calls, up to and including the next `sync`, raise
        its error; results go to `out`, or are dropped."""
        ...

    def sync(self) -> None:
        """Wait for all posted operations; raises their first error, and clears it."""
        self.op("sync")

    def buffer(self, size: int) -> DeviceBuffer:
        """Allocate `size` bytes on the device. Raises OpFailed(ENOMEM) over the quota."""
        return DeviceBuffer(self, self.op("buffer.new", size=size).values["buffer"], size)

    def data(self, name: str) -> HostData:
        """A data set beside the device, as operations take it: `database=device.data("proteins")`.
        Raises OpFailed(ENOENT) for one that its host lacks."""
        return HostData(self, name)

    def operations(self) -> tuple[str, ...]:
        """The names of this device's operations."""
        return tuple(self.op("operations").values["operations"])

    def close(self) -> None:
        """End the lane and free its buffers. Safe to repeat."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Lane(Device):
    """A device over one connection. Thread-safe; calls are serialised."""

    def __init__(self, stream: Carrier, channel: Channel, info: DeviceInfo) -> None:
        self.info = info
        self._stream = stream
        self._channel = channel
        self._lock = threading.Lock()
        self._call = 0
        self._bare: dict[tuple[str, int], bytearray] = {}  # frames of calls without arguments
        self._gone: Refused | None = None
        self._graphs: set[str] = set()  # already sent
        self._uses = uses_file()
        self._memory: SharedMemory | None = None
        self._may_share = isinstance(stream, socket.socket) and stream.family == socket.AF_UNIX

    @classmethod
    def open(cls, access: Access, index: int = 0) -> Lane:
        """Open a lane to device number `index` of the lease. Raises Refused."""
        devices = access.devices
        if not 0 <= index < len(devices):
            message = f"no device {index}: the lease has {len(devices)}, numbered from 0"
            raise Refused(Refusal.PROTOCOL, message)
        host, info = devices[index]
        stream, channel, _ = open_connection(
            host,
            role=ConnectionRole.LANE,
            lease=access.lease,
            fence=access.fence,
            session=access.session,
            timeout_s=ANSWER_S,
            device=info.index,
        )
        stream.settimeout(None)  # operations have no limit here; the session detects a loss
        if isinstance(stream, socket.socket) and stream.family != socket.AF_UNIX:
            channel = Channel(PromptSocket(stream), FrameLimits())
        channel.limits = FrameLimits()
        return cls(stream, channel, info)

    def op(self, name: str, /, *buffers: BufferLike, out: Out = None, **args: object) -> OpResult:
        """See `Device.op`."""
        with self._lock:
            if self._gone is not None:
                raise self._gone
            try:
                kept = kept_in(out) if out else ()
                call = self._send(name, buffers, args, 0, kept)
                received = self._channel.receive()
                if received is None:
                    raise WireError(_CLOSED)
                header, meta = received
                if header.call != call:
                    raise WireError(_error_of(meta) or f"answer to call {header.call}, not {call}")
                result = self._result(header, meta, None if kept else out)
                if self._uses is not None:
                    self._uses.operation(name, result.implementation)
                return result
            except (OSError, WireError) as error:
                raise self._lose(error) from None

    def run(self, graph: Graph, /, *, iterations: int = 1, **inputs: BufferLike) -> GraphResult:
        """See `Device.run`."""
        return run_graph(self, self._graphs, graph, iterations, inputs)

    def has(self, graph: Graph) -> bool:
        """Whether a graph has run on this lane."""
        return graph.spec.id in self._graphs

    def post(
        self, name: str, /, *buffers: BufferLike, out: Sequence[DeviceBuffer] = (), **args: object
    ) -> None:
        """See `Device.post`."""
        with self._lock:
            if self._gone is not None:
                raise self._gone
            try:
                self._send(name, buffers, args, NO_REPLY, kept_in(out))
            except (OSError, WireError) as error:
                raise self._lose(error) from None

    def close(self) -> None:
        """See `Device.close`."""
        self._gone = self._gone or Refused(Refusal.ENDED, "the device was closed")
        with contextlib.suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._stream.close()
        if self._memory is not None:
            self._memory.close()

    def _send(
        self, name: str, buffers: Sequence[BufferLike], args: Meta, flags: int, kept: Sequence[int]
    ) -> int:
        self._call = self._call % CALL_MAX + 1
        if not buffers and not args and not kept:
            frame = self._bare.get((name, flags))
            if frame is None:
                frame = self._bare[name, flags] = bytearray(pack({"op": name}, flags=flags))
            self._channel.send_bytes(numbered(frame, self._call))
            return self._call
        inputs: list[object] = []
        payload: list[memoryview] = []
        size = 0
        for buffer in buffers:
            if isinstance(buffer, (DeviceBuffer, Resource)):
                inputs.append(buffer.reference)
            else:
                view = memoryview(buffer)
                inputs.append(view.nbytes)
                payload.append(view)
                size += view.nbytes
        if self._may_share and size >= SHARED_BYTES_MIN:
            self._share()
        meta: Meta = {"op": name}
        if args:
            meta["args"] = args
        if inputs:
            meta["in"] = inputs
        if kept:
            meta["keep"] = kept
        self._channel.send(meta, payload, call=self._call, flags=flags)
        return self._call

    def _share(self) -> None:
        from remote_gpu.client.transport.segment import SharedMemory

        self._may_share = False
        assert isinstance(self._stream, socket.socket), "only Unix sockets share memory"
        with contextlib.suppress(WireError):  # the worker offers none
            self._memory = SharedMemory(self._stream, self._call)
            self._channel.segment = self._memory.segment

    def _result(self, header: Header, meta: Meta, out: Out) -> OpResult:
        if len(meta) == 1 and "ran" in meta and out is None and not header.payload_bytes:
            return OpResult({}, [], str(meta["ran"]))
        if isinstance(error := meta.get("error"), dict):
            raise self._failed(error)
        if self._uses is not None and "used" in meta:
            self._uses.host(meta["used"])
        views: list[memoryview] = []
        if header.payload_bytes or "out" in meta or out is not None:
            views = self._receive_results(header, meta, out)
        values = meta.get("ok")
        return OpResult(values if isinstance(values, dict) else {}, views, str(meta.get("ran", "")))

    def _failed(self, error: Meta) -> OpFailed:
        lacks = lacks_in(error)
        if self._uses is not None and lacks:
            self._uses.lacks(lacks)
        return OpFailed(str(error.get("code")), str(error.get("message")), lacks)

    def _receive_results(self, header: Header, meta: Meta, out: Out) -> list[memoryview]:
        sizes = parse_sizes(meta, "out", header.payload_bytes, self._channel.limits)
        try:
            views = new_views(sizes) if out is None else fitting(out, sizes)
        except ValueError:
            self._channel.discard(header.payload_bytes)
            raise
        self._channel.receive_payload(views)
        if self._may_share and header.payload_bytes >= SHARED_BYTES_MIN:
            self._share()
        return views

    def _lose(self, error: Exception) -> Refused:
        """Close a broken connection; this and all later calls raise the returned error."""
        cause = self._last_error() or _CLOSED if isinstance(error, ConnectionError) else error
        lost = Refused(Refusal.ENDED, f"the lane to {self.info.model} ended: {cause}")
        self._gone = self._gone or lost
        self._stream.close()
        return self._gone

    def _last_error(self) -> str:
        with contextlib.suppress(OSError, WireError):
            if (received := self._channel.receive()) is not None:
                return _error_of(received[1])
        return ""


def kept_in(out: Out) -> list[int]:
    """The handles of device buffers for the results; empty if the results are returned."""
    kept = [target.handle for target in out or () if isinstance(target, DeviceBuffer)]
    if kept and len(kept) != len(out or ()):
        raise ValueError("`out` must be either memory here or device buffers, not both")
    return kept


def new_views(sizes: Sequence[int]) -> list[memoryview]:
    """New memory for results of these sizes."""
    return [memoryview(bytearray(size)) for size in sizes]


def fitting(out: Sequence[BufferLike], sizes: Sequence[int]) -> list[memoryview]:
    """The beginnings of the caller's buffers, as long as the results. Raises ValueError."""
    views = flat_views(out)
    enough = [not v.readonly and v.nbytes >= s for v, s in zip(views, sizes, strict=False)]
    if len(views) != len(sizes) or not all(enough):
        raise ValueError(f"results of {sizes} bytes do not fit the buffers of `out`")
    return [view[:size] for view, size in zip(views, sizes, strict=True)]


def _error_of(meta: Meta) -> str:
    """The text of an error frame; "" for any other."""
    error = meta.get("error")
    return f"{error.get('code')}: {error.get('message')}" if isinstance(error, dict) else ""
