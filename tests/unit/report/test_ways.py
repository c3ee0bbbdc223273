"""The variants of a function for a comparison, and the figures of their jobs."""

from __future__ import annotations

import pytest

from corekit.decode import encode
from corekit.errors import AppError
from corekit.values import replace
from fdl.model import Document
from fdl.parse import parse
from orchgpu.core.prices import Prices
from orchgpu.core.routing import InputEvent
from orchgpu.report.ways import Figures, Way, compared, figures, row, variant, variant_name
from tests.history_records import job_lease, job_record, job_result

FDL = """
functions:
  aws:
  - lambda:
      {name: fold, init_script: f.sh, memory: 1024, timeout: 14400, output: [{path: out/a}]}
    execution: auto
    gpu: {memory: 512}
    job: {input: [{path: from/b}], attempts: 3, queue: {name: own}}
    schedule: "0 3 * * 1"
"""
INPUT = InputEvent(
    bucket="in",
    key="b/x",
    version_id="v",
    etag="e",
    size=7,
    event_name="ObjectCreated:Put",
    event_time="1970-01-01T00:00:01.000Z",
)
STEPS = {"RECEIVED": 2.0, "WAITING": 2.0, "RESERVED": 5.0, "STAGED": 6.0, "RUNNING": 8.0}
CODE = {"EStart": 9.0, "EEnd": 12.0, "committed": 13.0}
PRICES = Prices(lambda_usd_per_gb_s=1.0, device_usd_per_hour=3600.0)


def document(*changes: tuple[str, str]) -> Document:
    text = FDL
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return parse(text)


@pytest.mark.parametrize(
    ("way", "execution", "with_device", "timeout_s"),
    [
        (Way.REMOTE, "lambda", True, 900),
        (Way.HOST, "host", True, 14400),
        (Way.CPU, "lambda", False, 900),
    ],
)
def test_a_variant_is_the_function_by_itself(
    way: Way, execution: str, with_device: bool, timeout_s: int
) -> None:
    whole = document()
    made = variant(whole, compared(whole, "fold"), way)
    (one,) = made.functions.aws
    assert (one.execution, one.gpu is not None, one.function.timeout_s) == (
        execution,
        with_device,
        timeout_s,
    )
    assert one.name == f"fold-compare-{way}"
    places = [str(storage.path) for _, storage in one.storages]
    assert places == [f"out/compare-{way}/a", f"from/compare-{way}/b"]
    assert one.intermediate.bucket == f"{one.name}-intermediate"
    assert one.queues[0] == f"{one.name}-jobs"
    assert one.job is not None
    assert (one.job.attempts_max, one.schedule) == (1, ())


def test_names_stay_within_the_limit() -> None:
    assert len(variant_name("f" * 64, Way.REMOTE)) == 64


LARGE = (("memory: 1024", "memory: 20480"),)
LAYERS = (
    ("execution: auto", "execution: lambda"),
    ("timeout: 14400", "timeout: 60, layers: ['arn:aws:lambda:us-east-1:1:layer:l:1']"),
)


@pytest.mark.parametrize(
    ("changes", "way", "why"),
    [
        (LARGE, Way.REMOTE, "10240 MB at most"),
        (LARGE, Way.CPU, "10240 MB at most"),
        (LAYERS, Way.HOST, "a host has no layers"),
    ],
)
def test_a_way_that_is_not_possible_has_its_reason(
    changes: tuple[tuple[str, str], ...], way: Way, why: str
) -> None:
    whole = document(*changes)
    with pytest.raises(AppError, match=why):
        variant(whole, compared(whole, "fold"), way)


def test_a_function_without_a_device_is_not_compared() -> None:
    whole = document(("gpu: {memory: 512}", "gpu: none"), *LAYERS)
    with pytest.raises(AppError, match="runs in Lambda alone"):
        compared(whole, "fold")
    with pytest.raises(AppError, match="workflow or a group"):
        compared(whole, "other")


@pytest.mark.parametrize(
    ("way", "freed_s", "usd"),
    [
        (Way.REMOTE, 13.0, 4.0 * 2 + 8.0),  # 2 GB for 4 s, a device for 8 s
        (Way.HOST, 13.0, 8.0),  # its memory is in the price of the device
        (Way.CPU, None, 4.0 * 2),
        (Way.REMOTE, None, None),  # its device is not released yet
    ],
)
def test_the_figures_of_a_job(way: Way, freed_s: float | None, usd: float | None) -> None:
    lease = replace(job_lease("j1", 5.0, 13.0), freed_s=freed_s)
    leases = () if way is Way.CPU else (lease,)
    record = job_record(block={"input": encode(INPUT)}, times=STEPS, leases=leases)
    result = job_result(attempt=1, times=CODE, files=[{"size": 3}, {"size": 4}])
    found = figures(way, "j1", "SUCCEEDED", record, result, memory_mib=2048, prices=PRICES)
    assert found == Figures(
        job="j1",
        state="SUCCEEDED",
        total_s=12.0,
        waiting_s=4.0,
        start_s=4.0,
        code_s=3.0,
        input_bytes=7,
        output_bytes=7,
        usd=usd,
    )


def test_a_row_has_the_means_of_the_jobs_that_succeeded() -> None:
    jobs = [
        Figures(job="a", state="SUCCEEDED", total_s=2.0, usd=1.0),
        Figures(job="b", state="SUCCEEDED", total_s=4.0),
        Figures(job="c", state="FAILED", total_s=90.0, usd=9.0),
    ]
    found = row(Way.HOST, jobs, "FAILED SCRIPT_FAILED")
    assert found.mean is not None
    assert (found.mean.total_s, found.mean.usd) == (3.0, None)
    assert found.why == "FAILED SCRIPT_FAILED"
    assert row(Way.HOST, jobs[2:], "FAILED").mean is None
