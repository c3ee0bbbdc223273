"""Run files: what they hold, and errors at file:line:column."""

from __future__ import annotations

from pathlib import Path

import pytest

from corekit.errors import AppError
from simulator.workloads.run_file import load_run, parse_run

RUNS = Path(__file__).parents[3] / "simulator" / "runs"
HOSTS = "hosts: [{name: g}]\n"
MODEL = "workloads: {m: {execution: 1}}\n"
LOAD = "load: [{kind: poisson, workload: m, rate: 1}]\n"


@pytest.mark.parametrize("path", sorted(RUNS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_is_valid(path: Path) -> None:
    run = load_run(path)
    assert run.devices >= 1
    assert run.load


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        (HOSTS + MODEL, "1:1", "missing key 'load'"),
        (HOSTS + MODEL + LOAD + "sead: 1\n", "4:1", "unknown key 'sead'"),
        (HOSTS + LOAD, "2:8", "the workload 'm' is not declared"),
        (MODEL + LOAD, "1:1", "a run needs at least one device"),
        (HOSTS + MODEL + "load: [{workload: m}]\n", "3:8", "missing key 'kind'"),
        (HOSTS + MODEL + "load: [{kind: poison}]\n", "3:15", "is not one of poisson"),
        (HOSTS + MODEL + LOAD + "duration: soon\n", "4:11", "is not a duration"),
        (HOSTS + "workloads: {m: {count: 0}}\n" + LOAD, "2:24", "must lie in"),
        (HOSTS + MODEL + LOAD + "occupancy: nan\n", "4:12", "must lie in 0…100"),
        (
            HOSTS + "load: [{kind: azure2021, file: none.csv}]\n",
            "2:8",
            "none.csv cannot be read",
        ),
    ],
)
def test_an_error_names_its_place(text: str, where: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(AppError) as caught:
        parse_run(text, "run.yaml", tmp_path)
    first = caught.value.message.splitlines()[0]
    assert first.startswith(f"run.yaml:{where}: error: ")
    assert message in first


def test_times_may_differ_by_device() -> None:
    run = load_run(RUNS / "hardless.yaml")
    execution = run.workloads["yolo"].execution
    assert execution["cuda"].median_s == 1.675
    assert execution["vpu"].median_s == 1.577
    assert execution["vpu"].spread == 0.3
