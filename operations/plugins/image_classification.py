"""`image_classification`: the most probable classes of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from operations.inference.model import ModelsOnCards
from operations.numpy_arrays import Array
from operations.recognition.classes import TEXT_DIRECTION, Classifier, find_classifier
from operations.recognition.image_operation import (
    IMAGE,
    LABELS,
    MODEL_RULE,
    PREPARATION,
    VALUES,
    ImageModel,
    ImageOperation,
)
from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome


class ImageClassification(ImageOperation):
    """Decodes, scales and classifies an image on its host.

    Concurrent calls of one model may be joined.
    """

    name = "image_classification"
    signature = api.Signature(
        arguments=(
            api.Text(
                name="model",
                meaning=f"`text-direction` (of a line of text), or {MODEL_RULE}",
                default=TEXT_DIRECTION,
            ),
            api.Integer(
                name="top", meaning="number of classes in the result", least=1, most=1000, default=5
            ),
            LABELS,
            *PREPARATION,
            api.Text(
                name="scores",
                meaning="type of the model's scores",
                default="logits",
                choices=("logits", "probabilities"),
            ),
        ),
        inputs=(IMAGE,),
        outputs=(
            api.Port(name="scores", dtype="the model's", shape="classes", meaning="of the model"),
        ),
        values=VALUES + '`classes`: [{"class", "label", "probability"}]',
    )

    def prepare(self, context: Context) -> None:
        """Load the classifier of text directions."""
        find_classifier(context, {"model": TEXT_DIRECTION})

    def load(self, context: Context, args: Arguments) -> None:
        if self.signature.read(args)["model"] == TEXT_DIRECTION:
            find_classifier(context, {"model": TEXT_DIRECTION})
        else:  # the other arguments of a classifier load nothing
            super().load(context, args)

    def find(self, context: Context, args: Arguments) -> ImageModel:
        return find_classifier(context, args)

    def read(
        self, found: ImageModel, args: Arguments, outputs: Sequence[Array], size: tuple[int, int]
    ) -> Outcome:
        del size
        classes = cast("Classifier", found).top(outputs[0], args["top"])
        return {"classes": classes}, [outputs[0]]


class CudaClassification(ModelsOnCards, ImageClassification):
    """`image_classification` with its model on an NVIDIA card; images are decoded on the host."""


OPERATIONS = (ImageClassification(), CudaClassification())
