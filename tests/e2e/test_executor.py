"""`orchgpu.Executor` and `orchgpu.call` on deployed functions, by real jobs with a device."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orchgpu
from corekit.errors import AppError
from tests.e2e.live import Live, until

DECLARED = """
import orchgpu

PLACES = {
    "gpu": {"memory": "64MiB", "kinds": ["cpu"]},
    "output": "values-out",
    "memory": 256,
    "timeout": 60,
    "values": True,
}
JOB = {"attempts": 1}


@orchgpu.function(input="values-in/total", job=JOB, **PLACES)
def total(value):
    import remote_gpu.client as gpu

    if value == "fail":
        raise ValueError("the value asks for it")
    if value == "wait":
        import time

        time.sleep(600)
    with gpu.connect() as device:
        device.op("noop")
    return sum(value)


@orchgpu.function(input="values-in/halved", job=JOB, variables={"PYTHONPATH": NUMPY}, **PLACES)
def halved(array):
    return array / 2


@orchgpu.function(input="values-in/turned", job=JOB, **PLACES)
def turned(value):
    return value[::-1]


@orchgpu.function(input="values-in/unfit", job=JOB, **PLACES)
def unfit(value):
    return {1, 2}


@orchgpu.function(input="values-in/two", output="values-out", job=JOB)
def two(work):
    for name in "ab":
        (work.output_folder / f"{work.input.stem}.{name}").write_text(name)
"""


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    live.start("orchestrator")
    numpy = str(Path(np.__file__).parents[1])  # in the cloud it is in a layer, or in the package
    (live.path / "values.py").write_text(f"NUMPY = {numpy!r}\n{DECLARED}")
    live.orchgpu("deploy", "values.py")


@pytest.fixture(autouse=True)
def _as_user(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in live.environment.items():
        monkeypatch.setenv(name, value)


def threads() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name == "orchgpu.Executor"]


def test_ten_values_of_which_one_fails(live: Live) -> None:
    values = [[n, n + 1] for n in range(9)]
    with orchgpu.Executor() as executor:
        futures = [executor.submit("total", value) for value in values]
        failed = executor.submit("total", "fail")
        assert {future.result() for future in as_completed(futures, 90)} == {*range(1, 19, 2)}
        assert threads() == ["orchgpu.Executor"], "one for all of them"
        with pytest.raises(orchgpu.JobFailed) as error:
            failed.result(90)
        found = error.value
        assert (found.job_id, found.state, found.reason) == (
            failed.job_id,
            "FAILED",
            "EXIT_NONZERO",
        )
        assert "ValueError: the value asks for it" in found.log_tail
        assert "line" in str(found)
        known = {future.job_id for future in futures}
        same = executor.submit("total", [0, 1])
        assert same.result(90) == 1
        assert same.job_id in known, "an equal value has the answer of the same job"
    assert threads() == []
    with orchgpu.Executor(again=True) as executor:
        other = executor.submit("total", [0, 1])
        assert other.result(90) == 1
        assert other.job_id not in known
    live.quiet("total")


def test_a_running_job_is_cancelled_by_its_future(live: Live) -> None:
    with orchgpu.Executor() as executor:
        future, equal = executor.submit("total", "wait"), executor.submit("total", "wait")
        until("a running job", lambda: "RUNNING" in live.steps().values())
        assert equal.cancel()
        assert not future.done(), "another future waits for this job"
        assert future.cancel()
        assert future.cancelled()
        assert future.cancel(), "it may be repeated"
        with pytest.raises(CancelledError):
            future.result()
    assert live.result("total", str(future.job_id)).state == "CANCELLED"
    live.quiet("total")


def test_a_shutdown_cancels_what_has_not_ended(live: Live) -> None:
    executor = orchgpu.Executor(again=True)
    futures = [executor.submit("total", "wait") for _ in range(3)]
    until("uploads", lambda: all(future.job_id for future in futures))
    executor.shutdown(cancel_futures=True)
    assert threads() == []
    assert all(future.cancelled() for future in futures)
    states = {live.result("total", str(future.job_id)).state for future in futures}
    assert states == {"CANCELLED"}
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit("total", [1])
    live.quiet("total")


def test_arrays_and_bytes_and_other_consumers_of_executors() -> None:
    array = np.arange(6, dtype="<f4").reshape(2, 3)

    async def in_asyncio(executor: Any) -> Any:
        run: Any = asyncio.get_running_loop().run_in_executor
        pair = (run(executor, "halved", array), run(executor, "turned", b"abc"))
        return await asyncio.gather(*pair)

    executor: Any = orchgpu.Executor()
    with executor:
        mapped = list(executor.map("turned", ["abc", [1, 2], b"\0\1"], timeout=90))
        assert mapped == ["cba", [2, 1], b"\1\0"]
        half, back = asyncio.run(in_asyncio(executor))
    assert half.dtype == array.dtype
    assert (half * 2 == array).all()
    assert back == b"cba"


def test_files_go_up_and_come_down(live: Live) -> None:
    (live.path / "a.txt").write_bytes(b"fed")
    with orchgpu.Executor() as executor:
        future = executor.submit_file("turned", live.path / "a.txt", output=live.path / "back")
        (file,) = future.result(90).outputs
        assert (file.name, file.read_bytes()) == ("a.bin", b"def")
        renamed = executor.submit_file("turned", live.path / "a.txt", name="b.txt").result(90)
        assert (renamed.input.name, renamed.objects) == ("a.txt", ("s3://values-out/b.bin",))
        with pytest.raises(AppError, match="there is no file"):
            executor.submit_file("turned", live.path / "missing").result(90)


def test_a_value_whose_job_failed_runs_again(live: Live) -> None:
    jobs = set()
    for _ in range(2):
        with orchgpu.Executor() as executor:
            future = executor.submit("total", "fail")
            with pytest.raises(orchgpu.JobFailed):
                future.result(90)
            jobs.add(future.job_id)
    assert len(jobs) == 2
    live.quiet("total")


def test_one_call() -> None:
    assert orchgpu.call("turned", [1, None, {"a": 2.5}], timeout_s=90) == [{"a": 2.5}, None, 1]
    with pytest.raises(orchgpu.JobFailed, match=r"TypeError: set: .* JSON, bytes or a NumPy array"):
        orchgpu.call("unfit", 1, timeout_s=90)
    with pytest.raises(AppError, match="several outputs, an answer is one file"):
        orchgpu.call("two", 1, timeout_s=90)
    with pytest.raises(AppError, match="no function 'none' is deployed"):
        orchgpu.call("none", 1)
