"""Matrix products by kernels, where this machine has OpenCL."""

from __future__ import annotations

import numpy as np
import pytest

from remote_gpu.wire.errors import OpFailed
from remote_gpu.worker.kernels.source import read_source
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context, Registry
from remote_gpu.worker.operations import sgemm
from remote_gpu.worker.products import source
from tests.drivers import needs_cpu_driver


@pytest.fixture(scope="module")
def context() -> Context:
    return Context(quota=Quota(1 << 20))


def multiply(context: Context, name: str, m: int, n: int, k: int) -> None:
    registry = Registry()
    for operation in sgemm.OPERATIONS:
        registry.add(operation)
    rng = np.random.default_rng(m * n * k)
    a = rng.standard_normal((m, k), dtype=np.float32)
    b = rng.standard_normal((k, n), dtype=np.float32)
    views = [memoryview(a).cast("B"), memoryview(b).cast("B")]
    values, outputs = registry.find("sgemm", "cpu", name).run(
        context, {"m": m, "n": n, "k": k, "implementation": name}, views
    )
    assert values == {"shape": [m, n]}
    np.testing.assert_allclose(outputs[0], a @ b, rtol=1e-4, atol=1e-4)


@needs_cpu_driver
@pytest.mark.parametrize("name", ["opencl-naive", "opencl-tiled", "opencl-blocked"])
def test_any_shape_is_right(context, name) -> None:
    for m, n, k in ((64, 32, 16), (1, 1, 1), (70, 9, 21), (17, 33, 5), (17, 33, 5)):
        multiply(context, name, m, n, k)


@needs_cpu_driver
def test_memory_is_asked_of_the_quota(context) -> None:
    with pytest.raises(OpFailed, match="ENOMEM"):
        multiply(context, "opencl-naive", 512, 512, 1)
    multiply(context, "opencl-naive", 3, 4, 5)  # and nothing of it stayed


def test_the_kernels_keep_to_what_every_device_builds() -> None:
    assert set(read_source(source()).kernels) == {"naive", "tiled", "blocked"}
