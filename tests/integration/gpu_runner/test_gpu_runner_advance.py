"""A function that starts before its device is free waits; its own time begins after that."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from lambda_functions.gpu_runner.errors import LeaseNotOpen

COPY = 'cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/copy"'


def test_the_wait_for_the_device_takes_none_of_the_scripts_time(bench: Any) -> None:
    """Of 4 s of its own it keeps 2 s back; it waits longer than the other 2 s."""
    bench.write(COPY)
    bench.timeout_s, bench.advance_s = 8.0, 4.0
    bench.gateway.waits = 2
    bench.gateway.free.clear()
    freed = threading.Timer(2.2, bench.gateway.free.set)
    freed.start()
    assert bench.run()["status"] == "succeeded"
    freed.join()
    times = bench.result.times
    assert times["invoked"] <= times["knocked"] <= times["claimed"] - 2.0
    assert times["claimed"] <= times["EStart"]


def test_a_start_that_finds_its_device_free_has_not_knocked(bench: Any) -> None:
    bench.write(COPY)
    bench.advance_s = 4.0
    assert bench.run()["status"] == "succeeded"
    assert "knocked" not in bench.result.times


def test_a_lease_that_is_withdrawn_while_the_function_waits_is_not_an_error(bench: Any) -> None:
    bench.write(COPY)
    bench.gateway.waits, bench.gateway.refuse = 1, "ENDED"
    bench.gateway.why = "WITHDRAWN: lease lease-1 ended here"
    assert bench.run()["status"] == "withdrawn"
    assert (bench.report, bench.result, bench.outputs) == (None, None, {})
    assert bench.gateway.heard == []


def test_shares_that_stay_occupied_after_the_wait_are_an_error_of_the_function(bench: Any) -> None:
    bench.write(COPY)
    bench.gateway.waits, bench.gateway.refuse = 1, "NOT_READY"
    with pytest.raises(LeaseNotOpen, match="NOT_READY"):
        bench.run()
