"""Runs of workflows in the history."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from corekit.decode import encode
from corekit.values import replace
from gpu_scheduler.model import Record, Step
from orchgpu.core.job import input_from_payload
from orchgpu.core.routing import StepOf
from orchgpu.history.reader import HistoryReader, Window
from orchgpu.history.store import Batch, Bounds, Store
from tests.history_records import UPLOADED_S, ended_record

T = UPLOADED_S
WINDOW = Window(since_s=T, until_s=T + 1000)


def of_run(record: Record, run: str, step: str) -> Record:
    """The record as a job of a step: its input was stored with that of its run."""
    source = input_from_payload(record.block)
    assert source is not None
    of = StepOf(run=run, workflow="film", step=step)
    block = {"function": step, "input": encode(replace(source, step=of))}
    return replace(record, block=block)


def job(run: str, step: str, end_s: float, **fields: object) -> Record:
    return of_run(ended_record(f"{run}-{step}", T + end_s, **fields), run, step)


def written(path: Path, *records: Record) -> Path:
    with Store(path / "history.sqlite") as store:
        store.write(Batch(records=records))
    return path / "history.sqlite"


def test_runs_are_counted_by_their_jobs(tmp_path: Path) -> None:
    lives = replace(job("r3", "cut", 50), step=Step.RUNNING, outcome=None)
    path = written(
        tmp_path,
        *(job("r1", "cut", 30), job("r1", "table", 60)),
        *(job("r2", "cut", 40), job("r2", "table", 90, outcome="FAILED", reason="KILLED")),
        lives,
        job("r3", "table", 55),
        job("r4", "cut", 2000),
        ended_record("own", T + 20),
    )
    with HistoryReader(path) as reader:
        (film,) = reader.runs(WINDOW)
    assert (film.workflow, film.runs, film.succeeded, film.jobs) == ("film", 2, 1, 4)
    assert (film.p50_s, film.p95_s) == (60.0, 60.0), "of the run that succeeded"
    shown = [(one.step, one.runs, one.jobs, one.succeeded, one.p50_s) for one in film.steps]
    assert shown == [("cut", 2, 2, 2, 4.0), ("table", 2, 2, 1, 4.0)]


def test_steps_are_removed_with_their_jobs(tmp_path: Path) -> None:
    with Store(tmp_path / "history.sqlite", Bounds(age_s=100.0)) as store:
        store.write(Batch(records=[job("r1", "cut", 30), job("r2", "cut", 300)]))
        assert store.prune(T + 350) == 1
        db = sqlite3.connect(store.path)
        assert db.execute("SELECT run FROM steps").fetchall() == [("r2",)]
        db.close()


def test_a_file_of_an_older_version_has_no_runs(tmp_path: Path) -> None:
    path = written(tmp_path, job("r1", "cut", 30))
    db = sqlite3.connect(path)
    db.execute("DROP TABLE steps")
    db.close()
    with HistoryReader(path) as reader:
        assert reader.runs(WINDOW) == ()
    again = written(tmp_path, job("r1", "table", 60))
    with HistoryReader(again) as reader:
        assert [one.jobs for one in reader.runs(WINDOW)] == [1]
