"""Image classification: probabilities from a model's scores, and the classifier of a call.

`text-direction` is the classifier of the package `rapidocr` (Apache-2.0, trained by PaddleOCR):
whether a line of text is upright or rotated by 180 degrees. The arguments of a call describe any
other image classifier in ONNX.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from operations.inference.model import Model, Processor, processor_of
from operations.numpy_arrays import Array
from operations.recognition.engine import model_paths
from operations.recognition.image_operation import (
    ImageModel,
    Preparation,
    find_image_model,
    scaling,
)
from remote_gpu.api import Arguments, Context, Meta, invalid

TEXT_DIRECTION = "text-direction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier(ImageModel):
    """A model whose output is one score per class."""

    logits: bool  #: its scores are logits, not probabilities

    def top(self, scores: Array, count: int) -> list[Meta]:
        """The most probable classes, best first. Raises OpFailed(EINVAL) for a wrong number of
        labels and for scores that are not finite."""
        flat = scores.reshape(-1).astype(np.float64)
        if not flat.size or not np.isfinite(flat).all():
            raise invalid("the model's scores are not finite")
        self.check_labels(flat.size)
        if self.logits:
            flat = np.exp(flat - flat.max())
            flat /= flat.sum()
        best = np.argsort(-flat, kind="stable")[:count]
        return [
            {
                "class": int(number),
                "label": self.label(number),
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
    found = find_image_model(context, args)
    return Classifier(
        model=found.model,
        preparation=found.preparation,
        labels=found.labels,
        logits=args["scores"] == "logits",
    )


def _text_direction(processor: Processor) -> Classifier:
    scaling()  # now, not in a job
    model = Model(model_paths()["Cls"], processor)
    return Classifier(model=model, preparation=_UPRIGHT, labels=("upright", "turned"), logits=False)
