"""Malicious models: they read no file of the host, and cause errors only."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from operations.inference.model import Model
from operations.recognition.classes import TEXT_DIRECTION, find_classifier
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.graphs import content_id
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.store.contents import Contents
from remote_gpu.worker.store.declared_sizes import declared_sizes
from remote_gpu.worker.store.resources import Resources, Sessions
from tests.unit.operations.onnx_models import (
    FLOAT,
    GRAPH,
    INT,
    INT64,
    STRING,
    TENSOR,
    UINT8,
    beside,
    declared,
    graph,
    model,
    node,
    part,
    tensor,
    varint,
    whole,
)

SECRET = b"what nobody may read"


def reading(place: str) -> dict[str, bytes]:
    """Models whose weights lie in a file, in each way that there is to say so."""
    size = len(SECRET)
    value = part(1, "value") + part(5, tensor("c", size, beside(place, size))) + whole(20, TENSOR)
    weights = tensor("w", size, beside(place, size))
    branch = part(6, graph([node("Identity", "w", "y")], [weights], size)) + whole(20, GRAPH)
    branches = [part(1, name) + branch for name in ("then_branch", "else_branch")]
    flag = whole(2, 9) + part(8, "flag") + part(9, b"\1")
    return {
        "weights": model([node("Identity", "w", "y")], [weights], size),
        "a constant": model([node("Constant", "", "y", value)], [], size),
        "a branch": model([node("If", "flag", "y", *branches)], [flag], size),
    }


@pytest.mark.parametrize("where", ["secret", "./secret", "../below/secret", "/etc/hostname"])
def test_no_file_of_the_host_is_read(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "below"
    below.mkdir()
    (below / "secret").write_bytes(SECRET)
    monkeypatch.chdir(below)  # gpud's working folder, "/" for a service
    for what, sent in reading(where).items():
        with pytest.raises(OpFailed) as failed:
            Model(sent).run({}, ["y"])
        assert failed.value.code == OpCode.EINVAL, what


def test_an_operators_model_has_its_weights_beside_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    path = tmp_path / "model.onnx"
    path.write_bytes(reading("secret")["weights"])
    assert bytes(Model(path).run({}, ["y"])[0]) == SECRET


def test_damaged_models_are_errors() -> None:
    whole_one = model([node("Identity", "w", "y")], [tensor("w", 4, part(9, b"abcd"))], 4)
    assert bytes(Model(whole_one).run({}, ["y"])[0]) == b"abcd"
    choose, refused = random.Random(4), []
    for _ in range(300):
        damaged = bytearray(whole_one)
        for _ in range(choose.randint(1, 4)):
            damaged[choose.randrange(len(damaged))] = choose.randrange(256)
        try:
            Model(bytes(damaged[: choose.randint(1, len(damaged))]))
        except OpFailed as failed:  # anything else fails the test
            refused.append(failed.code)
    assert len(refused) > 200
    assert set(refused) == {OpCode.EINVAL}


@pytest.mark.parametrize(("size", "code"), [(5, ""), (1 << 44, "ENOMEM"), (-1, "EINVAL")])
def test_a_model_over_the_memory_limit_is_enomem(size: int, code: str) -> None:
    one = part(1, "value") + part(5, tensor("c", 1, part(9, b"\1"))) + whole(20, TENSOR)
    ones = Model(
        model(
            [node("ConstantOfShape", "s", "y", one)],
            [],
            declared("y", "n"),
            declared("s", 1, INT64),
        )
    )
    data = memoryview(size.to_bytes(8, "little", signed=True))
    feeds = ones.feeds([{"name": "s", "shape": [1]}], [data])
    try:
        assert bytes(ones.run(feeds, ["y"])[0]) == bytes([1] * size)
        found = ""
    except OpFailed as failed:
        found = failed.code
    assert found == code


def highest_of_ones() -> bytes:
    """A small result of as many ones as its input says: memory is needed in between alone."""
    value = part(5, tensor("c", 1, part(9, b"\0\0\x80\x3f"), kind=FLOAT))
    fill = node("ConstantOfShape", "s", "t", part(1, "value") + value + whole(20, TENSOR))
    reduce = node("ReduceMax", "t", "y", part(1, "keepdims") + whole(3, 1) + whole(20, INT))
    return model([fill, reduce], [], declared("y", "n", FLOAT), declared("s", 1, INT64))


def test_a_models_memory_is_freed_and_too_little_is_enomem(tmp_path: Path) -> None:
    size = 34 << 20  # above what the C library keeps for itself
    weights = tensor("w", size, part(9, bytes(size)))
    large = model([node("Identity", "w", "y")], [weights], size)
    files = []
    for name, sent in (("ones", highest_of_ones()), ("large", large)):
        files.append(tmp_path / name)
        files[-1].write_bytes(sent)
    script = Path(__file__).with_name("model_memory.py")
    done = subprocess.run(
        [sys.executable, str(script), *map(str, files)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def shape_of(*sides: int) -> bytes:
    data = b"".join(side.to_bytes(8, "little", signed=True) for side in sides)
    return whole(1, len(sides)) + whole(2, INT64) + part(8, "s") + part(9, data)


HUGE = 40 * 10**9
STATES = {
    "an output": model([node("Identity", "x", "y")], [], HUGE, declared("x", HUGE)),
    "a weight": model([node("Identity", "w", "y")], [tensor("w", HUGE, part(9, b"a"))], 1),
    "packed sides": model(
        [node("Identity", "w", "y")],
        [part(1, varint(200_000), varint(200_000)) + whole(2, UINT8) + part(8, "w")],
        1,
    ),
    "a constant": model(
        [node("Constant", "", "y", part(1, "value") + part(5, tensor("c", HUGE)))], [], 1
    ),
    "a filled one": model(
        [node("ConstantOfShape", "s", "t"), node("ReduceMax", "t", "y")],
        [shape_of(100_000, 100_000)],
        declared("y", "n", FLOAT),
    ),
    "an expanded one": model(
        [node("Expand", "x s", "t"), node("ReduceMax", "t", "y")],
        [shape_of(200_000, 200_000)],
        declared("y", "n", FLOAT),
        declared("x", 1, FLOAT),
    ),
    "a branch": model(
        [
            node("If", "f", "y", part(1, "then_branch") + part(6, graph([], [], HUGE))),
        ],
        [],
        1,
    ),
    "weights together": model(
        [node("Add", "a b", "y")], [tensor(name, 3 << 30) for name in "ab"], 1
    ),
}


@pytest.mark.parametrize("what", STATES)
def test_a_model_with_too_large_declared_tensors_is_refused(what: str) -> None:
    contents, quota = Contents(), Quota(4 << 30)
    content = content_id(STATES[what])
    contents.put(content, memoryview(STATES[what]))
    sessions = Sessions(Resources(), contents, quota)
    session = sessions.new({})[0]["session"]
    args = {"session": session, "type": "model", "content": content}
    with pytest.raises(
        OpFailed, match=r"ENOMEM: the model declares a tensor .* the lease has 4294"
    ):
        sessions.register(args)
    assert sessions.register({**args, "type": "data"})[0] == {"missing": False}
    sessions.close()
    free = Sessions(Resources(), contents, Quota())  # without a lease there is no limit
    session = free.new({})[0]["session"]
    assert free.register({**args, "session": session})[0] == {"missing": False}


def test_any_bytes_have_declared_sizes() -> None:
    small = model([node("Identity", "w", "y")], [tensor("w", 4, part(9, b"abcd"))], 4)
    assert list(declared_sizes(memoryview(small))) == [("w", 4), ("y", 4), ("all weights", 4)]
    assert max(size for _, size in declared_sizes(memoryview(highest_of_ones()))) == 8, (
        "of its input"
    )
    choose = random.Random(5)
    for whole_one in STATES.values():
        for _ in range(200):
            damaged = bytearray(whole_one)
            for _ in range(choose.randint(1, 4)):
                damaged[choose.randrange(len(damaged))] = choose.randrange(256)
            list(declared_sizes(memoryview(bytes(damaged[: choose.randint(0, len(damaged))]))))
    deep = b""
    for _ in range(100):
        deep = graph([node("If", "f", "y", part(6, deep))], [], 1)
    list(declared_sizes(memoryview(part(7, deep))))


def test_invalid_tensors_and_outputs_are_refused() -> None:
    text = Model(
        model([node("Identity", "s", "y")], [], declared("y", 1, STRING), declared("s", 1, STRING))
    )
    with pytest.raises(OpFailed, match="ENOTSUP"):
        text.output_names(None)
    with pytest.raises(OpFailed, match="ENOTSUP"):
        text.feeds([{"name": "s", "shape": [1]}], [memoryview(b"")])
    invalid: tuple[object, ...] = ([[]], [{}], "y", [], ["x"], [None])
    for wanted in invalid:
        with pytest.raises(OpFailed, match="EINVAL"):
            text.output_names(wanted)


def test_a_classifiers_scores_and_sides() -> None:
    classifier = find_classifier(Context(), {"model": TEXT_DIRECTION})
    for scores in ([], [float("nan"), 1], [float("inf"), 1]):
        with pytest.raises(OpFailed, match="EINVAL"):
            classifier.top(np.array(scores, np.float32), 1)
