"""`image_detection`, `image_segmentation`, `image_pose` and `image_depth`: a given model of one
image, and what its outputs mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from operations.inference.model import ModelsOnCards
from operations.numpy_arrays import Array
from operations.recognition.image_operation import (
    IMAGE,
    LABELS,
    MODEL_RULE,
    PREPARATION,
    VALUES,
    ImageModel,
    ImageOperation,
)
from operations.recognition.readings import BoxForm, class_map, depths, key_points, objects
from remote_gpu import api
from remote_gpu.api import Arguments, Outcome

_MODEL = (
    api.Text(name="model", meaning=MODEL_RULE),
    api.Structure(
        name="outputs",
        meaning="of the model, to read; absent: the first, or the first two for boxes and scores",
        rule="a list of names",
        default=None,
    ),
    *PREPARATION,
)
_TOP = api.Integer(
    name="top", meaning="number of objects in the result", least=1, most=1000, default=100
)


class ImageDetection(ImageOperation):
    """Objects in an image, by a model that gives boxes N×4 and scores N×C, or one tensor of
    (4+C)×N: center, width and height of a box and its scores, as YOLOv8 is exported.

    The image is scaled to the model's width and height; boxes are in pixels of the image, and
    within it. A box counts as its best class. Overlapping boxes of a class are dropped by
    non-maximum suppression.
    """

    name = "image_detection"
    outputs_max = 2
    signature = api.Signature(
        arguments=(
            *_MODEL,
            LABELS,
            api.Number(
                name="min_confidence", meaning="of an object", least=0, most=1, default=0.25
            ),
            api.Number(
                name="overlap",
                meaning="of two objects of a class: intersection ÷ union, at most",
                least=0,
                most=1,
                default=0.45,
            ),
            _TOP,
            api.Text(
                name="boxes",
                meaning="left, top, right, bottom; or x, y, width, height; of N×4 boxes",
                default="corners",
                choices=("corners", "centers"),
            ),
            api.Text(
                name="unit",
                meaning="of boxes: the pixels of the model's input, or its width and height",
                default="pixels",
                choices=("pixels", "fractions"),
            ),
            api.Integer(
                name="background",
                meaning="a class that is not an object; -1 = none",
                least=-1,
                most=1 << 16,
                default=-1,
            ),
        ),
        inputs=(IMAGE,),
        values=VALUES + '`objects`: [{"class", "label", "confidence", "box": [left, top, right,'
        " bottom]}], best first",
    )

    def read(
        self, found: ImageModel, args: Arguments, outputs: Sequence[Array], size: tuple[int, int]
    ) -> Outcome:
        width, height = size
        model = found.preparation
        pixels = args["unit"] == "pixels"
        unit = (width / model.width, height / model.height) if pixels else (width, height)
        read = objects(
            outputs,
            BoxForm(size=size, unit=unit, centers=args["boxes"] == "centers"),
            threshold=args["min_confidence"],
            overlap_max=args["overlap"],
            count=args["top"],
            background=args["background"],
        )
        found.check_labels(read.class_count)
        return {
            "objects": [
                {
                    "class": int(number),
                    "label": found.label(number),
                    "confidence": round(float(confidence), 6),
                    "box": [round(float(side), 2) for side in box],
                }
                for number, confidence, box in zip(
                    read.classes, read.confidences, read.boxes, strict=True
                )
            ]
        }, []


class ImageSegmentation(ImageOperation):
    """The class of each pixel, by a model that gives scores of C×height×width.

    The map has the size of the model's output, which covers the whole image.
    """

    name = "image_segmentation"
    signature = api.Signature(
        arguments=(
            *_MODEL,
            LABELS,
            dataclasses.replace(_TOP, meaning="number of classes in the values"),
        ),
        inputs=(IMAGE,),
        outputs=(
            api.Port(
                name="map",
                dtype="`dtype` of the values",
                shape="`shape` of the values",
                meaning="classes",
            ),
        ),
        values=VALUES + "`shape` and `dtype` (uint8, or uint16 for more than 256 classes) of the"
        ' map; `classes`: [{"class", "label", "share"}], part of the pixels, largest first',
    )

    def read(
        self, found: ImageModel, args: Arguments, outputs: Sequence[Array], size: tuple[int, int]
    ) -> Outcome:
        del size
        classes, pixels = class_map(outputs)
        found.check_labels(pixels.size)
        largest = np.argsort(-pixels, kind="stable")[: args["top"]]
        shares = [
            {
                "class": int(number),
                "label": found.label(number),
                "share": round(float(pixels[number] / classes.size), 6),
            }
            for number in largest
            if pixels[number]
        ]
        values = {"shape": list(classes.shape), "dtype": str(classes.dtype), "classes": shares}
        return values, [classes]


class ImagePose(ImageOperation):
    """Key points of one figure in an image, by a model that gives heat maps of K×height×width.

    A point is the center of the warmest cell of its map, in pixels of the image; its confidence is
    the value there.
    """

    name = "image_pose"
    signature = api.Signature(
        arguments=(*_MODEL, dataclasses.replace(LABELS, meaning="of the key points")),
        inputs=(IMAGE,),
        values=VALUES + '`points`: [{"point", "label", "confidence", "x", "y"}]',
    )

    def read(
        self, found: ImageModel, args: Arguments, outputs: Sequence[Array], size: tuple[int, int]
    ) -> Outcome:
        del args
        points = key_points(outputs, size)
        found.check_labels(len(points), "key points")
        return {
            "points": [
                {
                    "point": number,
                    "label": found.label(number),
                    "confidence": round(confidence, 6),
                    "x": round(x, 2),
                    "y": round(y, 2),
                }
                for number, (x, y, confidence) in enumerate(points)
            ]
        }, []


class ImageDepth(ImageOperation):
    """The depth of each pixel, by a model that gives a map of height×width.

    The map has the size of the model's output, which covers the whole image, and the model's unit:
    many give relative or inverse depths.
    """

    name = "image_depth"
    signature = api.Signature(
        arguments=_MODEL,
        inputs=(IMAGE,),
        outputs=(api.Port(name="depths", dtype="float32", shape="`shape` of the values"),),
        values=VALUES + "`shape` of the map; `minimum`, `maximum` in it",
    )

    def read(
        self, found: ImageModel, args: Arguments, outputs: Sequence[Array], size: tuple[int, int]
    ) -> Outcome:
        del found, args, size
        result = depths(outputs)
        low, high = float(result.min()), float(result.max())
        return {"shape": list(result.shape), "minimum": low, "maximum": high}, [result]


class CudaDetection(ModelsOnCards, ImageDetection):
    """`image_detection` with its model on an NVIDIA card."""


class CudaSegmentation(ModelsOnCards, ImageSegmentation):
    """`image_segmentation` with its model on an NVIDIA card."""


class CudaPose(ModelsOnCards, ImagePose):
    """`image_pose` with its model on an NVIDIA card."""


class CudaDepth(ModelsOnCards, ImageDepth):
    """`image_depth` with its model on an NVIDIA card."""


OPERATIONS = (
    ImageDetection(),
    CudaDetection(),
    ImageSegmentation(),
    CudaSegmentation(),
    ImagePose(),
    CudaPose(),
    ImageDepth(),
    CudaDepth(),
)
