"""`text_recognition`: the text in an image; decoding and models run on the host."""

from __future__ import annotations

from collections.abc import Sequence

from operations.inference.model import ModelsOnCards
from operations.recognition.engine import IMPLEMENTATION, RecognitionDevice, Recognizer
from operations.recognition.image import decode
from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome

_IMAGE_BYTES_MAX = 32 * 2**20
#: Memory of text detection per pixel (measured: 200 MiB for 1.0 megapixels, 320 MiB for 1.7; larger
#: images are scaled down first).
_WORKING_BYTES_PER_PIXEL = 208
_WORKING_BYTES_MAX = 340 * 2**20


class TextRecognition(api.CpuOperation):
    """Finds the lines of text in an image and reads them, from top to bottom."""

    name = "text_recognition"
    implementation = IMPLEMENTATION
    libraries: tuple[str, ...] = ("rapidocr", "onnxruntime")
    loads = ()
    limits = api.Limits(inputs_min=1, inputs_max=1, input_bytes_max=_IMAGE_BYTES_MAX)
    signature = api.Signature(
        arguments=(
            api.Number(
                name="min_confidence",
                meaning="of the lines in the result",
                least=0,
                most=1,
                default=0.5,
            ),
        ),
        inputs=(api.Port(name="image", meaning="a PNG or JPEG file"),),
        outputs=(api.Port(name="text", meaning="the lines, UTF-8"),),
        values="`width`, `height` in pixels; `lines`:"
        ' [{"text", "confidence", "box": [[x, y] × 4]}]',
    )

    def prepare(self, context: Context) -> None:
        """Load the three models."""
        _recognizer(context)

    def load(self, context: Context, args: Arguments) -> None:
        del args
        _recognizer(context)

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        least = self.signature.read(args)["min_confidence"]
        pixels = decode(inputs[0], context.quota)
        height, width = pixels.shape[:2]
        working = min(width * height * _WORKING_BYTES_PER_PIXEL, _WORKING_BYTES_MAX)
        with context.quota.held(pixels.nbytes + working):
            found = _recognizer(context).read(pixels)
        lines = [
            {"text": line.text, "confidence": line.confidence, "box": [list(p) for p in line.box]}
            for line in found
            if line.confidence >= least
        ]
        text = "".join(f"{line['text']}\n" for line in lines)
        return {"width": width, "height": height, "lines": lines}, [text.encode()]


class CudaRecognition(ModelsOnCards, TextRecognition):
    """`text_recognition` with its models on an NVIDIA card."""

    implementation = f"{IMPLEMENTATION.replace('rapidocr', 'rapidocr-cuda', 1)}"
    libraries = ("rapidocr", *ModelsOnCards.libraries)


def _recognizer(context: Context) -> Recognizer:
    if context.kind != "cuda":
        return context.warm.get("text_recognition", Recognizer)
    context.charge_context()
    ordinal = api.visible_ordinal(context.device)
    limit_bytes = context.quota.limit_bytes
    if limit_bytes is not None:
        limit_bytes -= context.card.context_bytes
    device = RecognitionDevice(context.card, ordinal, limit_bytes)
    return context.warm.get(f"text_recognition on {context.device}", lambda: Recognizer(device))


OPERATIONS = (TextRecognition(), CudaRecognition())
