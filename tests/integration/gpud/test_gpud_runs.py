"""Functions that run on the host of their device, with a real gpud and an embedded cloud."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.envelope import Job
from contract.result import Result
from contract.states import JobState
from gpu_scheduler.protocol.host import Install

from .conftest import Gpud, running_gpud, until
from .run_bench import Bench, bench_in

COPY = '#!/bin/sh\ncp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/out.txt"; echo said\n'


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture
def gpud(tmp_path: Path) -> Iterator[Gpud]:
    with running_gpud(tmp_path) as made:
        yield made


def finished(gpud: Gpud, bench: Bench, install: Install, job: Job) -> Result:
    """The result, once the lease is over."""
    until(lambda: "closed" in dict(gpud.scheduler.states(install.lease)))
    result = bench.result(job)
    assert result is not None, bench.report(job)
    return result


def test_a_function_runs_on_the_host_to_its_result(gpud: Gpud, bench: Bench) -> None:
    assert "function-runner" in gpud.hello["programs"]
    install, job = bench.run(gpud, COPY)
    result = finished(gpud, bench, install, job)
    assert (result.state, result.log_tail) == (JobState.SUCCEEDED, "said\n")
    until(lambda: gpud.scheduler.states(install.lease)[-1:] == [("closed", "DONE")])
