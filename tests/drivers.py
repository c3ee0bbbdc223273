"""Which OpenCL drivers a run of the tests has: the machine's own, or none.

`make test` runs the tests marked `drivers` twice, the second time with every driver hidden.
"""

from __future__ import annotations

import os
import platform
import sys

import pytest

from remote_gpu.worker.backends.drivers import working_kinds

HIDDEN = "OCL_ICD_VENDORS" in os.environ  #: the Makefile names a folder that does not exist
#: Where the project's own dependencies bring a driver for the CPU.
BROUGHT = sys.platform == "linux" and platform.machine() == "x86_64"
#: For tests of kernels on this machine's CPU.
needs_cpu_driver = pytest.mark.skipif(
    "cpu" not in working_kinds(),
    reason="all OpenCL drivers are hidden" if HIDDEN else "no OpenCL driver for the CPU answers",
)
