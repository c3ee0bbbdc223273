"""Sessions of operations and the resources that they register: models, data, kernel sources.

    with Operations(device, hints=("opencl",)) as operations:
        model = operations.resource("model", "s3://bucket/model.onnx", fetch=from_s3)
        result = operations.run("image_classification", image, model=model)

The function reads a resource, never the host: from bytes, a path, an http(s) address (such as a
presigned one of S3), or `s3://bucket/key` by the caller's `fetch`, because credentials stay in the
function. It is sent once per tenant and host, by its hash, and loaded once per lease; it is freed
with the last session that registered it. An unchanged file is hashed once per process; bytes once
per session, which keeps them until they are released.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntFlag
from itertools import chain
from os import PathLike
from typing import Any, NamedTuple, TypeAlias

from remote_gpu.client.content_ids import ByteIds, FileIds
from remote_gpu.client.graph import Operating
from remote_gpu.client.uses import uses_file
from remote_gpu.wire.errors import OpCode, OpFailed, Refused, invalid
from remote_gpu.wire.frames import BufferLike, Meta, Out, flat_views
from remote_gpu.wire.graphs import content_id

#: The source of a resource: bytes, a path, `https://…`, or `s3://bucket/key`.
Source: TypeAlias = Any
#: Bucket and key → the object's bytes. With boto3, which Lambda's Python has:
#: `lambda bucket, key: boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()`.
Fetch: TypeAlias = "Callable[[str, str], bytes]"

#: Larger models should be host data (`gpud --data`).
RESOURCE_BYTES_MAX = 1 << 31
_FETCH_S = 60.0  #: silence of a server, not the whole transfer
_FILES = FileIds()


@dataclass(frozen=True, slots=True)
class Resource:
    """A content registered in a session: an argument or input of its operations."""

    content: str  #: `sha256:<hex>` of its bytes: its name on the wire and on the host
    type: str  #: model, data or program
    size: int  #: bytes

    @property
    def reference(self) -> dict[str, str]:
        """Its form in the list of inputs: no bytes are sent again."""
        return {"content": self.content}


class Hint(IntFlag):
    """Kinds of implementations, by the bits of vAccel's mask of plugin types."""

    CPU = 0x0001
    GPU = 0x0002
    FPGA = 0x0004
    REMOTE = 0x4000  #: not in this process


#: The kinds of devices of each. Those of `FPGA` have a driver for OpenCL.
_KINDS = {Hint.CPU: ("cpu",), Hint.GPU: ("cuda", "opencl"), Hint.FPGA: ("opencl",)}


class Regions(NamedTuple):
    """The parts of a call's time in its worker, microseconds."""

    queued_us: float  #: waiting for turns on the device; 0 for a call that was joined to others
    copied_us: float  #: receiving inputs, and copying results to resident buffers
    ran_us: float  #: the rest of the operation


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationInfo:
    """The description of one implementation of an operation."""

    name: str
    version: int
    implementation: str  #: its first word is the value of `implementation=`
    kinds: tuple[str, ...]
    arguments: tuple[Meta, ...]  #: name, rule, meaning, and default unless required
    inputs: tuple[dict[str, str], ...]  #: name, dtype, shape, meaning
    outputs: tuple[dict[str, str], ...]
    values: str  #: the JSON values of a result, in words
    limits: dict[str, int]  #: inputs_min, inputs_max, input_bytes_max

    @property
    def id(self) -> str:
        """The name of this implementation for callers."""
        return self.implementation.partition(" ")[0]


class Operations:
    """A session of operations on one device. A lane may have several. Not thread-safe."""

    def __init__(self, device: Operating, *, hints: Sequence[str] | Hint = ()) -> None:
        """`hints`: implementations to prefer over the device's own order, best first, by their
        names (`opencl-blocked`) or the beginning of them (`opencl`); or a mask of kinds. A hint
        that the device lacks is skipped; a call's own `implementation=` is mandatory. Raises
        OpFailed(ENODEV) for `Hint.REMOTE` without a lease.
        """
        self._device = device
        self.update(hints)
        self._known: tuple[OperationInfo, ...] | None = None
        self._byte_ids = ByteIds()
        self._id: int | None = device.op("session.new").values["session"]

    @property
    def id(self) -> int:
        """Its number on the device. Raises OpFailed(EINVAL) once it is closed."""
        if self._id is None:
            raise invalid("this session of operations was closed")
        return self._id

    def update(self, hints: Sequence[str] | Hint) -> None:
        """Replace the hints. Raises as the constructor does."""
        if isinstance(hints, Hint):
            if Hint.REMOTE in hints and not self._device.remote:
                raise OpFailed(OpCode.ENODEV, "Hint.REMOTE needs a leased device")
            self._kinds = {k for hint, kinds in _KINDS.items() if hint in hints for k in kinds}
            self._hints: tuple[str, ...] = ()
        else:
            self._kinds, self._hints = set(), tuple(hints)
        self._preferred: dict[str, str] = {}

    def regions(self) -> Regions:
        """The parts of the newest operation's time on this lane, as vAccel's profiling regions.

        A host before this version raises OpFailed(ENOENT).
        """
        return Regions(**self._device.op("regions").values)

    def describe(self) -> tuple[OperationInfo, ...]:
        """All implementations of the device, by name, best first."""
        if self._known is None:
            described = self._device.op("operations.describe").values["operations"]
            self._known = tuple(_info(meta) for meta in described)
        return self._known

    def run(self, name: str, /, *buffers: BufferLike, out: Out = None, **args: object) -> Any:
        """Run an operation and wait: `Device.op` with resources and hints. Raises as that does."""
        self.id  # noqa: B018 - a closed session runs nothing
        if (self._hints or self._kinds) and "implementation" not in args:
            chosen = self._preference(name)
            if chosen:
                args = {**args, "implementation": chosen}
        named: Meta = {k: v.content if isinstance(v, Resource) else v for k, v in args.items()}
        return self._device.op(name, *buffers, out=out, **named)

    def generic(self, call: Sequence[object], results: int | None = None) -> list[memoryview]:
        """An operation as a list, like vAccel's `genop`: its name, its arguments in their declared
        order, its buffers.

        An item with the buffer protocol is a buffer. `results`: the required number of result
        buffers. Raises OpFailed: ENOTSUP for an unknown name, EINVAL for too many arguments
        or another number of results; and as `run` does.
        """
        if not call or not isinstance(call[0], str):
            raise invalid("a generic call must begin with the operation's name")
        found = next((info for info in self.describe() if info.name == call[0]), None)
        if found is None:
            raise OpFailed(OpCode.ENOTSUP, f"this device has no operation {call[0]!r}")
        buffers = [item for item in call[1:] if _is_buffer(item)]
        given = [item for item in call[1:] if not _is_buffer(item)]
        if len(given) > len(found.arguments):
            names = ", ".join(argument["name"] for argument in found.arguments) or "no arguments"
            raise invalid(f"{call[0]} takes {names}, not {len(given)} arguments")
        args: Meta = {a["name"]: v for a, v in zip(found.arguments, given, strict=False)}
        back: list[memoryview] = self.run(call[0], *buffers, **args).buffers
        if results is not None and len(back) != results:
            raise invalid(f"{call[0]} returned {len(back)} buffers, not {results}")
        return back

    def resource(self, type_: str, source: Source, *, fetch: Fetch | None = None) -> Resource:
        """Register `source` as a `model`, `data` or `program`; sent only if its host lacks it.

        Registering twice counts twice. Raises OpFailed: EINVAL, ENOENT for a path or object that
        cannot be read, E2BIG, ENOMEM.
        """
        session = self.id
        data, status = read_source(source, fetch)
        content = self._content_of(source, data, status)
        resource = Resource(content, type_, data.nbytes)
        if (uses := uses_file()) is not None:
            uses.resource(content, type_, source)
        args: Meta = {"session": session, "type": type_, "content": resource.content}
        if self._device.op("resource.register", **args).values["missing"]:
            self._device.op("content.put", data, content=resource.content)
            if self._device.op("resource.register", **args).values["missing"]:
                raise OpFailed(OpCode.ENOMEM, f"the host does not keep {resource.content}")
        return resource

    def release(self, resource: Resource) -> None:
        """Drop one reference; the lease's last one frees the resource. Raises OpFailed(ENOENT)."""
        self._device.op("resource.release", session=self.id, content=resource.content)
        self._byte_ids.forget(resource.content)

    def sync(self, resource: Resource, source: Source, *, fetch: Fetch | None = None) -> Resource:
        """Register the content that `source` has now in place of the resource, which is released.

        Unchanged content is not sent. Raises as `resource` does, and keeps the old one then.
        """
        newest = self.resource(resource.type, source, fetch=fetch)
        self.release(resource)
        return newest

    def close(self) -> None:
        """End the session and release its resources. Safe to repeat, and after the device's end."""
        if self._id is not None:
            session, self._id = self._id, None
            self._byte_ids.clear()
            with contextlib.suppress(Refused):  # it ended with its lane
                self._device.op("session.free", session=session)

    def __enter__(self) -> Operations:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _content_of(self, source: Source, data: memoryview, status: os.stat_result | None) -> str:
        if status is not None:
            return _FILES.of(status, data)
        return self._byte_ids.of(source, data) if isinstance(source, bytes) else content_id(data)

    def _preference(self, name: str) -> str:
        """The implementation that the hints select; "" for the device's default."""
        if name not in self._preferred:
            there = [info for info in self.describe() if info.name == name]
            named = (one for hint in self._hints for one in there if _matches(one.id, hint))
            masked = (one for one in there if self._kinds.intersection(one.kinds))
            self._preferred[name] = next((one.id for one in chain(named, masked)), "")
        return self._preferred[name]


def read_source(
    source: Source, fetch: Fetch | None = None
) -> tuple[memoryview, os.stat_result | None]:
    """The bytes of a source, and the status of a file; see `Operations.resource`."""
    status = None
    try:
        if isinstance(source, str) and source.startswith("s3://"):
            data = flat_views([_from_s3(source, fetch)])[0]
        elif isinstance(source, str) and source.startswith(("https://", "http://")):
            data = memoryview(_from_web(source))
        elif isinstance(source, (str, PathLike)):
            data, status = _from_file(os.fspath(source))
        else:
            data = flat_views([source])[0]
    except OSError as error:
        raise OpFailed(OpCode.ENOENT, f"{source} cannot be read: {error}") from None
    if not data.nbytes:
        raise invalid("the resource is empty; it must have at least one byte")
    if data.nbytes > RESOURCE_BYTES_MAX:
        message = f"{data.nbytes} bytes; a resource has at most {RESOURCE_BYTES_MAX}"
        raise OpFailed(OpCode.E2BIG, message)
    return data, status


def _from_file(path: str) -> tuple[memoryview, os.stat_result]:
    """Map a file, which is hashed and sent without a copy; with its status before."""
    import mmap  # slow to import; only for files

    with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs a function's start 5 ms
        status = os.fstat(file.fileno())
        if not status.st_size:
            return memoryview(b""), status
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), status


def _from_web(address: str) -> bytes:
    from urllib.request import urlopen  # 30 ms to import; only for addresses

    with urlopen(address, timeout=_FETCH_S) as answer:  # noqa: S310 - scheme checked above  # nosec B310
        body: bytes = answer.read(RESOURCE_BYTES_MAX + 1)
        return body


def _from_s3(address: str, fetch: Fetch | None) -> bytes:
    bucket, _, key = address.removeprefix("s3://").partition("/")
    if not bucket or not key:
        raise invalid(f"{address!r} is not s3://bucket/key")
    if fetch is None:
        message = f"{address}: pass fetch=, a function of bucket and key, or a presigned address"
        raise invalid(message)
    return fetch(bucket, key)


def _is_buffer(item: BufferLike) -> bool:
    if isinstance(item, str):
        return False
    if hasattr(item, "reference"):
        return True
    try:
        memoryview(item).release()
    except TypeError:
        return False
    return True


def _matches(implementation: str, hint: str) -> bool:
    return implementation == hint or implementation.startswith(f"{hint}-")


def _info(meta: Meta) -> OperationInfo:
    """The description of an answer, without the keys of newer versions."""
    values: Meta = {field.name: meta[field.name] for field in fields(OperationInfo)}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return OperationInfo(**{**values, **lists})
