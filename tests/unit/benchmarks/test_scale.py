"""The page about scale: its tables follow from the figures, and its hour performs whole jobs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.scale.hour import Hour, recovered, simulated
from benchmarks.scale.ladder import Figures, Scale, limits
from corekit.cli.progress import Bar
from gpu_scheduler.protocol.changes import Entry, encode_entry
from tools.scale_table import FIGURES as PAGE_OF_FIGURES
from tools.scale_table import PAGE, renewed

FIGURES = """\
## scheduler.fleet

| metric | value | baseline | ratio | target | met |
| --- | --- | --- | --- | --- | --- |
| daemon_cores | 0.1 cores |  |  | <= 0.2 | yes |
| reports_per_s | 500 1/s |

## scale.rate

| scheduler_ms_per_job_most | 1.5 ms |

## scale.hour

| core_us_per_job | 500 µs |

## scheduler.cycles

| postgres_group_ratio_32 | 1.5 | bare appends/s, one after the other (750 cycles/s): 500 | 1.5 |
"""


def test_the_tables_of_the_page_follow_from_the_figures() -> None:
    """Renew them with `python -m tools.scale_table`."""
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page) == page, "run python -m tools.scale_table"


def test_costs_add_up_to_the_number_at_which_one_must_split() -> None:
    scale = Scale(Figures(FIGURES), jobs_per_hour=3600 * 100, devices=8 * 1000)
    assert scale.report_ms == pytest.approx(0.2)
    assert scale.reports_per_s == 500
    assert scale.scheduler_cores == pytest.approx(100 * 0.002 + 0.1)
    assert scale.split_jobs_per_hour == pytest.approx(3600 * (0.7 - 0.1) / 0.002)
    assert scale.split_devices == pytest.approx(8 * (0.7 - 0.2) / 0.0001)
    assert scale.log_jobs_per_hour("postgres") == pytest.approx(3600 * 750 * 2 / 6)


def test_at_the_number_to_split_one_scheduler_uses_the_part_of_its_core() -> None:
    figures = Figures(FIGURES)
    most = Scale(figures).split_jobs_per_hour
    assert math.isclose(Scale(figures, jobs_per_hour=most).scheduler_cores, 0.7)


def test_no_number_of_devices_is_shown_where_the_jobs_alone_are_too_many() -> None:
    figures = Figures(PAGE_OF_FIGURES.read_text(encoding="utf-8"))
    rows = {row[0]: row[1] for row in limits(Scale(figures, jobs_per_hour=20e6))}
    assert rows["the same, by devices"].startswith("no number")


def test_a_missing_figure_is_named() -> None:
    with pytest.raises(KeyError, match="decision_p99_ms"):
        Figures(FIGURES)("scheduler.decision", "decision_p99_ms")


@pytest.fixture(scope="module")
def hour() -> Hour:
    return simulated(hosts=2, jobs_per_hour=1200, minutes=12, bar=Bar(1, quiet=True))


def test_an_hour_performs_whole_jobs_at_its_rate(hour: Hour) -> None:
    spent, jobs = hour.timed.spent, hour.done
    assert jobs > 150  # of 240 that arrived, some wait or run
    assert spent.count["attempt"] - jobs <= 60
    for call in ("opened", "freed", "closed", "cut", "finish"):
        assert jobs <= spent.count[call] <= spent.count["attempt"]
    assert spent.count["report"] == 2 * 12 * 60 / 2
    assert len(hour.jobs) == 0
    assert spent.journal_bytes > 1000 * jobs


def test_its_state_is_recovered_from_a_file(hour: Hour, tmp_path: Path) -> None:
    path = tmp_path / "state"
    lines = [encode_entry(Entry(parts=(one,))) + b"\n" for one in hour.machine.parts()]
    path.write_bytes(b"".join(lines))
    assert recovered(path)["records"] == len(hour.machine.state.records)
