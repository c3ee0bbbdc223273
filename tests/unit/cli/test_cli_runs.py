"""What `orchgpu job RUN` prints: steps and jobs by results and by the scheduler's records."""

from __future__ import annotations

import pytest

from contract.states import JobState
from corekit.ids import LeaseId
from corekit.values import replace
from gpu_scheduler.model import JobLease, Record, Step
from gpu_scheduler.promises import Slo
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.cli.jobs.runs import echo_run, run_json, step_rows, summary_row
from orchgpu.core.runs.state import state_of
from orchgpu.jobs.run_jobs import ASKED_MAX, steps_of, unread_jobs
from orchgpu.jobs.runs import SeenRun
from tests.history_records import job_record
from tests.shares import share_of
from tests.unit.orchgpu.runs.run_world import RUN, Function, World, step, workflow

FILM = workflow(step("cut"), step("measure", "cut", each=True), step("table", "measure"))
PARTS = ["1.part", "2.part", "3.part"]


def film(parts: list[str]) -> World:
    """A run whose first step is done, and whose second has a job for each part."""
    world = World(FILM, {"cut": Function(lambda _job, _n: parts)}, checks=False)
    world.fold()
    world.run_job(world.jobs.pop())
    world.fold()
    return world


def ended(world: World, job: str, start_s: float, end_s: float) -> None:
    """The result of a job that ran on a device."""
    times, device = {"EStart": start_s, "EEnd": end_s}, {"kind": "cuda", "host": "h1"}
    result = replace(world.result(job, JobState.SUCCEEDED), times=times, device=device)
    world.results[job] = (result, "e")


def seen_of(world: World, at_s: float) -> SeenRun:
    facts = replace(world.facts(), wall_s=at_s)
    return SeenRun(workflow=world.of, facts=facts, state=state_of(facts))


def parts_of(world: World) -> list[str]:
    return [job.id for job in world.state().steps["measure"].jobs]


def running(job: str, since_s: float) -> Record:
    lease = JobLease(
        lease=LeaseId("l-1"), attempt=1, shares=(share_of(host="h2"),), share_count=1, granted_s=1.0
    )
    return job_record(job, step=Step.RUNNING, times={"RUNNING": since_s}, leases=(lease,))


@pytest.fixture
def world() -> World:
    world = film(PARTS)
    (cut,) = (job.id for job in world.state().steps["cut"].jobs)
    ended(world, cut, 101.0, 103.0)
    world.results[cut] = (
        replace(
            world.results[cut][0],
            files=[
                {"bucket": "work", "key": f"cut/{name}", "size": 1, "etag": name} for name in PARTS
            ],
        ),
        "e",
    )
    return world


def test_a_step_shows_what_has_ended_and_what_runs(world: World) -> None:
    first, second, third = parts_of(world)
    ended(world, first, 104.0, 106.0)
    seen = seen_of(world, 110.0)
    done = replace(running(first, 104.0), outcome="SUCCEEDED", updated_s=106.0)
    records = {
        first: done,
        second: running(second, 105.0),
        third: job_record(third, step=Step.WAITING),
    }
    assert unread_jobs(seen) == [second, third, first], "those that may run come first"
    cut, measure, table = steps_of(seen, records)
    # results of several jobs are read once all are there
    assert [job.state for job in measure.jobs] == ["SUCCEEDED", "RUNNING", "WAITING"]
    assert measure.jobs[1].device == "cuda on h2"
    assert (cut.seconds(110.0), cut.end_s) == (2.0, 103.0)
    assert (measure.seconds(110.0), measure.end_s) == (6.0, None)
    assert (table.jobs, table.seconds(110.0)) == ((), None)
    rows = step_rows((cut, measure, table), 110.0)
    assert [(row.lane, row.bars, row.lasts) for row in rows] == [
        ("cut", ((101.0, 103.0),), False),
        ("measure", ((104.0, 110.0),), True),
    ]


def test_a_run_is_printed_with_its_tree_its_times_and_its_jobs(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    second = parts_of(world)[1]
    echo_run(seen_of(world, 110.0), {second: running(second, 105.0)})
    printed = capsys.readouterr().out
    assert "STARTED  0/3 jobs, 1 run  5.0 s  cuda on h2" in printed
    assert f"{second}  RUNNING  cut/2.part  on cuda on h2" in printed
    assert "5 s so far" in printed, "the Gantt"


def test_a_run_as_data_has_the_same(world: World) -> None:
    second = parts_of(world)[1]
    data = run_json(seen_of(world, 110.0), {second: running(second, 105.0)})
    steps = data["steps"]
    assert isinstance(steps, list)
    assert [(one["state"], one["seconds"], one["device"]) for one in steps] == [
        ("DONE", 2.0, "cuda on h1"),
        ("STARTED", 5.0, "cuda on h2"),
        ("BLOCKED", None, ""),
    ]
    assert [job["state"] for job in steps[1]["jobs"]] == ["-", "RUNNING", "-"]
    assert data["run_id"] == RUN


def test_few_records_are_asked_for_and_none_of_a_run_that_is_over() -> None:
    world = film([f"{n}.part" for n in range(ASKED_MAX + 5)])
    assert len(unread_jobs(seen_of(world, 110.0))) == ASKED_MAX
    failing = World(workflow(step("a")), {"a": Function(lambda _j, _n: [], lambda _j, _n: True)})
    failing.settle()
    assert unread_jobs(seen_of(failing, 2000.0)) == ()


def test_no_step_of_a_refused_run_has_ended() -> None:
    of = workflow(step("a"), step("b", "a"), slo=Slo(latency_s=9.0))
    world = World(of, {}, refuses=lambda _: Outcome.BUSY)
    world.settle()
    _, state, steps, reason, _ = summary_row(seen_of(world, world.now_s))
    assert (state, steps, reason) == ("REJECTED", "0/2", "SLO_BUSY")
