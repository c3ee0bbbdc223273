"""The papers' experiments: every figure has its place, and what is wrong is marked."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.pictures import Bars, Curve, Picture, draw
from experiments import results
from experiments.beyond import TRACES
from experiments.experiment import Beside, Evidence, Found, Settings
from experiments.page import ACCEPTED, OPEN, OUTSIDE, SHOWN, experiment_of, page, verdict
from experiments.references import Quantity, papers
from experiments.simulated import compared, run_of
from simulator.workloads.experiments import points_of, simulate
from simulator.workloads.measures import Interval

ROOT = Path(__file__).parents[3]
LIBRARY = {"__init__", "__main__", "benchmarked", "experiment", "page", "references", "results"}
LIBRARY |= {"several", "simulated"}
TINY = Settings(quick=True, seeds=1, length=0.05, workers=1)
#: Every figure and table of the papers, by their numbers in them.
FIGURES: Mapping[str, str] = {
    "004": (
        "Figures 1–3; Figure 4; Figures 5 and 6; Section 5, cost; orchGPU's loop; "
        "orchGPU's loop, killed"
    ),
    "000": "Figures 1 and 2; Figures 3 and 4; Figures 3 and 4, over seeds; Scan before take",
    "001": (
        "Figure 1; Figure 2, Table 1; Table 2; Figure 3, Table 3; Figure 4, Table 4; Figure 5; "
        "Figure 6; Figure 6, as a fluid; Figure 7"
    ),
    "002": "Figures 1, 3, 5, 6; Figure 2; Figure 4; Figure 7; Burn",
    "003": (
        "Figures 3.1 and 3.2; Table 3.1; Figure 3.3; Figure 4.1; Table 4.1; Figures 5.1, 6.1–6.3; "
        "Chapter 6, worked example; Figure 6.4; Figure 6.5; Figure 6.6; Figure 6.7; "
        "Chapter 6, no effect; KaaS, raw data; KaaS, measured"
    ),
}
EXPERIMENTS = sorted({name for paper in papers() for name in paper.experiments})
WITHOUT_PROGRAMS = [
    name
    for name in EXPERIMENTS
    if experiment_of(name).evidence in (Evidence.ARITHMETIC, Evidence.SIMULATED)
]


def kept(**figures: float) -> results.Kept:
    """The result of a run."""
    facts = {"commit": "abc", "machine": "m", "when": "2026-01-01", "took_s": 1.0, "quick": False}
    return results.kept(Found(figures=figures), **facts)


def quantity(accept: str) -> Quantity:
    return Quantity(key="x", name="the x", unit="s", paper=2.0, accept=accept)


@pytest.mark.parametrize("number", FIGURES)
def test_no_figure_of_a_paper_is_forgotten(number: str) -> None:
    paper = next(one for one in papers() if one.number == number)
    assert "; ".join(shown.name for shown in paper.figures) == FIGURES[number]


def test_a_figure_has_an_experiment_or_says_why_not() -> None:
    for shown in itertools.chain.from_iterable(paper.figures for paper in papers()):
        assert shown.note or shown.quantities, shown.name
        assert bool(shown.experiment) == bool(shown.quantities), shown.name


def test_every_experiment_is_one_of_a_figure() -> None:
    modules = {file.stem for file in (ROOT / "experiments").glob("*.py")} - LIBRARY
    assert modules == set(EXPERIMENTS)


def test_of_what_is_measured_only_the_loops_that_wait_always_have_neighbours() -> None:
    measured = [one for one in EXPERIMENTS if experiment_of(one).evidence is Evidence.MEASURED]
    waiting = {one for one in measured if experiment_of(one).beside is Beside.ALWAYS}
    assert waiting == {"published_loop", "killed_loops"}


@pytest.mark.parametrize("name", WITHOUT_PROGRAMS)
def test_an_experiment_has_the_numbers_and_pictures_of_its_figures(name: str) -> None:
    parts: list[float] = []
    found = experiment_of(name).run(replace(TINY, advance=parts.append))
    figures = [shown for paper in papers() for shown in paper.figures if shown.experiment == name]
    assert {one.key for shown in figures for one in shown.quantities} <= set(found.figures)
    assert {one for shown in figures for one in shown.pictures} == {
        picture.name for picture in found.pictures
    }
    assert parts == sorted(parts)
    assert parts[-1] == pytest.approx(1.0)


def test_a_simulation_continues_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "kept.jsonl"
    parts: list[float] = []
    settings = replace(TINY, keep=file, advance=parts.append)
    first = compared(run_of("thesis"), ("fifo", "balance"), settings)
    lines = file.read_text().splitlines()
    assert len(lines) == 2
    file.write_text(f"{lines[1]}\n{lines[0][:40]}\n")  # the second one was cut off
    assert compared(run_of("thesis"), ("fifo", "balance"), settings) == first
    assert len(file.read_text().splitlines()) == 3
    monkeypatch.setattr("experiments.simulated.experiment", None)  # all is kept: nothing runs
    assert compared(run_of("thesis"), ("fifo", "balance"), settings) == first
    assert parts[-1] == 1.0


@pytest.mark.parametrize("load", sorted(TRACES))
def test_the_seed_changes_nothing_of_a_trace(load: str) -> None:
    short = replace(run_of(load), duration_s=60.0)
    (point,) = points_of(short, ("fifo",))
    one, other = (simulate(point.run, seed)[0].figures for seed in (1, 2))
    assert one == other


@pytest.mark.parametrize("name", ["cost", "elastic_shares", "thesis_worked"])
def test_what_is_exact_is_accepted(name: str) -> None:
    found = results.kept(
        experiment_of(name).run(Settings()),
        commit="",
        machine="",
        when="",
        took_s=0.0,
        quick=False,
    )
    wanted = [
        verdict(one, found)
        for paper in papers()
        for shown in paper.figures
        if shown.experiment == name
        for one in shown.quantities
    ]
    assert set(wanted) <= {ACCEPTED, SHOWN}


@pytest.mark.parametrize(
    ("accept", "ours", "wanted"),
    [
        (">= 2", 2.0, ACCEPTED),
        (">= 2", 1.9, OUTSIDE),
        ("1.5…2.5", 2.5, ACCEPTED),
        ("1.5…2.5", 2.6, OUTSIDE),
        ("", 7.0, SHOWN),
    ],
)
def test_a_number_outside_of_its_tolerance_is_marked(accept: str, ours: float, wanted: str) -> None:
    assert verdict(quantity(accept), kept(x=ours)) == wanted


@pytest.mark.parametrize("found", [None, kept(y=1.0)])
def test_a_number_without_a_result_is_not_run(found: results.Kept | None) -> None:
    assert verdict(quantity(">= 2"), found) == OPEN


def test_the_page_shows_both_numbers_the_origin_and_the_mark() -> None:
    cost = replace(kept(cpu_usd=0.5, speed_up=3.12), processor_s=7.4)
    text = page(papers(), {"cost": cost})
    row = "| function alone, one thread | 0.0184 USD | 0.5 USD | 0.01835…0.01845 | **outside** |"
    assert row in text
    assert (
        "*arithmetic*, `python -m experiments cost`: commit abc, 2026-01-01, m, 7 s of processors."
        in text
    )
    assert "![cost of the longest query](papers/orchgpu-cost.svg)" in text
    assert "*measured*, `python -m experiments published_loop`: not run yet." in text


def test_a_quotient_of_a_run_too_short_for_its_divisor_is_shown() -> None:
    text = page(papers(), {"cost": kept(cpu_usd=math.inf, speed_up=-math.inf)})
    assert "| 0.0184 USD | ∞ USD | 0.01835…0.01845 | **outside** |" in text
    assert "| speed-up | 3.12 × | −∞ × | 3.11…3.13 | **outside** |" in text


def test_results_are_kept_with_their_intervals(tmp_path: Path) -> None:
    found = Found(figures={"x": Interval(2.0, 1.0, 3.0, 30)}, seeds=30, notes=("a note",))
    facts = {"commit": "c", "machine": "m", "when": "w", "took_s": 1.5, "quick": True}
    before = {"one": results.kept(found, **facts), "two": kept(y=1.0)}
    results.write(tmp_path / "results.json", before)
    assert results.read(tmp_path / "results.json") == before
    assert before["one"].figures["x"] == (2.0, 1.0, 3.0)


def test_equal_pictures_are_equal_files(tmp_path: Path) -> None:
    curves = Picture(
        name="p",
        title="t",
        x="x",
        y="y",
        curves=(
            Curve(name="ours", points=((1, 1), (10, 2))),
            Curve(name="theirs", points=((1, 2),), theirs=True),
        ),
        logarithmic_x=True,
    )
    bars = Picture(name="b", title="t", x="x", y="y", bars=(Bars(name="ours", values={"a": 1}),))
    for picture in (curves, bars):
        first = draw(picture, tmp_path).read_bytes()
        assert draw(picture, tmp_path).read_bytes() == first
        assert b"ours" in first
