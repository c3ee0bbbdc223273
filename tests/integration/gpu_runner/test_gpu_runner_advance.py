"""A function that starts before its device is free waits; its own time begins after that."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed, LeaseNotOpen
from lambda_functions.gpu_runner.storage.prefetch import Prefetch

COPY = 'cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/copy"'


def test_the_wait_for_the_device_takes_none_of_the_scripts_time(bench: Any) -> None:
    """Of 4 s of its own it keeps 2 s back; it waits longer than the other 2 s."""
    bench.write(COPY)
    bench.timeout_s, bench.advance_s = 8.0, 4.0
    bench.gateway.waits = 2
    bench.gateway.free.clear()

    def free_later() -> None:
        bench.gateway.waiting.wait(60)
        time.sleep(2.2)
        bench.gateway.free.set()

    freed = threading.Thread(target=free_later)
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


def fetched_ahead(bench: Any, then: Callable[[], object]) -> threading.Thread:
    """Once the input lies on the disk of a start that waits: `then`, and the device is free."""
    bench.s3.put_object(Bucket=bench.job.input_bucket, Key=bench.job.input_key, Body=bench.body)
    bench.change(input_inline=False)
    bench.gateway.waits = 2
    bench.gateway.free.clear()

    def watch() -> None:
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:
            files = (bench.folder / "tmp").rglob("b.txt")
            if any(file.stat().st_size == len(bench.body) for file in files):
                then()
                break
            time.sleep(0.01)
        bench.gateway.free.set()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_the_input_is_fetched_while_the_function_waits(bench: Any) -> None:
    bench.write(COPY)
    bench.advance_s = 30.0
    where = {"Bucket": bench.job.input_bucket, "Key": bench.job.input_key}
    thread = fetched_ahead(bench, lambda: bench.s3.delete_object(**where))
    assert bench.run()["status"] == "succeeded"
    thread.join()
    assert list(bench.outputs.values()) == [b"hello"]
    digest = hashlib.sha256(b"hello").hexdigest()
    assert bench.result.provenance["input"]["sha256"] == digest


def test_a_start_that_comes_too_late_leaves_nothing_of_its_input(bench: Any) -> None:
    bench.write(COPY)
    bench.advance_s, bench.gateway.refuse = 30.0, "CLAIMED"
    thread = fetched_ahead(bench, lambda: None)
    assert bench.run()["status"] == "duplicate"
    thread.join()
    assert (bench.report, bench.result, bench.outputs) == (None, None, {})


def test_an_input_that_cannot_be_fetched_ahead_is_read_in_the_lease() -> None:
    seen: list[str] = []

    def fetch(check: Callable[[], None]) -> Path:
        seen.append("asked")
        check()
        raise AttemptFailed(Reason.INPUT_ERROR, "overwritten")

    with Prefetch(fetch) as prefetch:
        assert prefetch.found() is None
        prefetch.begin()
        prefetch.begin()
        assert prefetch.found() is None
    assert seen == ["asked"]


def test_a_fetch_ends_with_its_start() -> None:
    began, ended = threading.Event(), threading.Event()

    def fetch(check: Callable[[], None]) -> Path:
        began.set()
        try:
            while True:
                check()
        finally:
            ended.set()

    with Prefetch(fetch) as prefetch:
        prefetch.begin()
        assert began.wait(30)
    assert ended.is_set()
    assert prefetch.found() is None
