"""The operation image_classification, by the real classifier of text directions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from operations.recognition.engine import model_paths
from remote_gpu.client import Local, Operations, OpFailed
from tests.unit.operations.onnx_models import png

IMAGES = Path(__file__).resolve().parents[3] / "fdl/examples/text-recognition/input"
CLASSIFIER: dict[str, Any] = {
    "width": 192,
    "height": 48,
    "mean": [0.5] * 3,
    "deviation": [0.5] * 3,
    "scores": "probabilities",
}


@pytest.fixture(scope="module")
def device() -> Iterator[Local]:
    with Local() as local:
        yield local


@pytest.fixture(scope="module")
def line() -> Image.Image:
    """One line of text."""
    with Image.open(IMAGES / "sign.png") as image:
        return image.convert("RGB").crop((0, 0, image.width, image.height // 2))


def test_upright_and_turned(device: Local, line: Image.Image) -> None:
    for image, label in ((line, "upright"), (line.rotate(180), "turned")):
        values, scores, ran = device.op("image_classification", png(image))
        assert (values["width"], values["height"]) == line.size
        best, other = values["classes"]
        assert best["label"] == label
        assert best["probability"] > 0.8
        assert best["probability"] + other["probability"] == pytest.approx(1, abs=1e-5)
        assert np.frombuffer(scores[0], np.float32)[best["class"]] == pytest.approx(
            best["probability"], abs=1e-5
        )
        assert ran.startswith("onnxruntime")


def test_a_registered_model_classifies(device: Local, line: Image.Image) -> None:
    given = png(line.resize((192, 48)))
    with Operations(device) as operations:
        model = operations.resource("model", model_paths()["Cls"])
        mine = operations.run("image_classification", given, model=model, **CLASSIFIER)
        labelled = operations.run(
            "image_classification", given, model=model, labels=["a", "b"], top=1, **CLASSIFIER
        )
        logits = operations.run(
            "image_classification", given, model=model, **CLASSIFIER | {"scores": "logits"}
        )
        for args, why in (
            (CLASSIFIER | {"width": 0}, "any width"),
            (CLASSIFIER | {"mean": [1]}, "three numbers"),
            (CLASSIFIER | {"labels": ["one"]}, "2 classes"),
            (CLASSIFIER | {"labels": 5}, "labels"),
            (CLASSIFIER | {"deviation": [0, 1, 1]}, "three numbers"),
            (CLASSIFIER | {"scores": "both"}, "one of"),
        ):
            with pytest.raises(OpFailed, match=why):
                operations.run("image_classification", given, model=model, **args)
    assert mine.values["classes"][0]["label"] == "0"
    assert [one["label"] for one in labelled.values["classes"]] == ["a"]
    assert (
        0.5 < logits.values["classes"][0]["probability"] < mine.values["classes"][0]["probability"]
    )


def test_batched_calls_equal_separate_calls(device: Local, line: Image.Image) -> None:
    with Operations(device) as operations:
        model = operations.resource("model", model_paths()["Cls"])
        tensor = np.random.default_rng(3).standard_normal((4, 3, 48, 192), dtype=np.float32)
        described = {"name": "x", "shape": [4, 3, 48, 192]}
        together = operations.run("onnx", tensor, model=model, inputs=[described], batch=True)
        assert together.values["joined"] == 1
        alone = [
            operations.run(
                "onnx",
                one,
                model=model,
                inputs=[described | {"shape": [1, 3, 48, 192]}],
                batch=True,
            ).buffers[0]
            for one in tensor
        ]
        expected = np.frombuffer(b"".join(alone), np.float32)
        np.testing.assert_allclose(np.frombuffer(together.buffers[0], np.float32), expected, 1e-5)
        with pytest.raises(OpFailed, match="number of items"):
            operations.run(
                "onnx",
                b"",
                model=model,
                inputs=[described | {"shape": [0, 3, 48, 192]}],
                batch=True,
            )


def test_other_bytes_than_an_image_are_refused(device: Local) -> None:
    for data in (b"", b"GIF89a", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(OpFailed, match="EINVAL"):
            device.op("image_classification", data)
    with pytest.raises(OpFailed, match="ENOENT"):
        device.op("image_classification", b"", model="data:nothing")
