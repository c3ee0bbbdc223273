"""The reasons below the table of `orchgpu jobs`."""

from __future__ import annotations

from corekit.cli.screen import Coloured
from corekit.decode import encode
from corekit.values import replace
from orchgpu.cli.commands.jobs.jobs import _table, wait_lines
from orchgpu.cli.jobs.lookup import shown_input
from orchgpu.core.routing import InputEvent, StepOf, classify
from orchgpu.jobs.records import record_json
from orchgpu.jobs.summary import attempt_text, summary_of
from tests.history_records import job_record
from tests.unit.orchgpu.runs.run_world import (
    BUCKET,
    INPUT,
    RUN,
    Function,
    World,
    step,
    workflow,
)


def waiting(job: str, reason: str, why: str) -> dict[str, object]:
    return {
        "job_id": job,
        "function": "f",
        "state": "WAITING",
        "reason": reason,
        "attempt": 1,
        "updated_s": 0.0,
        "input": None,
        "why": why,
    }


def test_equal_reasons_are_written_once_without_leases() -> None:
    why = "number {} in the queue: 0 of 1 fit now. Blocked by lease-1 of j7:1 on h/0, ends in 9 s"
    jobs = [waiting(f"j{number}", "BUSY", why.format(number)) for number in range(1, 13)]
    jobs.append(waiting("j13", "QUOTA", "tenant lab holds 2 of 2 devices"))
    jobs.append(waiting("j14", "NONE", ""))
    assert list(wait_lines(jobs)) == [
        "12 jobs WAITING BUSY: j1: number 1 in the queue: 0 of 1 fit now",
        "1 job WAITING QUOTA: tenant lab holds 2 of 2 devices",
        "`orchgpu job ID` has the leases that a job waits for",
    ]
    assert list(wait_lines(jobs[-1:])) == []


def test_reasons_without_leases_refer_to_no_lease() -> None:
    jobs = [waiting("j1", "QUOTA", "tenant lab holds 2 of 2 devices")]
    assert list(wait_lines(jobs)) == ["1 job WAITING QUOTA: tenant lab holds 2 of 2 devices"]


def test_a_job_without_a_reason_has_an_empty_cell() -> None:
    (_, row) = _table([waiting("j1", "NONE", "")], "no jobs")
    assert "NONE" not in "".join(map(str, row))


def test_a_job_that_could_run_on_a_host_shows_where_it_does() -> None:
    waits: dict[str, object] = {"place": "host", "place_why": "it is declared so"}
    blocks: tuple[dict[str, object], ...] = (waits, {"place": "lambda", "place_why": "it fits"}, {})
    rows = [_table([record_json(job_record(block=block))], "no jobs")[1] for block in blocks]
    shown = [row[8].word for row in rows if isinstance(row[8], Coloured)]
    assert shown == ["1 (host)", "1 (Lambda)", "1"]
    assert attempt_text(2, "host gpu-a: it is declared so") == "2 (host gpu-a)"


def test_a_job_of_a_step_names_its_run_and_shows_its_first_file() -> None:
    of = StepOf(run=RUN, workflow="films", step="table")
    block = {"function": "table", "input": encode(replace(INPUT, step=of))}
    entry = record_json(job_record(block=block))
    assert (entry["run"], entry["step"]) == (RUN, "table")
    assert shown_input(entry) == "work/in/film.mp4"
    assert shown_input({**entry, "inputs": ["b/1", "b/2", "b/3"]}) == "b/1 and 2 more"
    own = record_json(job_record(block={"function": "f", "input": encode(INPUT)}))
    assert (own["run"], own["step"]) == (None, None)


def test_the_record_of_a_list_of_files_shows_the_first_one() -> None:
    cut = Function(lambda _job, _n: ["1.x", "2.x"])
    world = World(workflow(step("cut"), step("table", "cut")), {"cut": cut})
    world.fold()
    world.run_job(world.jobs.pop())
    world.fold()
    source = classify(world.jobs[0], replace(world.of, name="table"))
    assert isinstance(source, InputEvent)
    assert source.lists_files
    record = job_record(block={"function": "table", "input": encode(source)})
    job = summary_of(record)
    assert job.files_text == f"{BUCKET}/cut/1.x and 1 more"
    assert job.matches("cut/1.x")
    assert not job.redacted().files_text
    entry = record_json(record)
    assert shown_input(entry) == job.files_text
    assert str(entry["input"]).endswith("/inputs/table.json"), "programs read the list"
