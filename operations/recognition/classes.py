"""Image classification: preparation of the model's input, and probabilities from its scores.

`text-direction` is the classifier of the package `rapidocr` (Apache-2.0, trained by PaddleOCR):
whether a line of text is upright or rotated by 180 degrees. The arguments of a call describe any
other image classifier in ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from operations.inference.model import Model, Processor, find_model, processor_of
from operations.numpy_arrays import Array
from operations.recognition.engine import model_paths
from remote_gpu.api import Arguments, Context, Meta, Number, OpCode, OpFailed, invalid

TEXT_DIRECTION = "text-direction"
SIDE_MAX = 4096  #: of a classifier's input


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The conversion of an image to a classifier's input."""

    width: int
    height: int
    mean: tuple[float, ...]  #: subtracted from channels scaled to 0…1, in the model's order
    deviation: tuple[float, ...]  #: then divided by
    blue_first: bool = False
    padded: bool = False  #: keep the proportions, pad on the right

    @property
    def working_bytes(self) -> int:
        """The memory of the tensor and its intermediate forms."""
        return 3 * 3 * 4 * self.width * self.height

    def apply(self, pixels: npt.NDArray[np.uint8]) -> Array:
        """A float32 tensor of 1 × 3 × height × width from an image in BGR order."""
        import cv2  # slow to import; for hosts that classify only

        width = self.width
        if self.padded:
            width = min(width, max(1, -(-self.height * pixels.shape[1] // pixels.shape[0])))
        scaled = cv2.resize(pixels, (width, self.height), interpolation=cv2.INTER_LINEAR)
        channels = scaled if self.blue_first else scaled[:, :, ::-1]
        factor = 1 / (255 * np.array(self.deviation, np.float32))
        offset = np.array(self.mean, np.float32) / np.array(self.deviation, np.float32)
        tensor = np.zeros((1, 3, self.height, self.width), np.float32)
        tensor[0, :, :, :width] = (channels * factor - offset).transpose(2, 0, 1)
        return tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """A model with its preparation and labels."""

    model: Model
    preparation: Preparation
    labels: tuple[str, ...]  #: () = classes have numbers only
    logits: bool  #: its scores are logits, not probabilities

    def top(self, scores: Array, count: int) -> list[Meta]:
        """The most probable classes, best first. Raises OpFailed(EINVAL) for a wrong number of
        labels and for scores that are not finite."""
        flat = scores.reshape(-1).astype(np.float64)
        if not flat.size or not np.isfinite(flat).all():
            raise invalid("the model's scores are not finite")
        if self.labels and len(self.labels) != flat.size:
            message = f"the model has {flat.size} classes, but 'labels' lists {len(self.labels)}"
            raise invalid(message)
        if self.logits:
            flat = np.exp(flat - flat.max())
            flat /= flat.sum()
        best = np.argsort(-flat, kind="stable")[:count]
        return [
            {
                "class": int(number),
                "label": self.labels[number] if self.labels else str(int(number)),
                "probability": round(float(flat[number]), 6),
            }
            for number in best
        ]


_UPRIGHT = Preparation(
    width=192, height=48, mean=(0.5,) * 3, deviation=(0.5,) * 3, blue_first=True, padded=True
)


def find_classifier(context: Context, args: Arguments) -> Classifier:
    """The classifier of a call. Raises OpFailed: EINVAL, ENOENT, ENOTSUP, ENOMEM."""
    if args["model"] == TEXT_DIRECTION:
        processor = processor_of(context)
        key = f"{TEXT_DIRECTION} on {context.device}" if context.kind == "cuda" else TEXT_DIRECTION
        return context.warm.get(key, lambda: _text_direction(processor))
    model = find_model(context, args["model"])
    declared = next(iter(model.inputs.values()))
    shape = declared.shape
    if len(model.inputs) != 1 or len(shape) != 4 or declared.dtype != "float32":
        message = "a classifier has one float32 input of items × 3 × height × width"
        raise OpFailed(OpCode.ENOTSUP, message)
    return Classifier(
        model=model,
        preparation=Preparation(
            width=_side(shape[3], args["width"], "width"),
            height=_side(shape[2], args["height"], "height"),
            mean=_three(args["mean"], "mean"),
            deviation=_three(args["deviation"], "deviation", least=1e-6),
        ),
        labels=_labels(args["labels"]),
        logits=args["scores"] == "logits",
    )


def _text_direction(processor: Processor) -> Classifier:
    import cv2  # slow to import; now, not in a job

    cv2.setNumThreads(1)  # a lease has one core of the host
    model = Model(model_paths()["Cls"], processor)
    return Classifier(model=model, preparation=_UPRIGHT, labels=("upright", "turned"), logits=False)


def _side(declared: int | None, asked: int, name: str) -> int:
    """The model's own side if it is fixed, else the argument; 0 = no argument."""
    if declared is None and not asked:
        raise invalid(f"the model takes any {name}: pass {name!r}")
    if declared is not None and asked not in (0, declared):
        raise invalid(f"the model's {name} is {declared}, not {asked}")
    side = declared or asked
    if not 1 <= side <= SIDE_MAX:
        raise invalid(f"the model's {name} is {side}, not 1…{SIDE_MAX}")
    return side


def _three(value: object, name: str, least: float = -1e6) -> tuple[float, ...]:
    numbers = value if isinstance(value, list) else []
    rule = Number(name=name, meaning="of a channel", least=least, most=1e6)
    if len(numbers) != 3 or not all(map(rule.fits, numbers)):
        raise invalid(f"{name!r} must be three numbers, red first")
    return tuple(map(float, numbers))


def _labels(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(number, str) for number in value):
        raise invalid("'labels' must be a list of strings")
    return tuple(value)
