"""The common part of operations that run an ONNX model on one image: decoding and scaling on the
host, joined calls, and the arguments and limits of these."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import numpy.typing as npt

from operations.inference.model import IMPLEMENTATION, Model, find_model, run_joined
from operations.numpy_arrays import Array
from operations.recognition.image import decode
from remote_gpu import api
from remote_gpu.api import Arguments, Context, OpCode, OpFailed, Outcome, invalid

SIDE_MAX = 4096  #: of a model's input
_IMAGE_BYTES_MAX = 32 * 2**20
#: Of ImageNet, on which most published models were trained, red first.
_MEAN, _DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
_THREE = "a list of three numbers, red first"

MODEL_RULE = "a model as for `onnx` with one input of items × 3 × height × width"
LABELS = api.Structure(
    name="labels", meaning="of the classes", rule="a list of strings", default=None
)
PREPARATION = (
    api.Integer(name="width", meaning="pixels; 0 = the model's", least=0, most=SIDE_MAX, default=0),
    api.Integer(
        name="height", meaning="pixels; 0 = the model's", least=0, most=SIDE_MAX, default=0
    ),
    api.Structure(name="mean", meaning="of channels in 0…1", rule=_THREE, default=_MEAN),
    api.Structure(name="deviation", meaning="of channels in 0…1", rule=_THREE, default=_DEVIATION),
)
IMAGE = api.Port(name="image", meaning="a PNG or JPEG file")
VALUES = "`width`, `height` in pixels; `joined`: calls in the run; "


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The conversion of an image to a model's input."""

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
        cv2 = scaling()
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
class ImageModel:
    """A model of one image, with its preparation and labels."""

    model: Model
    preparation: Preparation
    labels: tuple[str, ...] = ()  #: () = classes have numbers only

    def check_labels(self, count: int, of: str = "classes") -> None:
        """Raises OpFailed(EINVAL) for another number of labels than the model has classes."""
        if self.labels and len(self.labels) != count:
            message = f"the model has {count} {of}, but 'labels' lists {len(self.labels)}"
            raise invalid(message)

    def label(self, number: int) -> str:
        return self.labels[number] if self.labels else str(int(number))


class ImageOperation(api.CpuOperation):
    """Base of the operations: a subclass has a name, a signature and the reading of outputs."""

    implementation = IMPLEMENTATION
    libraries: tuple[str, ...] = ("onnxruntime",)
    own_turns = True
    loads = ("model",)
    limits = api.Limits(inputs_min=1, inputs_max=1, input_bytes_max=_IMAGE_BYTES_MAX)
    outputs_max = 1  #: of the model, if the call does not name those to read

    def prepare(self, context: Context) -> None:
        """Import the library that scales images."""
        del context
        scaling()

    def load(self, context: Context, args: Arguments) -> None:
        find_model(context, self.signature.read(args)["model"])

    def find(self, context: Context, args: Arguments) -> ImageModel:
        """The model of a call. Raises OpFailed: EINVAL, ENOENT, ENOTSUP, ENOMEM."""
        return find_image_model(context, args)

    def read(
        self, found: ImageModel, args: Arguments, outputs: Sequence[Array], size: tuple[int, int]
    ) -> Outcome:
        """The values and buffers of a result. `size`: width and height of the image, pixels.
        Raises OpFailed(EINVAL) for outputs that the operation cannot read."""
        raise NotImplementedError

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        args = self.signature.read(args)
        found = self.find(context, args)
        model, preparation = found.model, found.preparation
        wanted = args.get("outputs")
        names = model.output_names(
            list(model.outputs)[: self.outputs_max] if wanted is None else wanted
        )
        with context.turn():
            pixels = decode(inputs[0], context.quota)
            with context.quota.held(2 * pixels.nbytes + preparation.working_bytes):
                feeds = {next(iter(model.inputs)): preparation.apply(pixels)}
        height, width = pixels.shape[:2]
        del pixels
        with context.quota.held(sum(tensor.nbytes for tensor in feeds.values())):
            if model.joinable:
                outputs, joined = run_joined(context, model, feeds, names)
            else:
                with context.turn():
                    outputs, joined = model.run(feeds, names), 1
        feeds.clear()
        with context.turn(), context.quota.held(sum(map(_reading_bytes, outputs))):
            values, buffers = self.read(found, args, outputs, (width, height))
        return {"width": width, "height": height, "joined": joined, **values}, buffers


def find_image_model(context: Context, args: Arguments) -> ImageModel:
    """The model of a call. Raises OpFailed: EINVAL, ENOENT, ENOTSUP, ENOMEM."""
    model = find_model(context, args["model"])
    shapes = [one.shape for one in model.inputs.values() if one.dtype == "float32"]
    if len(model.inputs) != 1 or [len(shape) for shape in shapes] != [4]:
        message = "the model must have one float32 input of items × 3 × height × width"
        raise OpFailed(OpCode.ENOTSUP, message)
    return ImageModel(
        model=model,
        preparation=Preparation(
            width=_side(shapes[0][3], args["width"], "width"),
            height=_side(shapes[0][2], args["height"], "height"),
            mean=_three(args["mean"], "mean"),
            deviation=_three(args["deviation"], "deviation", least=1e-6),
        ),
        labels=_labels(args.get("labels")),
    )


@functools.cache
def scaling() -> ModuleType:
    """OpenCV, on one thread as a lease has one core of the host; slow to import, so hosts of other
    operations do without."""
    import cv2

    cv2.setNumThreads(1)
    return cv2


def _reading_bytes(output: Array) -> int:
    """The memory of an output, a copy in another order, and the arrays that are made of it: 8 bytes
    per element, and for boxes 256 of each candidate, which has at least five elements."""
    return 2 * output.nbytes + 8 * output.size + min(52 * output.size, 8 << 20)


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
    rule = api.Number(name=name, meaning="of a channel", least=least, most=1e6)
    if len(numbers) != 3 or not all(map(rule.fits, numbers)):
        raise invalid(f"{name!r} must be three numbers, red first")
    return tuple(map(float, numbers))


def _labels(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(number, str) for number in value):
        raise invalid("'labels' must be a list of strings")
    return tuple(value)
