"""The operation text_recognition, without network access."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from operations.plugins.text_recognition import TextRecognition
from operations.recognition import engine
from operations.recognition.image import decode
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context

IMAGES = Path(__file__).resolve().parents[3] / "fdl/examples/text-recognition/input"
TEXTS = {
    "invoice.png": "Invoice 2024-0117\nTotal: 1,284.50 EUR\nDue on 31 March\n",
    "notice.png": "A function has no GPU of its own.\nIt borrows one for a single job,\n"
    "and gives it back when it is done.\n",
    "sign.png": "PLATFORM 7\nTrains to Valencia\n",
}


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("text recognition went to the network")

    context = Context()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("getaddrinfo", "create_connection"):
            patch.setattr(socket, name, refuse)
        patch.setattr(socket.socket, "connect", refuse)
        TextRecognition().prepare(context)
        yield context


def recognize(context: Context, data: bytes, **args: Any) -> tuple[dict[str, Any], str]:
    values, buffers = TextRecognition().run(context, args, [memoryview(data)])
    return values, bytes(buffers[0]).decode()


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    target = io.BytesIO()
    image.save(target, kind)
    return target.getvalue()


def blank(size: tuple[int, int]) -> bytes:
    """A large image of one colour, small as a file."""
    return encoded(Image.new("1", size))


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_the_examples_are_recognised(context: Context, name: str) -> None:
    data = (IMAGES / name).read_bytes()
    values, text = recognize(context, data)
    assert text == TEXTS[name]
    assert recognize(context, data) == (values, text)
    assert all(0.9 < line["confidence"] <= 1 for line in values["lines"])
    for line in values["lines"]:
        assert len(line["box"]) == 4
        assert all(0 <= x <= values["width"] and 0 <= y <= values["height"] for x, y in line["box"])


def test_a_white_image_has_no_text(context: Context) -> None:
    values, text = recognize(context, encoded(Image.new("L", (80, 40), 255)))
    assert (values, text) == ({"width": 80, "height": 40, "lines": []}, "")


def test_uncertain_lines_can_be_omitted(context: Context) -> None:
    data = (IMAGES / "sign.png").read_bytes()
    assert recognize(context, data, min_confidence=0.99)[1] == "Trains to Valencia\n"
    assert recognize(context, data, min_confidence=1)[1] == ""


def test_memory_is_reserved_before_the_work_and_freed(context: Context) -> None:
    small = Context(warm=context.warm, quota=Quota(2**20))
    with pytest.raises(OpFailed) as caught:
        recognize(small, (IMAGES / "sign.png").read_bytes())
    assert caught.value.code == OpCode.ENOMEM
    assert small.quota.used_bytes == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda: b"", "not an image in a supported format (PNG, JPEG)"),
        (lambda: b"GIF89a", "not an image"),
        (lambda: encoded(Image.new("RGB", (4, 4)), "BMP"), "not an image"),
        (lambda: (IMAGES / "sign.png").read_bytes()[:600], "the image is damaged"),
        (lambda: blank((4001, 4000)), "4001 × 4000 pixels, more than 16000000"),
        (lambda: blank((30000, 30000)), ""),  # a bomb: under 1 MB, 900 million pixels
    ],
)
def test_other_bytes_than_an_image_are_refused(data: Callable[[], bytes], message: str) -> None:
    given = data()
    with pytest.raises(OpFailed) as caught:
        recognize(Context(), given)  # before any model is needed
    assert caught.value.code == OpCode.EINVAL
    assert message in caught.value.message


@pytest.mark.parametrize("value", [-0.1, 2, "high", True, float("nan")])
def test_bad_confidences_are_refused(value: Any) -> None:
    with pytest.raises(OpFailed, match="min_confidence"):
        recognize(Context(), b"", min_confidence=value)


def pixels(data: bytes, quota: Quota | None = None) -> Any:
    return decode(memoryview(data), quota or Quota())


@pytest.mark.parametrize(("mode", "least"), [("RGB", 16), ("RGBA", 24)])
def test_an_images_memory_is_reserved_before_decoding(mode: str, least: int) -> None:
    image = encoded(Image.new(mode, (1000, 100)))
    quota = Quota(100_000 * least + len(image))
    assert pixels(image, quota).shape == (100, 1000, 3)
    with pytest.raises(OpFailed, match="ENOMEM"), quota.held(1):
        pixels(image, quota)
    assert quota.used_bytes == 0


def test_transparency_becomes_white_and_channels_are_bgr() -> None:
    clear = Image.new("RGBA", (2, 1), (0, 0, 0, 0))
    assert (pixels(encoded(clear)) == 255).all()
    red = pixels(encoded(Image.new("RGB", (2, 1), (255, 0, 0))))
    assert red[0, 0].tolist() == [0, 0, 255]
    grey = pixels(encoded(Image.new("L", (3, 2), 7)))
    assert (grey == np.full((2, 3, 3), 7)).all()


def test_a_package_without_its_models_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine.MODELS, "Det", "other.onnx")
    with pytest.raises(FileNotFoundError, match=r"other\.onnx"):
        engine.model_paths()
