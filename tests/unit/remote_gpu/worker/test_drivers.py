"""Offered operations depend on working drivers; each test also runs with all drivers hidden."""

from __future__ import annotations

import sys

import pytest

from remote_gpu.client import Graph, Local, OpFailed
from remote_gpu.worker.backends import drivers
from remote_gpu.worker.backends.choice import open_backend
from tests.drivers import BROUGHT, HIDDEN

pytestmark = pytest.mark.drivers

DOUBLE = "__kernel void twice(__global int *x) { x[get_global_id(0)] *= 2; }"


@pytest.mark.skipif(not BROUGHT, reason="no wheel brings an OpenCL driver for this platform")
def test_the_packaged_driver_works_unless_hidden() -> None:
    assert ({"cpu", "opencl"} <= drivers.working_kinds()) == (not HIDDEN)
    assert ("cpu" not in drivers.working_kinds()) == HIDDEN


def test_implementations_by_kernels_need_a_working_driver() -> None:
    with Local() as device:
        offered = {
            one["implementation"].split()[0]
            for one in device.op("operations.describe").values["operations"]
            if one["name"] == "sgemm"
        }
    kernels = {"opencl-blocked"}
    assert offered == {"numpy"} | (kernels if "cpu" in drivers.working_kinds() else set())


def test_kernels_run_or_the_error_names_what_is_missing() -> None:
    graph = Graph(DOUBLE)
    graph.launch("twice", (2,), (1,), graph.inout("x", 8))
    numbers = (3).to_bytes(4, "little") + (4).to_bytes(4, "little")
    with Local() as device:
        if "cpu" in drivers.working_kinds():
            found = device.run(graph, x=numbers)
            assert [found.outputs["x"][0], found.outputs["x"][4]] == [6, 8]
            return
        with pytest.raises(OpFailed, match="no working OpenCL driver for this machine's CPU"):
            device.run(graph, x=numbers)
    assert open_backend("cpu").implementation == "host"


def test_kinds_printed_before_a_crash_of_the_child_count() -> None:
    program = f"import os; print({drivers._PRINTED + 'cpu'!r}, flush=True); os.abort()"
    output = drivers._output_of([sys.executable, "-c", program], {})
    assert output == f"{drivers._PRINTED}cpu\n"


def test_a_hanging_driver_is_abandoned_at_the_time_limit() -> None:
    program = f"import signal; print({drivers._PRINTED + 'cpu'!r}, flush=True); signal.pause()"
    output = drivers._output_of([sys.executable, "-c", program], {}, limit_s=1.0)
    assert output in {f"{drivers._PRINTED}cpu\n", ""}  # "": it had not even started
