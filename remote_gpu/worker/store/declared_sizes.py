"""The declared sizes of a model's tensors, read from ONNX without loading it. Pure.

A few bytes can declare a tensor of terabytes, which a library allocates when it loads or runs the
model. Sizes that depend on inputs are not declared; the kernel's limit applies to them at run time.
Field numbers are those of onnx.proto; a damaged model is read up to the damage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from remote_gpu.wire.errors import OpCode, OpFailed

#: Fields to read; a model of a gigabyte has some ten thousand.
_FIELDS_MAX = 1_000_000
#: Of nested graphs, in attributes of nodes.
_DEPTH_MAX = 8
#: Bytes of one element by TensorProto.DataType; 0 for others (strings, 4 bit).
_ITEM_BYTES: Mapping[int, int] = {
    1: 4,
    2: 1,
    3: 1,
    4: 2,
    5: 2,
    6: 4,
    7: 8,
    9: 1,
    10: 2,
    11: 8,
    12: 4,
    13: 8,
    14: 8,
    15: 16,
    16: 2,
}
_FLOAT, _INT64 = 1, 7


def check_declared_sizes(model: memoryview, limit_bytes: int) -> None:
    """Raises OpFailed(ENOMEM) for a model with a declared tensor above the lease's memory."""
    for name, size in declared_sizes(model):
        if size > limit_bytes:
            message = (
                f"the model declares a tensor {name[:80]!r} of {size} bytes; the lease has"
                f" {limit_bytes}: request more memory_mib"
            )
            raise OpFailed(OpCode.ENOMEM, message)


def declared_sizes(model: memoryview) -> Iterator[tuple[str, int]]:
    """Names and bytes of the declared tensors, then of all weights together."""
    walk = _Walk()
    weights = 0
    for number, value in walk.parts(model.cast("B")):
        if number == 7:
            for kind, name, size in walk.graph(value, 0):
                weights += size if kind == "weight" else 0
                yield name, size
    yield "all weights", weights


@dataclass(slots=True)
class _Tensor:
    name: str = ""
    kind: int = _FLOAT
    sides: list[int] = field(default_factory=list)
    values: list[int] = field(default_factory=list)  #: of a tensor of int64

    @property
    def bytes(self) -> int:
        return _bytes(self.sides, self.kind)


class _Walk:
    """One walk over a model."""

    def __init__(self) -> None:
        self._left = _FIELDS_MAX

    def fields(self, data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
        """Number and value of each field; ends at malformed data."""
        at = 0
        while 0 <= at < len(data) and self._left:
            self._left -= 1
            key, at = _varint(data, at)
            wire = key & 7
            if wire == 0:
                value, at = _varint(data, at)
                if at < 0:
                    return
                yield key >> 3, value
                continue
            size = {1: 8, 5: 4}.get(wire, -1)
            if wire == 2:
                size, at = _varint(data, at)
            if at < 0 or size < 0 or at + size > len(data):
                return
            yield key >> 3, data[at : at + size]
            at += size

    def parts(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """The fields that are messages, texts or packed numbers."""
        for number, value in self.fields(data):
            if isinstance(value, memoryview):
                yield number, value

    def graph(self, data: memoryview, depth: int) -> Iterator[tuple[str, str, int]]:
        """The tensors of a GraphProto: ("weight" | "value", name, bytes)."""
        if depth > _DEPTH_MAX:
            return
        known: dict[str, list[int]] = {}
        nodes: list[memoryview] = []
        for number, value in self.parts(data):
            if number == 5:
                tensor = self._tensor(value)
                known[tensor.name] = tensor.values
                yield "weight", tensor.name, tensor.bytes
            elif number in (11, 12, 13):
                name, size = self._declared(value)
                yield "value", name, size
            elif number == 1:
                nodes.append(value)
        for node in nodes:
            yield from self._node(node, known, depth)

    def _node(
        self, data: memoryview, known: dict[str, list[int]], depth: int
    ) -> Iterator[tuple[str, str, int]]:
        inputs: list[str] = []
        outputs: list[str] = []
        operator, item = "", _Tensor()
        for number, value in self.parts(data):
            if number in (1, 2):
                (inputs if number == 1 else outputs).append(_text(value))
            elif number == 4:
                operator = _text(value)
            elif number == 5:
                for inner, part in self.parts(value):
                    if inner == 5:
                        item = self._tensor(part)
                    elif inner == 6:
                        yield from self.graph(part, depth + 1)
        name = outputs[0] if outputs else operator
        if operator == "Constant":
            known[name] = item.values
            yield "weight", name, item.bytes
        elif operator == "ConstantOfShape" and inputs:
            yield "value", name, _bytes(known.get(inputs[0], [0]), item.kind)
        elif operator == "Expand" and len(inputs) > 1:
            yield "value", name, prod(known.get(inputs[1], [0]))  # at least a byte each

    def _tensor(self, data: memoryview) -> _Tensor:
        tensor = _Tensor()
        raw: memoryview | None = None
        for number, value in self.fields(data):
            if number in (1, 7):
                numbers = tensor.sides if number == 1 else tensor.values
                numbers += [value] if isinstance(value, int) else self._packed(value)
            elif number == 2 and isinstance(value, int):
                tensor.kind = value
            elif number == 8 and isinstance(value, memoryview):
                tensor.name = _text(value)
            elif number == 9 and isinstance(value, memoryview):
                raw = value
        if tensor.kind == _INT64 and raw is not None and len(raw) <= 8 * 64:  # sides of a shape
            ends = range(8, len(raw) + 1, 8)
            tensor.values = [int.from_bytes(raw[end - 8 : end], "little") for end in ends]
        return tensor

    def _packed(self, data: memoryview) -> list[int]:
        numbers: list[int] = []
        at = 0
        while 0 <= at < len(data) and self._left:
            self._left -= 1
            number, at = _varint(data, at)
            numbers.append(number)
        return numbers

    def _declared(self, data: memoryview) -> tuple[str, int]:
        """Name and bytes of a ValueInfoProto; 0 bytes with a free side."""
        name, kind = "", 0
        sides: list[int] | None = None
        for number, value in self.parts(data):
            if number == 1:
                name = _text(value)
            elif number == 2:
                for inner, part in self.parts(value):
                    if inner == 1:
                        kind, sides = self._typed(part)
        return name, 0 if sides is None else _bytes(sides, kind)

    def _typed(self, data: memoryview) -> tuple[int, list[int] | None]:
        kind, sides = 0, None
        for number, value in self.fields(data):
            if number == 1 and isinstance(value, int):
                kind = value
            elif number == 2 and isinstance(value, memoryview):
                sides = [self._side(dim) for inner, dim in self.parts(value) if inner == 1]
        return kind, sides

    def _side(self, data: memoryview) -> int:
        fields = self.fields(data)
        return next((part for at, part in fields if at == 1 and isinstance(part, int)), 0)


def _bytes(sides: list[int], kind: int) -> int:
    if any(side >> 63 for side in sides):  # negative: refused by the library
        return 0
    return prod(sides) * _ITEM_BYTES.get(kind, 0)


def _text(data: memoryview) -> str:
    return str(data, "utf-8", "replace")


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The unsigned 64-bit number at `at`, and the next position; (0, -1) without one."""
    number = 0
    for shift in range(0, 70, 7):
        if not 0 <= at < len(data):
            return 0, -1
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
    return 0, -1
