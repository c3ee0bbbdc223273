"""Which OpenCL drivers a run of the tests has: the machine's own, or none.

`make test` runs the tests marked `drivers` twice, the second time with every driver hidden.
"""

from __future__ import annotations

import functools
import os
import platform
import sys

import pytest

from remote_gpu.worker.backends.drivers import working_kinds
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context, Warm

HIDDEN = "OCL_ICD_VENDORS" in os.environ  #: the Makefile names a folder that does not exist
#: Where the project's own dependencies bring a driver for the CPU.
BROUGHT = sys.platform == "linux" and platform.machine() == "x86_64"
#: For tests of kernels on this machine's CPU.
needs_cpu_driver = pytest.mark.skipif(
    "cpu" not in working_kinds(),
    reason="all OpenCL drivers are hidden" if HIDDEN else "no OpenCL driver for the CPU answers",
)


@functools.cache
def _first_opencl() -> tuple[str, Warm]:
    """The id of the first OpenCL device, as a monitor would name it, and what is built for it."""
    from gpu_scheduler.monitor.drivers.opencl import poll  # pyopencl is an extra

    seen = poll("host")
    if isinstance(seen, str):
        pytest.skip(f"no OpenCL driver: {seen}")
    return seen.devices[0].id, Warm()


def on_opencl(quota: Quota | None = None) -> Context:
    """A context on a device of the kind `opencl`: this machine's CPU, used as if it were a card."""
    device, warm = _first_opencl()
    return Context(kind="opencl", device=device, warm=warm, quota=quota or Quota(1 << 30))
