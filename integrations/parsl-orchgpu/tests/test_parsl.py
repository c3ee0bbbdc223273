"""Real Parsl with apps that are functions of a running system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import parsl
import pytest
from parsl import python_app
from parsl.executors.errors import InvalidResourceSpecification
from parsl.executors.threads import ThreadPoolExecutor

import orchgpu
from parsl_orchgpu import OrchgpuExecutor


@orchgpu.function(input="total-in", output="total-out", values=True)
def total(value: Any) -> Any:
    raise AssertionError("it runs where it was deployed")


def named(value: Any, parsl_resource_specification: Any = {"function": "total"}) -> Any:
    raise AssertionError("it runs where it was deployed")


def demanding(value: Any, parsl_resource_specification: Any = {"cores": 1}) -> Any: ...


@pytest.fixture
def _loaded(tmp_path: Path) -> Iterator[None]:
    executors = [OrchgpuExecutor(), ThreadPoolExecutor(label="here")]
    config = parsl.Config(executors=executors, run_dir=str(tmp_path), retries=0)
    with parsl.load(config):
        yield


@pytest.mark.usefixtures("_loaded")
def test_apps_of_functions_and_of_this_machine_are_one_graph() -> None:
    far = python_app(total, executors=["orchgpu"])
    also_far = python_app(named, executors=["orchgpu"])

    @python_app(executors=["here"])
    def pair(a: float, b: float) -> list[float]:
        return [a, b]

    futures = [far(pair(far([n, 1]), also_far([n, 2]))) for n in range(3)]
    assert [one.result(200) for one in futures] == [3, 5, 7]


@pytest.mark.usefixtures("_loaded")
def test_failures_arrive_with_their_reason() -> None:
    with pytest.raises(orchgpu.JobFailed) as error:
        python_app(total, executors=["orchgpu"])("text").result(200)
    assert error.value.reason == "EXIT_NONZERO"
    assert "TypeError" in error.value.log_tail
    for app, given, kind in (
        (lambda value: value, 1, TypeError),
        (total, object(), TypeError),
        (demanding, 1, InvalidResourceSpecification),
    ):
        with pytest.raises(kind):
            python_app(app, executors=["orchgpu"])(given).result(200)
