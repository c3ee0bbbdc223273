"""Graphs: steps over named buffers, as data; sent once, then run in one round trip.

The form of KaaS's kernel graphs: a buffer has a role, a step is a kernel of the graph's one source
or a trusted operation, and the whole runs `iterations` times. Both ends of a lane use these values;
`Spec.from_meta` makes every check that needs no device.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from remote_gpu.wire.errors import invalid
from remote_gpu.wire.frames import BufferLike, Meta, encode_meta

BUFFERS_MAX = 64  #: of one graph: the limit of one frame
STEPS_MAX = 4096
ARGUMENTS_MAX = 64
ITERATIONS_MAX = 1_000_000
#: Index arithmetic of kernels is often 32 bit.
SIZE_MAX = 2**31 - 1
BUFFER_BYTES_MAX = 1 << 40
NAME_CHARS_MAX = 128
CONTENT_PREFIX = "sha256:"


class BufferRole(StrEnum):
    """The role of a buffer in its graph."""

    INPUT = "input"  #: sent with every run
    OUTPUT = "output"  #: returned by every run
    INOUT = "inout"  #: sent, changed and returned
    TEMPORARY = "temporary"  #: stays on the device; undefined when a run begins
    CONSTANT = "constant"  #: sent once, by its hash; steps must not write it


#: Scalars by their name in OpenCL C, with the code of `struct`.
SCALARS: Mapping[str, str] = {
    "int": "i",
    "uint": "I",
    "long": "q",
    "ulong": "Q",
    "float": "f",
    "double": "d",
}


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number with its type on the device."""

    kind: str  #: one of `SCALARS`
    value: int | float


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that the work items of one group share: OpenCL's `__local`, CUDA's `__shared__`."""

    size: int  #: bytes


#: A buffer by its name, a scalar, or memory shared by a group.
Argument: TypeAlias = "str | Scalar | Shared"


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of a graph."""

    name: str
    role: BufferRole
    size: int  #: bytes
    content: str = ""  #: of a constant: "sha256:<hex>"


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel over a grid of work items."""

    kernel: str
    global_size: tuple[int, ...]  #: work items in each of 1…3 dimensions
    local_size: tuple[int, ...]  #: of one group; divides the global size
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class OperationCall:
    """One trusted operation on buffers of the graph."""

    operation: str
    arguments: Mapping[str, object]
    inputs: tuple[str, ...]  #: names of buffers
    outputs: tuple[str, ...]  #: buffers for its results, of equal sizes


Step: TypeAlias = "Launch | OperationCall"


@dataclass(frozen=True)
class Spec:
    """A whole graph. Only `from_meta` checks it."""

    source: str  #: content id of the kernels' source; "" when there is no kernel
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]

    @functools.cached_property
    def id(self) -> str:
        """The hash that names the graph on a lane."""
        return content_id(encode_meta(self.to_meta()))

    @property
    def contents(self) -> tuple[str, ...]:
        """The contents that the host needs for a run."""
        constants = (
            buffer.content for buffer in self.buffers if buffer.role is BufferRole.CONSTANT
        )
        return tuple(dict.fromkeys(filter(None, (self.source, *constants))))

    def with_role(self, *roles: BufferRole) -> tuple[Buffer, ...]:
        """The buffers of these roles, in the order of payloads."""
        return tuple(buffer for buffer in self.buffers if buffer.role in roles)

    def to_meta(self) -> Meta:
        """The graph as JSON."""
        return {
            "source": self.source,
            "buffers": [[b.name, b.role.value, b.size, b.content] for b in self.buffers],
            "steps": [_step_to_meta(step) for step in self.steps],
        }

    @classmethod
    def from_meta(cls, meta: object) -> Spec:
        """Raises OpFailed(EINVAL) naming the first fault."""
        value = _object(meta, "graph", ("source", "buffers", "steps"))
        buffers = tuple(_buffer(item) for item in _list(value["buffers"], "buffers", BUFFERS_MAX))
        names = {buffer.name: buffer for buffer in buffers}
        if len(names) < len(buffers):
            raise invalid("two buffers of one graph have the same name")
        items = _list(value["steps"], "steps", STEPS_MAX)
        if not items:
            raise invalid("a graph has at least one step")
        steps = tuple(_step(item, names, number) for number, item in enumerate(items, 1))
        source = value["source"]
        if any(isinstance(step, Launch) for step in steps) or source != "":
            check_content_id(source)
        return cls(source, buffers, steps)


def content_id(data: BufferLike) -> str:
    """`sha256:<hex>` of bytes: the name of a source, a constant or a graph."""
    return CONTENT_PREFIX + hashlib.sha256(data).hexdigest()


def check_content_id(value: object) -> str:
    """Raises OpFailed(EINVAL) for anything but `sha256:` and 64 hex digits."""
    prefix, digits = str(value)[: len(CONTENT_PREFIX)], str(value)[len(CONTENT_PREFIX) :]
    if prefix != CONTENT_PREFIX or len(digits) != 64 or set(digits) - set("0123456789abcdef"):
        raise invalid(f"{str(value)[:80]!r} is not sha256:<64 hex digits>")
    return str(value)


def _step_to_meta(step: Step) -> Meta:
    if isinstance(step, OperationCall):
        return {
            "op": step.operation,
            "args": dict(step.arguments),
            "in": list(step.inputs),
            "out": list(step.outputs),
        }
    return {
        "kernel": step.kernel,
        "global": list(step.global_size),
        "local": list(step.local_size),
        "args": [_argument_to_meta(argument) for argument in step.arguments],
    }


def _argument_to_meta(argument: Argument) -> object:
    if isinstance(argument, Scalar):
        return [argument.kind, argument.value]
    return ["shared", argument.size] if isinstance(argument, Shared) else argument


def _buffer(item: object) -> Buffer:
    fields = _list(item, "a buffer", 4)
    if len(fields) != 4:
        raise invalid("a buffer is [name, role, bytes, content]")
    name, role, size, content = fields
    known = _name(name, "a buffer")
    if not isinstance(role, str) or role not in tuple(BufferRole):
        raise invalid(f"buffer {known!r}: role {role!r} is not one of {', '.join(BufferRole)}")
    if role != BufferRole.CONSTANT and content != "":
        raise invalid(f"buffer {known!r}: only a constant has a content")
    constant = check_content_id(content) if role == BufferRole.CONSTANT else ""
    return Buffer(
        known, BufferRole(role), _whole(size, f"bytes of {known!r}", 1, BUFFER_BYTES_MAX), constant
    )


def _step(item: object, buffers: Mapping[str, Buffer], number: int) -> Step:
    where = f"step {number}"
    if isinstance(item, dict) and "op" in item:
        return _call(item, buffers, where)
    value = _object(item, where, ("kernel", "global", "local", "args"))
    global_size = _sizes(value["global"], f"{where}: global")
    local_size = _sizes(value["local"], f"{where}: local")
    if len(global_size) != len(local_size):
        raise invalid(f"{where}: global and local have different dimensions")
    for whole, part in zip(global_size, local_size, strict=True):
        if whole % part:
            raise invalid(f"{where}: a group of {part} does not divide {whole}; pad the grid")
    arguments = _list(value["args"], f"{where}: args", ARGUMENTS_MAX)
    return Launch(
        _name(value["kernel"], where),
        global_size,
        local_size,
        tuple(_argument(argument, buffers, where) for argument in arguments),
    )


def _call(item: Meta, buffers: Mapping[str, Buffer], where: str) -> OperationCall:
    value = _object(item, where, ("op", "args", "in", "out"))
    if not isinstance(value["args"], dict):
        raise invalid(f"{where}: args of an operation must be an object")
    ends: list[tuple[str, ...]] = []
    for key in ("in", "out"):
        names = _list(value[key], f"{where}: {key}", BUFFERS_MAX)
        ends.append(tuple(_known(name, buffers, where) for name in names))
    return OperationCall(_name(value["op"], where), value["args"], ends[0], ends[1])


def _argument(value: object, buffers: Mapping[str, Buffer], where: str) -> Argument:
    if isinstance(value, str):
        return _known(value, buffers, where)
    pair = _list(value, f"{where}: an argument", 2)
    if len(pair) == 2 and pair[0] == "shared":
        return Shared(_whole(pair[1], f"{where}: shared bytes", 1, SIZE_MAX))
    if len(pair) != 2 or not isinstance(pair[0], str) or pair[0] not in SCALARS:
        kinds = ", ".join((*SCALARS, "shared"))
        raise invalid(f"{where}: an argument is a buffer's name or [one of {kinds}, value]")
    return Scalar(pair[0], _number(pair[0], pair[1], where))


def _number(kind: str, value: object, where: str) -> int | float:
    if kind in ("float", "double"):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid(f"{where}: {str(value)[:80]!r} is not a {kind}")
        try:
            struct.pack("<" + SCALARS[kind], value)  # native order makes infinity of it
        except (OverflowError, struct.error):
            raise invalid(f"{where}: the number is too large for a {kind}") from None
        return float(value)
    bits = 32 if kind.endswith("int") else 64
    least, most = (0, 2**bits - 1) if kind[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return _whole(value, f"{where}: a {kind}", least, most)


def _known(name: object, buffers: Mapping[str, Buffer], where: str) -> str:
    if not isinstance(name, str) or name not in buffers:
        raise invalid(f"{where}: this graph has no buffer {str(name)[:80]!r}")
    return name


def _sizes(value: object, what: str) -> tuple[int, ...]:
    sizes = tuple(_whole(size, what, 1, SIZE_MAX) for size in _list(value, what, 3))
    if not sizes:
        raise invalid(f"{what} has 1 to 3 dimensions")
    return sizes


def _object(value: object, what: str, keys: Sequence[str]) -> Meta:
    if not isinstance(value, dict) or sorted(value) != sorted(keys):
        raise invalid(f"{what} must be an object with {', '.join(keys)}")
    return value


def _list(value: object, what: str, most: int) -> list[object]:
    if not isinstance(value, list) or len(value) > most:
        raise invalid(f"{what} must be a list of at most {most}")
    return value


def _name(value: object, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= NAME_CHARS_MAX:
        raise invalid(f"{what}: a name has 1…{NAME_CHARS_MAX} characters")
    return value


def _whole(value: object, what: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise invalid(f"{what} must be an integer of {least}…{most}, not {str(value)[:40]}")
    return value
