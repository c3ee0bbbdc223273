"""image_detection, image_segmentation, image_pose and image_depth by small models, whose outputs
are the channels of the image or constants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from remote_gpu.client import Local, Operations, OpFailed
from remote_gpu.worker.lane import Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry
from tests.unit.operations.onnx_models import (
    FLOAT,
    INT,
    channels,
    declared,
    model,
    node,
    part,
    png,
    tensor,
    whole,
)

INTS = 7  # AttributeProto.AttributeType
AS_IT_IS: dict[str, Any] = {"mean": [0] * 3, "deviation": [1] * 3}


def brightness() -> bytes:
    """The mean of the channels, items × 4 × 4."""
    axes = part(1, "axes") + whole(8, 1) + whole(20, INTS)
    keep = part(1, "keepdims") + whole(3, 0) + whole(20, INT)
    return model(
        [node("ReduceMean", "x", "y", axes, keep)],
        [],
        declared("y", ("items", 4, 4), FLOAT),
        declared("x", ("items", 3, 4, 4), FLOAT),
    )


def constants(**outputs: Any) -> bytes:
    """Each output whatever the image; calls are not joined."""
    nodes, weights, results = [], [], []
    for name, value in outputs.items():
        array = np.array(value, np.float32)
        sizes = b"".join(whole(1, side) for side in array.shape)
        weights.append(sizes + whole(2, FLOAT) + part(8, f"w{name}") + part(9, array.tobytes()))
        nodes.append(node("Identity", f"w{name}", name))
        results.append(declared(name, array.shape, FLOAT))
    given = declared("x", ("items", 3, 4, 4), FLOAT)
    return model(nodes, weights, results[0], given, *results[1:])


@pytest.fixture(scope="module")
def device() -> Iterator[Local]:
    with Local() as local:
        yield local


@pytest.fixture(scope="module")
def image() -> bytes:
    """8×8 pixels: black, with blocks of 2×2 that become one pixel of 4×4."""
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[2:4, 4:6, 0] = 255  # red
    pixels[6:8, 0:2, 1] = 204  # green
    pixels[0:2, 6:8, 2] = 102  # blue
    return png(Image.fromarray(pixels))


def call(device: Local, image: bytes, name: str, content: bytes, **args: Any) -> Any:
    with Operations(device) as operations:
        given = operations.resource("model", content)
        return operations.run(name, image, model=given, **AS_IT_IS | args)


def test_segmentation(device: Local, image: bytes) -> None:
    result = call(device, image, "image_segmentation", channels(), labels=["r", "g", "b"])
    assert result.values == {
        "width": 8,
        "height": 8,
        "joined": 1,
        "shape": [4, 4],
        "dtype": "uint8",
        "classes": [
            {"class": 0, "label": "r", "share": 0.875},
            {"class": 1, "label": "g", "share": 0.0625},
            {"class": 2, "label": "b", "share": 0.0625},
        ],
    }
    assert list(bytes(result.buffers[0])) == [0, 0, 0, 2, *[0] * 8, 1, 0, 0, 0]
    best = call(device, image, "image_segmentation", channels(), top=1).values["classes"]
    assert best == [{"class": 0, "label": "0", "share": 0.875}]


def test_pose(device: Local, image: bytes) -> None:
    result = call(device, image, "image_pose", channels(), labels=["r", "g", "b"])
    assert result.values["points"] == [
        {"point": 0, "label": "r", "confidence": 1.0, "x": 5.0, "y": 3.0},
        {"point": 1, "label": "g", "confidence": 0.8, "x": 1.0, "y": 7.0},
        {"point": 2, "label": "b", "confidence": 0.4, "x": 7.0, "y": 1.0},
    ]
    assert result.buffers == []


def test_depth(device: Local, image: bytes) -> None:
    result = call(device, image, "image_depth", brightness())
    values = result.values
    assert (values["shape"], values["joined"]) == ([4, 4], 1)
    assert (values["minimum"], values["maximum"]) == (0, pytest.approx(1 / 3))
    depths = np.frombuffer(result.buffers[0], np.float32).reshape(4, 4)
    expected = np.zeros((4, 4))
    expected[1, 2], expected[3, 0], expected[0, 3] = 1 / 3, 0.8 / 3, 0.4 / 3
    np.testing.assert_allclose(depths, expected, atol=1e-6)


#: In pixels of the model's input, 4×4: x, y, width, height, two classes.
YOLO = [[[1, 1, 3], [1, 1, 3], [2, 2, 4], [2, 2, 2], [0.75, 0.5, 0], [0, 0, 0.5]]]
BOX = {"class": 0, "label": "0", "confidence": 0.75, "box": [0, 0, 4, 4]}


def test_detection(device: Local, image: bytes) -> None:
    other = {"class": 1, "label": "1", "confidence": 0.5, "box": [2, 4, 8, 8]}
    pair = constants(boxes=[[[0, 0, 0.5, 0.5]]], scores=[[[0.1, 0.75]]], masks=[[[0]]])
    for content, args, expected in (
        (constants(y=YOLO), {}, [BOX, other]),
        (constants(y=YOLO), {"overlap": 1, "top": 2}, [BOX, BOX | {"confidence": 0.5}]),
        (constants(y=YOLO), {"min_confidence": 0.6, "labels": ["a", "b"]}, [BOX | {"label": "a"}]),
        (pair, {"unit": "fractions"}, [BOX | {"class": 1, "label": "1"}]),
        (pair, {"unit": "fractions", "outputs": ["scores", "boxes"], "background": 1}, []),
        (
            pair,
            {"unit": "fractions", "boxes": "centers"},
            [BOX | {"class": 1, "label": "1", "box": [0, 0, 2, 2]}],
        ),
    ):
        result = call(device, image, "image_detection", content, **args)
        assert result.values == {"width": 8, "height": 8, "joined": 1, "objects": expected}


@pytest.mark.parametrize(
    ("name", "content", "args", "why"),
    [
        ("image_detection", channels(), {}, r"EINVAL.*\(4\+C\)×N.*1×3×4×4"),
        ("image_detection", constants(y=YOLO), {"labels": ["a"]}, "EINVAL.*2 classes"),
        ("image_detection", constants(y=YOLO), {"outputs": ["z"]}, "EINVAL.*'outputs'"),
        ("image_detection", constants(y=YOLO), {"outputs": []}, "EINVAL.*'outputs'"),
        ("image_segmentation", brightness(), {}, "EINVAL.*1 classes, not 2…65536.*1×4×4"),
        ("image_segmentation", channels(), {"labels": ["a"]}, "EINVAL.*3 classes"),
        ("image_pose", channels(), {"labels": ["a"]}, "EINVAL.*3 key points"),
        ("image_depth", channels(), {}, "EINVAL.*height×width.*1×3×4×4"),
        ("image_depth", channels("side"), {"width": 4}, "EINVAL.*any height"),
        ("image_depth", channels(), {"width": 5}, "EINVAL.*width is 4, not 5"),
        ("image_depth", constants(y=[[0, float("nan")]]), {}, "EINVAL.*not finite"),
        (
            "image_depth",
            model([node("Identity", "w", "y")], [tensor("w", 1, part(9, b"1"))], 1),
            {},
            "ENOTSUP.*one float32 input",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    device: Local, image: bytes, name: str, content: bytes, args: dict[str, Any], why: str
) -> None:
    with pytest.raises(OpFailed, match=why):
        call(device, image, name, content, **args)


@pytest.mark.parametrize(("limit_mib", "fits"), [(4, False), (16, False), (64, True)])
def test_memory_is_reserved_for_the_input_and_for_the_reading(
    tmp_path: Path, image: bytes, limit_mib: int, fits: bool
) -> None:
    """An input of 512×512 takes 9 MiB, and reading an output of that size 20."""
    path = tmp_path / "channels.onnx"
    path.write_bytes(channels("side"))
    quota = Quota(limit_mib << 20)
    runner = Runner(load_registry(["image_models"]), Context(quota=quota, data={"model": path}))
    args = {"model": "data:model", "width": 512, "height": 512}
    try:
        runner.run("image_segmentation", args, [memoryview(image)])
        code = ""
    except OpFailed as failed:
        code = failed.code
    assert code == ("" if fits else "ENOMEM")
    assert quota.used_bytes == 0
