"""The outputs of image models as objects, classes of pixels, key points and depths.

Leading dimensions of 1, the item of a call, are dropped. Outputs of another form than the stated
one, and outputs that are not finite, raise OpFailed(EINVAL), which names the shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from operations.numpy_arrays import Array
from remote_gpu.api import OpFailed, invalid

#: The best boxes that non-maximum suppression compares, as in the exports of Ultralytics.
CANDIDATES_MAX = 30_000
POINTS_MAX = 1000
_CLASSES_MAX = 1 << 16
#: Above 1, of probabilities that a model rounds.
_ROUNDING = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Objects:
    """Detected objects, the most certain first."""

    boxes: Array  #: float64, n × 4: left, top, right, bottom in pixels of the image
    confidences: Array
    classes: Array
    class_count: int  #: of the model


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxForm:
    """The coordinates of a model's boxes, and the size of the image in pixels."""

    size: tuple[int, int]
    unit: tuple[float, float]  #: pixels of the image per unit of x and of y
    centers: bool = False  #: x, y of the center, width, height; else left, top, right, bottom


def objects(
    outputs: Sequence[Array],
    form: BoxForm,
    *,
    threshold: float,
    overlap_max: float,
    count: int,
    background: int = -1,
) -> Objects:
    """At most `count` objects of the best class of each box, from N×4 boxes and N×C scores, or from
    one tensor of (4+C)×N with centers.

    Boxes below `threshold` and those that lie outside of the image are dropped, then those that
    `not_suppressed` drops. `background`: a class that is not an object; -1 = there is none.
    """
    boxes, scores, centers = _boxes_and_scores(outputs, form.centers)
    every = np.arange(scores.shape[1])
    kinds = every[every != background]
    if background >= every.size or not kinds.size:
        raise invalid(f"the model has {every.size} classes, and 'background' is {background}")
    # false for NaN
    if not (np.min(scores, initial=0) >= 0 and np.max(scores, initial=1) <= 1 + _ROUNDING):
        raise _not_valid("its scores are not probabilities", outputs)
    _check_finite(boxes, outputs)
    scores = scores[:, kinds]
    best = scores.argmax(axis=1)
    scores = np.take_along_axis(scores, best[:, None], axis=1)[:, 0]
    likely = np.flatnonzero(scores >= threshold)
    likely = likely[np.argsort(-scores[likely].astype(np.float64), kind="stable")]
    likely = likely[:CANDIDATES_MAX]
    corners = _corners(boxes[likely].astype(np.float64), form, centers)
    inside = (corners[:, 2:] > corners[:, :2]).all(axis=1)
    likely, corners = likely[inside], corners[inside]
    kept = not_suppressed(corners, best[likely], overlap_max, count)
    likely = likely[kept]
    return Objects(
        boxes=corners[kept],
        confidences=scores[likely],
        classes=kinds[best[likely]],
        class_count=every.size,
    )


def not_suppressed(boxes: Array, classes: Array, overlap_max: float, count: int) -> Array:
    """The indices of at most `count` boxes that non-maximum suppression leaves.

    `boxes`: with corners, of positive area, the best first. One is dropped if it overlaps a better
    one of its class that is left: their intersection is more than `overlap_max` of their union.
    """
    kept: list[int] = []
    left = np.arange(len(boxes))
    sizes = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
    while left.size and len(kept) < count:
        best, left = left[0], left[1:]
        kept.append(best)
        low = np.maximum(boxes[best, :2], boxes[left, :2])
        high = np.minimum(boxes[best, 2:], boxes[left, 2:])
        shared = np.maximum(high - low, 0).prod(axis=1)
        overlaps = shared > overlap_max * (sizes[best] + sizes[left] - shared)
        left = left[~(overlaps & (classes[left] == classes[best]))]
    return np.array(kept, np.intp)


def class_map(outputs: Sequence[Array]) -> tuple[Array, Array]:
    """The best class of each pixel, and the number of pixels of each class, from scores of
    C×height×width; uint8, or uint16 for more than 256 classes."""
    scores = _only(outputs, 3, "scores of C×height×width")
    count = scores.shape[0]
    if not 2 <= count <= _CLASSES_MAX:
        raise _not_valid(f"it has {count} classes, not 2…{_CLASSES_MAX}", outputs)
    best = scores.argmax(axis=0)
    pixels = np.bincount(best.reshape(-1), minlength=count)
    return best.astype(np.uint8 if count <= 256 else np.uint16), pixels


def key_points(outputs: Sequence[Array], size: tuple[int, int]) -> list[tuple[float, float, float]]:
    """x, y and confidence of each key point, from K×height×width heat maps: the center of the
    warmest cell in pixels of an image of that size, and the value there."""
    maps = _only(outputs, 3, "heat maps of K×height×width")
    count, height, width = maps.shape
    if count > POINTS_MAX:
        raise _not_valid(f"it has {count} key points, not 1…{POINTS_MAX}", outputs)
    flat = maps.reshape(count, -1)
    best = flat.argmax(axis=1)
    return [
        (
            float((at % width + 0.5) * size[0] / width),
            float((at // width + 0.5) * size[1] / height),
            float(values[at]),
        )
        for at, values in zip(best, flat, strict=True)
    ]


def depths(outputs: Sequence[Array]) -> Array:
    """A float32 map of height×width."""
    found = _only(outputs, 2, "a map of height×width")
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(found, np.float32)
    _check_finite(result, outputs)
    return result


def _boxes_and_scores(outputs: Sequence[Array], centers: bool) -> tuple[Array, Array, bool]:
    arrays = [_without_items(output, 2) for output in outputs]
    if all(array.ndim == 2 for array in arrays):
        if len(arrays) == 1 and arrays[0].shape[0] > 4:
            return arrays[0][:4].T, arrays[0][4:].T, True
        if len(arrays) == 2:
            boxes, scores = arrays if arrays[0].shape[1] == 4 else arrays[::-1]
            if boxes.shape == (len(scores), 4) and scores.shape[1]:
                return boxes, scores, centers
    raise _not_valid("boxes N×4 and scores N×C, or one tensor of (4+C)×N, are needed", outputs)


def _corners(boxes: Array, form: BoxForm, centers: bool) -> Array:
    with np.errstate(over="ignore"):
        if centers:
            half = boxes[:, 2:] / 2
            boxes = np.hstack([boxes[:, :2] - half, boxes[:, :2] + half])
        boxes = boxes * np.array(form.unit * 2)
    return np.clip(boxes, 0, np.array(form.size * 2))


def _only(outputs: Sequence[Array], rank: int, form: str) -> Array:
    found = [_without_items(output, rank) for output in outputs]
    if len(found) != 1 or found[0].ndim != rank or not found[0].size:
        raise _not_valid(f"{form} are needed", outputs)
    _check_finite(found[0], outputs)
    return found[0]


def _without_items(output: Array, rank: int) -> Array:
    while output.ndim > rank and output.shape[0] == 1:
        output = output[0]
    return output


def _check_finite(array: Array, outputs: Sequence[Array]) -> None:
    if not np.isfinite(array).all():
        raise _not_valid("it is not finite", outputs)


def _not_valid(why: str, outputs: Sequence[Array]) -> OpFailed:
    shapes = ", ".join("×".join(map(str, output.shape)) or "()" for output in outputs)
    return invalid(f"the model's output cannot be read: {why}; its shapes are {shapes}")
