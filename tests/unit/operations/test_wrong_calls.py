"""Any arguments and inputs of a call give a result or an error code of the caller."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import Meta
from remote_gpu.worker.lane import Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import load_registry

REGISTRY = load_registry()
LIMIT_BYTES = 1 << 20
FAULTS_OF_CALLERS = set(OpCode) - {OpCode.EIO, OpCode.EPROTO}
#: By kernels it keeps memory for the next call, and starts threads; `test_products.py` has those.
DESCRIBED = [
    one for one in REGISTRY.described("cpu") if not one["implementation"].startswith("opencl")
]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return Runner(REGISTRY, Context(quota=Quota(LIMIT_BYTES)))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(-2, 2)
    | st.text(max_size=5)
    | st.integers(2**62, 2**70),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
    ),
    max_leaves=5,
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, Meta, list[bytes]]:
    """An operation with arguments of its own, each right or wrong in any way."""
    known = draw(st.sampled_from(DESCRIBED))
    args: Meta = {}
    for argument in known["arguments"]:
        likely = [
            st.just(word.strip()) for word in argument["rule"].partition("one of ")[2].split(",")
        ]
        if draw(st.booleans()):
            args[argument["name"]] = draw(st.one_of(values, *likely))
    args["implementation"] = known["implementation"].partition(" ")[0]
    buffers = draw(st.lists(st.binary(max_size=64), max_size=known["limits"]["inputs_max"] + 1))
    return known["name"], args, buffers


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calls())
def test_an_invalid_call_is_an_error_without_leaked_memory(
    runner: Runner, call: tuple[str, Meta, list[bytes]]
) -> None:
    name, args, buffers = call
    if name == "burn":
        args["ms"] = 0
    try:
        runner.run(name, args, [memoryview(one) for one in buffers])
    except OpFailed as error:
        assert error.code in FAULTS_OF_CALLERS, error.message  # noqa: PT017 - right calls pass
    assert runner._context.quota.used_bytes == 0
