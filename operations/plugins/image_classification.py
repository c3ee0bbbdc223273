"""`image_classification`: the most probable classes of an image."""

from __future__ import annotations

from collections.abc import Sequence

from operations.inference.model import IMPLEMENTATION, ModelsOnCards, find_model, run_joined
from operations.recognition.classes import SIDE_MAX, TEXT_DIRECTION, find_classifier
from operations.recognition.image import decode
from remote_gpu import api
from remote_gpu.api import Arguments, Context, Outcome

_IMAGE_BYTES_MAX = 32 * 2**20
#: Of ImageNet, on which most published classifiers were trained, red first.
_MEAN, _DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_THREE = "a list of three numbers, red first"


class ImageClassification(api.CpuOperation):
    """Decodes, scales and classifies an image on its host.

    Concurrent calls of one model may be joined.
    """

    name = "image_classification"
    implementation = IMPLEMENTATION
    libraries: tuple[str, ...] = ("onnxruntime",)
    own_turns = True
    loads = ("model",)
    limits = api.Limits(inputs_min=1, inputs_max=1, input_bytes_max=_IMAGE_BYTES_MAX)
    signature = api.Signature(
        arguments=(
            api.Text(
                name="model",
                meaning="`text-direction` (of a line of text), or a model as for `onnx` with"
                " one input of items × 3 × height × width",
                default=TEXT_DIRECTION,
            ),
            api.Integer(
                name="top", meaning="number of classes in the result", least=1, most=1000, default=5
            ),
            api.Structure(
                name="labels", meaning="of the classes", rule="a list of strings", default=None
            ),
            api.Integer(
                name="width", meaning="pixels; 0 = the model's", least=0, most=SIDE_MAX, default=0
            ),
            api.Integer(
                name="height", meaning="pixels; 0 = the model's", least=0, most=SIDE_MAX, default=0
            ),
            api.Structure(name="mean", meaning="of channels in 0…1", rule=_THREE, default=_MEAN),
            api.Structure(
                name="deviation", meaning="of channels in 0…1", rule=_THREE, default=_DEVIATION
            ),
            api.Text(
                name="scores",
                meaning="type of the model's scores",
                default="logits",
                choices=("logits", "probabilities"),
            ),
        ),
        inputs=(api.Port(name="image", meaning="a PNG or JPEG file"),),
        outputs=(
            api.Port(name="scores", dtype="the model's", shape="classes", meaning="of the model"),
        ),
        values='`width`, `height` in pixels; `classes`: [{"class", "label", "probability"}];'
        " `joined`: calls in the run",
    )

    def prepare(self, context: Context) -> None:
        """Load the classifier of text directions."""
        find_classifier(context, {"model": TEXT_DIRECTION})

    def load(self, context: Context, args: Arguments) -> None:
        args = self.signature.read(args)
        if args["model"] == TEXT_DIRECTION:
            find_classifier(context, args)
        else:  # the other arguments of a classifier load nothing
            find_model(context, args["model"])

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        args = self.signature.read(args)
        classifier = find_classifier(context, args)
        with context.turn():
            pixels = decode(inputs[0], context.quota)
            preparation = classifier.preparation
            with context.quota.held(2 * pixels.nbytes + preparation.working_bytes):
                tensor = preparation.apply(pixels)
        model = classifier.model
        feeds = {next(iter(model.inputs)): tensor}
        outputs = model.output_names(list(model.outputs)[:1])
        if model.joinable:
            results, joined = run_joined(context, model, feeds, outputs)
        else:
            with context.turn():
                results, joined = model.run(feeds, outputs), 1
        height, width = pixels.shape[:2]
        return {
            "width": width,
            "height": height,
            "classes": classifier.top(results[0], args["top"]),
            "joined": joined,
        }, [results[0]]


class CudaClassification(ModelsOnCards, ImageClassification):
    """`image_classification` with its model on an NVIDIA card; images are decoded on the host."""


OPERATIONS = (ImageClassification(), CudaClassification())
