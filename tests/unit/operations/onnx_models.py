"""Small ONNX models as protobuf by hand, and images for them."""

from __future__ import annotations

import io
from collections.abc import Sequence

from PIL import Image

FLOAT, UINT8, INT64, STRING = 1, 2, 7, 8  # TensorProto.DataType
INT, TENSOR, GRAPH = 2, 4, 5  # AttributeProto.AttributeType


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def whole(field: int, number: int) -> bytes:
    return varint(field << 3) + varint(number)


def part(field: int, *parts: bytes | str) -> bytes:
    body = b"".join(one.encode() if isinstance(one, str) else one for one in parts)
    return varint(field << 3 | 2) + varint(len(body)) + body


def tensor(name: str, size: int, *data: bytes, kind: int = UINT8) -> bytes:
    return whole(1, size) + whole(2, kind) + part(8, name) + b"".join(data)


def beside(place: str, size: int) -> bytes:
    """The data of a tensor lies in a file."""
    told = {"location": place, "offset": "0", "length": str(size)}
    return b"".join(part(13, part(1, k), part(2, v)) for k, v in told.items()) + whole(14, 1)


def declared(name: str, sizes: int | str | Sequence[int | str], kind: int = UINT8) -> bytes:
    """One size, or all of them; a name is a free one."""
    sizes = [sizes] if isinstance(sizes, int | str) else sizes
    sides = [part(1, whole(1, one) if isinstance(one, int) else part(2, one)) for one in sizes]
    return part(1, name) + part(2, part(1, whole(1, kind) + part(2, *sides)))


def node(op: str, inputs: str, output: str, *attributes: bytes) -> bytes:
    ins = b"".join(part(1, one) for one in inputs.split())
    return ins + part(2, output) + part(4, op) + b"".join(part(5, one) for one in attributes)


def graph(nodes: list[bytes], weights: list[bytes], *results: int | bytes) -> bytes:
    body = b"".join(part(1, one) for one in nodes) + part(2, "g")
    outputs = [declared("y", one) if isinstance(one, int) else one for one in results]
    return body + b"".join(part(5, one) for one in weights) + b"".join(part(12, o) for o in outputs)


def model(
    nodes: list[bytes],
    weights: list[bytes],
    result: int | bytes,
    given: bytes = b"",
    *results: bytes,
) -> bytes:
    """`result`: the declared `y`, or its size; `given`: the declared input; `results`: others."""
    whole_graph = graph(nodes, weights, result, *results) + (part(11, given) if given else b"")
    return whole(1, 8) + part(7, whole_graph) + part(8, part(1, ""), whole(2, 17))


def channels(side: int | str = 4) -> bytes:
    """The image itself: three channels, red first; calls may be joined."""
    shape = ("items", 3, side, side)
    return model(
        [node("Identity", "x", "y")], [], declared("y", shape, FLOAT), declared("x", shape, FLOAT)
    )


def png(image: Image.Image) -> bytes:
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()
