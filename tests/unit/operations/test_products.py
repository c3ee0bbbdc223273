"""Matrix products by kernels, where this machine has OpenCL."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.remote_gpu.sgemm_kernels import OPERATIONS, SOURCE
from operations.kernels.source import read_source
from operations.matrix.product import source
from operations.plugins import sgemm
from remote_gpu.wire.errors import OpFailed
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from tests.drivers import needs_cpu_driver
from tests.unit.operations.conftest import Card


@pytest.fixture(scope="module")
def context() -> Context:
    return Context(quota=Quota(1 << 20))


def multiply(context: Context, name: str, m: int, n: int, k: int) -> None:
    operations = (*sgemm.OPERATIONS, *OPERATIONS)
    operation = next(one for one in operations if one.implementation.split()[0] == name)
    rng = np.random.default_rng(m * n * k)
    a = rng.standard_normal((m, k), dtype=np.float32)
    b = rng.standard_normal((k, n), dtype=np.float32)
    views = [a.data.cast("B"), b.data.cast("B")]
    values, outputs = operation.run(context, {"m": m, "n": n, "k": k}, views)
    assert values == {"shape": [m, n]}
    np.testing.assert_allclose(np.asarray(outputs[0]), a @ b, rtol=1e-4, atol=1e-4)


@needs_cpu_driver
@pytest.mark.parametrize("name", ["opencl-naive", "opencl-tiled", "opencl-blocked"])
def test_the_product_of_any_shape_is_correct(context: Context, name: str) -> None:
    for m, n, k in ((64, 32, 16), (1, 1, 1), (70, 9, 21), (17, 33, 5), (17, 33, 5)):
        multiply(context, name, m, n, k)


@pytest.mark.parametrize("sides", [(64, 64, 16), (1, 1, 1), (130, 70, 33), (65, 64, 17)])
def test_the_product_for_cards_is_correct(card: Card, sides: tuple[int, int, int]) -> None:
    multiply(card(), "kernel-tiles", *sides)


@needs_cpu_driver
def test_memory_is_reserved_in_the_quota_and_freed(context: Context) -> None:
    with pytest.raises(OpFailed, match="ENOMEM"):
        multiply(context, "opencl-naive", 512, 512, 1)
    multiply(context, "opencl-naive", 3, 4, 5)  # nothing stayed reserved


def test_the_kernels_are_in_the_portable_subset() -> None:
    assert set(read_source(source()).kernels) == {"blocked"}
    assert set(read_source(SOURCE).kernels) == {"naive", "tiled"}
