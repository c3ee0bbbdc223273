"""The outputs of image models as objects, class maps, key points and depths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operations.numpy_arrays import Array
from operations.recognition.readings import (
    BoxForm,
    class_map,
    depths,
    key_points,
    not_suppressed,
    objects,
)
from remote_gpu.wire.errors import OpFailed

#: An image of 200×100 pixels, scaled to a model's 100×100.
SIZE = (200, 100)
PIXELS = BoxForm(size=SIZE, unit=(2.0, 1.0))
CENTERS = BoxForm(size=SIZE, unit=(200.0, 100.0), centers=True)
NAN, INF = float("nan"), float("inf")


def floats(values: Any) -> Array:
    return np.array(values, np.float32)


def found(outputs: list[Array], form: BoxForm = PIXELS, **rules: Any) -> list[tuple[Any, ...]]:
    """Class, confidence and box of each object."""
    given = {"threshold": 0.5, "overlap_max": 0.5, "count": 10} | rules
    read = objects(outputs, form, **given)
    rows = zip(read.classes, read.confidences, read.boxes, strict=True)
    return [(int(one), round(float(sure), 3), box.tolist()) for one, sure, box in rows]


PAIR = [
    floats([[[10, 10, 20, 20], [10, 10, 20, 21], [11, 10, 20, 20], [90, 90, 120, 95]]]),
    floats([[[0.6, 0.1], [0.9, 0.0], [0.1, 0.7], [0.2, 0.5]]]),
]
BEST, OTHER, CLIPPED = (
    (0, 0.9, [20, 10, 40, 21]),
    (1, 0.7, [22, 10, 40, 20]),
    (1, 0.5, [180, 90, 200, 95]),
)
#: Rows: x, y, width, height, two classes; columns: boxes.
ONE = floats([[[15, 50], [15, 50], [10, 10], [10, 20], [0.75, 0], [0.25, 0.5]]])


@pytest.mark.parametrize(
    ("outputs", "form", "rules", "expected"),
    [
        (PAIR, PIXELS, {}, [BEST, OTHER, CLIPPED]),
        (PAIR[::-1], PIXELS, {}, [BEST, OTHER, CLIPPED]),
        (PAIR, PIXELS, {"count": 1}, [BEST]),
        (PAIR, PIXELS, {"threshold": 0.7}, [BEST, OTHER]),
        (
            PAIR,
            PIXELS,
            {"threshold": 0.6, "overlap_max": 1.0},
            [BEST, OTHER, (0, 0.6, [20, 10, 40, 20])],
        ),
        (PAIR, PIXELS, {"background": 0}, [OTHER, CLIPPED]),
        ([ONE], PIXELS, {}, [(0, 0.75, [20, 10, 40, 20]), (1, 0.5, [90, 40, 110, 60])]),
        (
            [floats([[0.5, 0.5, 0.5, 0.25]]), floats([[1.0]])],
            CENTERS,
            {},
            [(0, 1.0, [50, 37.5, 150, 62.5])],
        ),
        ([floats(np.zeros((1, 0, 4))), floats(np.zeros((1, 0, 3)))], PIXELS, {}, []),
        ([floats(np.zeros((5, 0)))], PIXELS, {}, []),
        # without area, reversed, and outside of the image
        (
            [floats([[5, 5, 5, 9], [9, 9, 5, 5], [500, 0, 900, 9]]), floats([[1]] * 3)],
            PIXELS,
            {},
            [],
        ),
        # sides that overflow are clipped
        (
            [np.array([[0.5, 0.5, 1.7e308, 1e308]]), np.array([[1.0]])],
            CENTERS,
            {},
            [(0, 1.0, [0, 0, 200, 100])],
        ),
        # four classes: the first output has the boxes
        (
            [floats([[0, 0, 50, 50]]), floats([[0, 0, 1, 0]])],
            PIXELS,
            {},
            [(2, 1.0, [0, 0, 100, 50])],
        ),
        # integers, and 16 bits
        (
            [np.array([[0, 0, 50, 50]]), np.array([[0.5, 0.25]], np.float16)],
            PIXELS,
            {},
            [(0, 0.5, [0, 0, 100, 50])],
        ),
    ],
)
def test_objects(
    outputs: list[Array], form: BoxForm, rules: dict[str, Any], expected: list[tuple[Any, ...]]
) -> None:
    assert found(outputs, form, **rules) == expected


BOX = floats([[0, 0, 1, 1]])


@pytest.mark.parametrize(
    ("outputs", "rules", "why"),
    [
        ([], {}, "N×4"),
        ([floats(np.zeros((1, 4, 9)))], {}, "N×4.*1×4×9"),
        ([floats(np.zeros((2, 84, 9)))], {}, "2×84×9"),
        ([floats(7)], {}, r"\(\)"),
        ([floats(np.zeros((1, 116, 9))), floats(np.zeros((1, 32, 8, 8)))], {}, "1×116×9, 1×32×8×8"),
        ([BOX, floats(np.zeros((2, 3)))], {}, "1×4, 2×3"),
        ([BOX, floats(np.zeros((1, 0)))], {}, "1×4, 1×0"),
        ([BOX, floats([[1]]), floats([[1]])], {}, "1×4, 1×1, 1×1"),
        ([BOX, floats([[NAN]])], {}, "not probabilities"),
        ([BOX, floats([[-0.1]])], {}, "not probabilities"),
        ([BOX, floats([[3.5]])], {}, "not probabilities"),
        ([floats([[0, 0, INF, 1]]), floats([[1]])], {}, "not finite"),
        ([floats([[0, 0, NAN, 1]]), floats([[0]])], {}, "not finite"),
        ([BOX, floats([[1]])], {"background": 0}, "1 classes, and 'background' is 0"),
        ([BOX, floats([[1, 0]])], {"background": 2}, "2 classes, and 'background' is 2"),
    ],
)
def test_other_outputs_than_objects_are_refused(
    outputs: list[Array], rules: dict[str, Any], why: str
) -> None:
    with pytest.raises(OpFailed, match=why) as failed:
        found(outputs, **rules)
    assert failed.value.code == "EINVAL"


sides = st.integers(0, 12)
lengths = st.integers(1, 8)
rows = st.lists(st.tuples(sides, sides, lengths, lengths, st.integers(0, 1)), max_size=12)


def overlap(one: Array, other: Array) -> float:
    """Intersection ÷ union by counting cells."""

    def cells(box: Array) -> set[tuple[int, int]]:
        left, top, right, bottom = map(int, box)
        return {(x, y) for x in range(left, right) for y in range(top, bottom)}

    return len(cells(one) & cells(other)) / len(cells(one) | cells(other))


@given(rows, st.sampled_from([0.0, 0.3, 0.5, 1.0]), st.integers(1, 12))
def test_a_box_is_dropped_if_a_better_one_of_its_class_that_is_left_covers_it(
    given_rows: list[tuple[int, ...]], overlap_max: float, count: int
) -> None:
    table = np.array(given_rows, np.float64).reshape(-1, 5)
    boxes = np.hstack([table[:, :2], table[:, :2] + table[:, 2:4]])
    classes = table[:, 4]

    def covers(better: int, one: int) -> bool:
        same = bool(classes[better] == classes[one])
        return same and overlap(boxes[better], boxes[one]) > overlap_max

    expected: list[int] = []
    for one in range(len(boxes)):
        if not any(covers(better, one) for better in expected):
            expected.append(one)
    assert not_suppressed(boxes, classes, overlap_max, count).tolist() == expected[:count]


def test_only_the_best_candidates_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operations.recognition.readings.CANDIDATES_MAX", 2)
    assert found(PAIR) == [BEST, OTHER]


def test_a_class_map() -> None:
    scores = floats([[[[5, 0, 0], [1, 1, -9]], [[0, 5, 0], [1, 2, -8]], [[0, 0, 5], [1, 3, -7]]]])
    classes, pixels = class_map([scores])
    assert classes.tolist() == [[0, 1, 2], [0, 2, 2]], "of equal scores the first class"
    assert (classes.dtype, pixels.tolist()) == (np.uint8, [2, 1, 3])
    many = np.zeros((300, 1, 1), np.float16)
    many[299] = 1
    classes, pixels = class_map([many])
    assert (classes.dtype, classes.tolist(), pixels.size) == (np.uint16, [[299]], 300)


def test_key_points() -> None:
    maps = floats(np.zeros((1, 2, 4, 5)))
    maps[0, 0, 3, 1] = 0.75
    maps[0, 1, 0, 4] = 2.5
    assert key_points([maps], SIZE) == [(60.0, 87.5, 0.75), (180.0, 12.5, 2.5)]
    assert key_points([floats([[[-1]]])], SIZE) == [(100.0, 50.0, -1.0)]


def test_a_depth_map() -> None:
    for dtype in (np.float16, np.float32, np.float64, np.uint8):
        result = depths([np.array([[[[1, 2], [3, 250]]]], dtype)])
        assert (result.dtype, result.tolist()) == (np.float32, [[1, 2], [3, 250]])


@pytest.mark.parametrize("side", [0, 1, 2])
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_maps_that_are_not_finite_are_refused(value: float, side: int) -> None:
    maps = floats(np.zeros((1, 3, 3, 3)))
    maps[0, side, side, side] = value
    for read in (
        lambda: class_map([maps]),
        lambda: key_points([maps], SIZE),
        lambda: depths([maps[0, side]]),
    ):
        with pytest.raises(OpFailed, match=r"EINVAL.*not finite"):
            read()
    with pytest.raises(OpFailed, match=r"EINVAL.*not finite"):
        depths([np.full((2, 2), 1e300)])


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [(3, 2, 2), (3, 2, 2)],
        [()],
        [(3,)],
        [(1, 0, 2)],
        [(1, 3, 0, 2)],
        [(2, 3, 2, 2)],
        [(1, 1, 1, 1, 0)],
        [(2, 2, 2, 2, 2)],
    ],
)
def test_maps_of_other_shapes_are_refused_by_name(shapes: list[tuple[int, ...]]) -> None:
    outputs = [floats(np.zeros(shape)) for shape in shapes]
    named = ", ".join("×".join(map(str, shape)) for shape in shapes)
    for read in (
        lambda: class_map(outputs),
        lambda: key_points(outputs, SIZE),
        lambda: depths(outputs),
    ):
        with pytest.raises(OpFailed, match="EINVAL") as failed:
            read()
        assert named in failed.value.message


def test_numbers_of_classes_and_points_are_limited() -> None:
    for count in (1, (1 << 16) + 1):
        with pytest.raises(OpFailed, match=rf"EINVAL.*{count} classes"):
            class_map([np.zeros((count, 1, 1), np.uint8)])
    with pytest.raises(OpFailed, match=r"EINVAL.*1001 key points"):
        key_points([np.zeros((1001, 1, 1), np.uint8)], SIZE)
