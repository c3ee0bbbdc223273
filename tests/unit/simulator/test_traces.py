"""Loads of traces and journals: the published layouts, and what a daemon wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corekit.errors import AppError
from gpu_scheduler.model import Request
from gpu_scheduler.parameters import Parameters
from simulator.workloads import traces
from simulator.workloads.experiments import simulate
from simulator.workloads.replay import entries_of, hosts_of, replayed
from simulator.workloads.run_file import load_run, parse_run
from tests.pool import Pool
from tests.unit.gpu_scheduler_daemon.journals import opened

RUNS = Path(__file__).parents[3] / "simulator" / "runs"
TEMPLATE = traces.template_of(loading_s=2.0, memory_mib=100, compute_pct=50)


def test_minutes_and_percentiles_of_2019() -> None:
    run = load_run(RUNS / "azure2019.yaml")
    (trace,) = run.load
    assert isinstance(trace, traces.Trace)
    busiest = "00functioncccccccc"[:12]
    own = [row for row in trace.rows if row.workload == busiest]
    first_minute = [row for row in own if row.at_s < 60 - trace.rows[0].at_s]
    assert 20 <= len(first_minute) <= 45
    lengths = [row.execution_s or 0.0 for row in own]
    assert min(lengths) >= 0.1
    assert max(lengths) <= 1.6
    assert sorted(lengths)[len(lengths) // 2] == pytest.approx(0.4, rel=0.15)
    assert run.workloads[busiest].memory_mib == 300


def test_invocations_of_2021_begin_at_their_end_less_their_duration(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("app,func,end_timestamp,duration\nA,f,10.5,0.5\nA,g,12,9\nB,f,14,1\n")
    trace = traces.azure_2021(file, TEMPLATE, functions_max=1)
    assert [(row.at_s, row.workload, row.execution_s) for row in trace.rows] == [
        (0.0, "f", 0.5),
        (3.0, "f", 1.0),
    ]
    assert set(trace.workloads) == {"f"}


def test_pods_of_alibaba_have_parts_of_devices(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv"
    file.write_text(
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,qos,creation_time,deletion_time,"
        "scheduled_time\n"
        "a,1,1,1,250,LS,100,160,110\nb,1,1,2,1000,BE,130,150,\nc,1,1,0,0,LS,1,2,1\n"
    )
    trace = traces.alibaba_2023(file, TEMPLATE, device_mib=16000)
    assert [(row.at_s, row.workload, row.execution_s) for row in trace.rows] == [
        (0.0, "1x250", 50.0),
        (30.0, "2x1000", 20.0),
    ]
    small = trace.workloads["1x250"]
    assert (small.compute_pct, small.memory_mib, small.count) == (25, 4000, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("app,func\n", "lacks the columns end_timestamp, duration"),
        ("app,func,end_timestamp,duration\nA,f,soon,1\n", "trace.csv:2: end_timestamp 'soon'"),
        ("app,func,end_timestamp,duration\n", "no request that the run can use"),
    ],
)
def test_a_file_of_another_layout_is_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(text)
    with pytest.raises(AppError, match=message):
        traces.azure_2021(file, TEMPLATE, functions_max=9)


def three_jobs() -> Pool:
    """A pool on which three jobs ran, one after the other, with its journal."""
    pool = Pool(1, Parameters())
    pool.entries = list(pool.machine.snapshot())
    for number, length_s in enumerate((5.0, 3.0, 4.0)):
        pool.hold(Request(memory_mib=600 + number, workload=f"w{number % 2}"), length_s)
        pool.advance(pool.now_s + 1.0)
    pool.advance(None)
    return pool


async def write_journal(folder: Path, pool: Pool) -> None:
    assert pool.entries is not None
    journal, _ = opened(folder)
    await journal.append(pool.entries)
    journal.close()


def test_the_journal_of_a_daemon_is_a_load(tmp_path: Path) -> None:
    pool = three_jobs()
    asyncio.run(write_journal(tmp_path / "state", pool))
    trace = replayed(entries_of(tmp_path / "state"))
    assert [(row.at_s, row.workload, row.execution_s) for row in trace.rows] == [
        (0.0, "w0", 5.0),
        (1.0, "w1", 3.0),
        (2.0, "w0", 4.0),
    ]
    assert sum(spec.devices for spec in hosts_of(entries_of(tmp_path / "state"))) == 1
    run = parse_run("load: [{kind: journal, folder: state}]\n", "run.yaml", tmp_path)
    jobs = simulate(run, 1)[1]
    before = [(job.asked_s, job.granted_s, job.ended_s) for job in pool.jobs]
    assert [(job.asked_s, job.granted_s, job.ended_s) for job in jobs] == before


def test_a_folder_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AppError, match="name the state folder of ssgmd"):
        entries_of(tmp_path)
