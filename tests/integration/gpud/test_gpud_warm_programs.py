"""Programs of functions that stay on their host between two jobs, with a real gpud."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.envelope import Job
from contract.states import JobState
from fdl.parse import parse
from gpu_scheduler.protocol.host import Install, WarmLimits
from gpu_scheduler.warm import workload_key
from orchgpu.deploy.package import build
from remote_gpu.isolation import probe
from remote_gpu.wire.runs import Package

from .conftest import Gpud, lives, running_gpud, until
from .run_bench import FUNCTION, Bench, bench_in, send_order
from .test_gpud_runs import finished, nothing_left

PROGRAM = """
import os
import sys
import orchgpu

def load():
    return []

@orchgpu.function(input="input/a", output="output/res", load=load)
def work(work, calls):
    calls.append(work.key)
    print(os.getpid(), len(calls), os.getcwd() == str(work.input_folder.parent))
    if {fails}:
        sys.exit(3)
    (work.output_folder / "out.txt").write_text(work.input.read_text())
"""
WORKLOAD = "echo-1"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    facts = probe.ask([])
    if not facts.cgroup:
        pytest.skip("NOT TESTED: this machine has no cgroups of version 2, which freeze programs")
    with bench_in(tmp_path_factory.mktemp("cloud")) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpud]:
    with running_gpud(tmp_path_factory.mktemp("gpud")) as made:
        yield made


@pytest.fixture
def gpud(shared: Gpud) -> Iterator[Gpud]:
    shared.scheduler.limit(WarmLimits())
    yield shared
    shared.scheduler.limit(WarmLimits(workers_max=0))
    until(lambda: shared.scheduler.residents == {})
    nothing_left(shared)


def package(bench: Bench, fails: str = "False") -> Package:
    (bench.folder / "prog.py").write_text(PROGRAM.format(fails=fails))
    text = f"functions: {{aws: [{{lambda: {{name: {FUNCTION}, handler: prog.work}}}}]}}"
    built = build(parse(text).functions.aws[0], bench.folder)
    key = f"packages/{built.sha256}.zip"
    bench.s3.put_object(Bucket="state", Key=key, Body=built.data)
    return Package(bucket="state", key=key, sha256=hashlib.sha256(built.data).hexdigest())


def ordered(
    gpud: Gpud, bench: Bench, of: Package, tenant: str = "t", **fields: Any
) -> tuple[Install, Job]:
    install = gpud.install(workload=WORKLOAD, tenant=tenant)
    job, event = bench.stage(gpud, install)
    variables = {"ORCHGPU_MODE": "job", "ORCHGPU_HANDLER": "prog.work"}
    order = bench.order(job, event, of, **{"variables": variables, "warm": True, **fields})
    assert send_order(gpud, install, order)
    return install, job


def served(gpud: Gpud, bench: Bench, of: Package, **fields: Any) -> tuple[int, int]:
    """Process and number of its calls, as a job that succeeds shows them."""
    install, job = ordered(gpud, bench, of, **fields)
    result = finished(gpud, bench, install, job)
    assert result.state == JobState.SUCCEEDED, result
    assert [file["key"] for file in result.files] == ["res/out.txt"]
    until(lambda: gpud.scheduler.is_cut(install.lease))
    pid, calls, own_folder = result.log_tail.split()
    assert own_folder == "True"
    return int(pid), int(calls)


def parked(gpud: Gpud) -> str:
    """The id of the only parked program, as published."""
    until(lambda: len(gpud.scheduler.residents) == 1)
    (name,) = gpud.scheduler.residents
    return name


def process_of(name: str) -> int:
    return int(name[1:].partition("-")[0])


def test_one_process_serves_two_jobs_and_has_loaded_once(gpud: Gpud, bench: Bench) -> None:
    program = package(bench)
    first = served(gpud, bench, program)
    name = parked(gpud)
    published = gpud.scheduler.residents[name]
    assert published["workload"] == workload_key("t", WORKLOAD)
    assert published["memory_mib"] > 0
    assert published["loading_s"] > 0
    (scratch,) = (gpud.state / "scratch").iterdir()
    assert not (scratch / "private" / "credentials.json").exists()
    assert list((scratch / "tmp").iterdir()) == []
    second = served(gpud, bench, program)
    assert (first[1], second[1]) == (1, 2)
    assert first[0] == second[0]
    assert process_of(parked(gpud)) == process_of(name)
    until(lambda: sum("REPORT" in line for line in bench.log()) == 2)


def test_a_parked_program_does_not_run(gpud: Gpud, bench: Bench) -> None:
    served(gpud, bench, package(bench))
    pid = process_of(parked(gpud))
    before = cpu_ticks(pid)
    time.sleep(0.2)
    assert cpu_ticks(pid) == before
    groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    assert any("orchgpu-" in line for line in groups if line.startswith("0::"))


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.parametrize("change", ["package", "variables", "tenant", "cold"])
def test_no_other_program_is_served(gpud: Gpud, bench: Bench, change: str) -> None:
    program = package(bench)
    served(gpud, bench, program)
    name = parked(gpud)
    if change == "package":
        other = served(gpud, bench, package(bench, "0"))
    elif change == "variables":
        variables = {"ORCHGPU_MODE": "job", "ORCHGPU_HANDLER": "prog.work", "MINE": "other"}
        other = served(gpud, bench, program, variables=variables)
    elif change == "tenant":
        other = served(gpud, bench, program, tenant="other")
    else:
        other = served(gpud, bench, program, warm=False)
    assert other[1] == 1
    until(lambda: change == "tenant" or not lives(process_of(name)))


def test_a_program_that_fails_is_replaced(gpud: Gpud, bench: Bench) -> None:
    program = package(bench, "len(calls) == 2")
    first = served(gpud, bench, program)
    name = parked(gpud)
    install, job = ordered(gpud, bench, program)
    until(lambda: bench.report(job) is not None)
    report = bench.report(job)
    assert report is not None
    assert (report.reason, report.log_tail.split()[:2]) == ("EXIT_NONZERO", [str(first[0]), "2"])
    until(lambda: gpud.scheduler.is_cut(install.lease))
    until(lambda: not lives(process_of(name)))
    assert served(gpud, bench, program)[1] == 1


def test_one_that_died_while_it_was_parked_is_replaced(gpud: Gpud, bench: Bench) -> None:
    program = package(bench)
    served(gpud, bench, program)
    os.kill(process_of(parked(gpud)), 9)
    until(lambda: gpud.scheduler.residents == {})
    assert served(gpud, bench, program)[1] == 1


def test_it_is_evicted_for_a_lease_that_needs_its_memory(gpud: Gpud, bench: Bench) -> None:
    served(gpud, bench, package(bench))
    name = parked(gpud)
    whole = gpud.install(gpud.device["memory_mib"])
    until(lambda: not lives(process_of(name)))
    until(lambda: any(name in one.get("warm", ()) for one in gpud.log() if one["event"] == "evict"))
    gpud.scheduler.end(whole)


def test_nothing_of_it_outlives_a_gpud_that_is_killed(bench: Bench, tmp_path: Path) -> None:
    with running_gpud(tmp_path) as gpud:
        served(gpud, bench, package(bench))
        name = parked(gpud)
        gpud.kill()
        until(lambda: not lives(process_of(name)))
