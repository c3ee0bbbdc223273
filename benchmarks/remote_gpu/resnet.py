"""ResNet-50 as an ONNX file, with weights from a seed: for timing only.

The topology is the real one (He et al. 2015, stride in the 3×3 convolutions, batch normalisation
folded into them), so a run costs what a trained one costs. Written by hand because nothing here
needs the `onnx` package otherwise: a model file is a protocol buffer of a few kinds of fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

_FLOAT, _INTS, _INT = 1, 7, 2  #: TensorProto.FLOAT; AttributeProto.INTS, INT
_OPSET = 13
_BLOCKS = ((64, 3), (128, 4), (256, 6), (512, 3))  #: width and number of each stage's blocks
CLASSES = 1000


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(parts) + bytes([value])


def _bytes(number: int, value: bytes | str) -> bytes:
    body = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(body)) + body


def _whole(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


class _Net:
    """A graph under construction; every node's output is named after its number."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        self._nodes: list[bytes] = []
        self._weights: list[bytes] = []

    def add(self, kind: str, *inputs: str, **attributes: int | list[int]) -> str:
        name = f"t{len(self._nodes)}"
        node = b"".join(_bytes(1, one) for one in inputs) + _bytes(2, name) + _bytes(4, kind)
        self._nodes.append(node + b"".join(_attribute(k, v) for k, v in attributes.items()))
        return name

    def conv(self, x: str, inputs: int, outputs: int, side: int, stride: int = 1) -> str:
        fan = inputs * side * side
        weight = self._weight([outputs, inputs, side, side], fan)
        bias, pad = self._weight([outputs], fan), side // 2
        return self.add(
            "Conv",
            x,
            weight,
            bias,
            kernel_shape=[side] * 2,
            strides=[stride] * 2,
            pads=[pad] * 4,
        )

    def block(self, x: str, inputs: int, width: int, stride: int) -> str:
        """Three convolutions and a shortcut."""
        y = self.add("Relu", self.conv(x, inputs, width, 1))
        y = self.add("Relu", self.conv(y, width, width, 3, stride))
        y = self.conv(y, width, 4 * width, 1)
        if inputs != 4 * width:
            x = self.conv(x, inputs, 4 * width, 1, stride)
        return self.add("Relu", self.add("Add", x, y))

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        weight = self._weight([inputs, outputs], inputs)
        return self.add("Gemm", x, weight, self._weight([outputs], inputs))

    def model(self, output: str, image: list[int], scores: int) -> Iterator[bytes]:
        """The file: from `image`, of these sizes per item, to so many `scores`."""
        nodes = [*self._nodes, _bytes(1, output) + _bytes(2, "scores") + _bytes(4, "Identity")]
        graph = b"".join(_bytes(1, node) for node in nodes) + _bytes(2, "seeded")
        graph += b"".join(_bytes(5, weight) for weight in self._weights)
        graph += _bytes(11, _value("image", image)) + _bytes(12, _value("scores", [scores]))
        yield _whole(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _whole(2, _OPSET))

    def _weight(self, shape: list[int], fan: int) -> str:
        name = f"w{len(self._weights)}"
        values = self._random.standard_normal(shape, dtype=np.float32) * np.float32(
            (1 / fan) ** 0.5
        )
        dims = b"".join(_whole(1, side) for side in shape)
        tensor = dims + _whole(2, _FLOAT) + _bytes(8, name) + _bytes(9, values.tobytes())
        self._weights.append(tensor)
        return name


def _attribute(name: str, value: int | list[int]) -> bytes:
    if isinstance(value, int):
        return _bytes(5, _bytes(1, name) + _whole(20, _INT) + _whole(3, value))
    numbers = b"".join(_whole(8, one) for one in value)
    return _bytes(5, _bytes(1, name) + _whole(20, _INTS) + numbers)


def _value(name: str, shape: list[int]) -> bytes:
    """A float32 tensor whose first dimension counts items."""
    dims = _bytes(1, _bytes(2, "items")) + b"".join(_bytes(1, _whole(1, side)) for side in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _whole(1, _FLOAT) + _bytes(2, dims)))


def write_resnet50(path: Path, seed: int = 50) -> None:
    """Write the model: some 102 MB, 25.5 million weights."""
    net = _Net(seed)
    x = net.add("Relu", net.conv("image", 3, 64, 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inputs = 64
    for stage, (width, count) in enumerate(_BLOCKS):
        for number in range(count):
            x = net.block(x, inputs, width, 2 if stage and not number else 1)
            inputs = 4 * width
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    with path.open("wb") as file:
        file.writelines(net.model(net.dense(x, inputs, CLASSES), [3, 224, 224], CLASSES))


def write_dense(path: Path, layers: int, side: int, seed: int) -> None:
    """Write a model of equal dense layers: four bytes × side² for each."""
    net = _Net(seed)
    x = "image"
    for _ in range(layers):
        x = net.add("Relu", net.dense(x, side, side))
    with path.open("wb") as file:
        file.writelines(net.model(x, [side], side))
