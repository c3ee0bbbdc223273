"""Figures and page of a report."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from corekit.values import replace
from gpu_scheduler.model import EndedAttempt
from orchgpu.cli.commands.operation import report as command_module
from orchgpu.cli.main import cli
from orchgpu.core.prices import Prices
from orchgpu.history.reader import HistoryReader, Window
from orchgpu.history.store import Batch, PoolSize, Presence, Store
from orchgpu.report.charts import LENGTHS_S, Line, bars, curves, moment
from orchgpu.report.page import count, dollars, page, percent, seconds
from orchgpu.report.summary import Report, report_of, step_for
from tests.history_records import UPLOADED_S, ended_record, job_lease
from tests.unit.history.test_history_runs import job as step_job

T = UPLOADED_S
WINDOW = Window(since_s=T, until_s=T + 3600)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.sqlite"
    device = Presence(device="h/0", host="h", present=True, at_s=T)
    cold = ended_record("a", T + 1800, leases=(job_lease("a", T, T + 1800, loading_s=2.0),))
    nasty = ended_record(
        "b",
        T + 1800,
        outcome="FAILED",
        reason="KILLED",
        tenant="<u>&",
        leases=(job_lease("b", T, T + 1800),),
        attempts=(
            EndedAttempt(n=0, ended_s=T + 9, outcome=None, reason="KILLED", lease=None, times={}),
        ),
    )
    block = {**nasty.block, "function": "<script>alert(1)</script>"}
    with Store(path) as store:
        store.write(Batch(records=[cold, replace(nasty, block=block)], presences=[device]))
    return path


def made(path: Path, window: Window = WINDOW, memory_mib: int | None = 1024) -> Report:
    with HistoryReader(path) as reader:
        return report_of(reader, window, prices=Prices(), memory_of=lambda _: memory_mib)


def test_a_report_has_the_figures_of_its_interval(history: Path) -> None:
    totals = made(history).totals
    assert (totals.jobs, totals.succeeded, totals.jobs_per_hour) == (2, 1, 1.0)
    assert (totals.wait_p50_s, totals.rlat_p50_s) == (5.0, 1800.0)
    assert (totals.cold_starts, totals.warm_starts) == (1, 1)
    assert (totals.utilisation, totals.devices) == (0.5, 1)


def test_the_cost_of_a_device_is_divided_among_those_who_share_it(history: Path) -> None:
    report = made(history)
    assert [one.device_usd for one in report.uses] == pytest.approx([0.225, 0.225])
    assert report.uses[0].function_usd == pytest.approx(1800 * 0.0000166667)
    assert report.totals.usd == pytest.approx(0.45 + 2 * 1800 * 0.0000166667)
    unknown = made(history, memory_mib=None)
    assert [one.function_usd for one in unknown.uses] == [None, None]
    assert unknown.totals.usd == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("length_s", "step_s"), [(60, 10), (3600, 60), (86_400, 1800), (7 * 86_400, 3 * 3600)]
)
def test_a_step_suits_the_interval(length_s: float, step_s: float) -> None:
    assert step_for(Window(since_s=T, until_s=T + length_s)) == step_s


class Elements(HTMLParser):
    """The names of all elements, and the addresses that they load."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def svgs(text: str) -> Iterator[ElementTree.Element]:
    for part in text.split("<svg")[1:]:
        yield ElementTree.fromstring("<svg" + part.partition("</svg>")[0] + "</svg>")


def test_the_page_is_one_file_without_scripts(history: Path) -> None:
    text = page(made(history))
    found = Elements()
    found.feed(text)
    assert not {"script", "link", "img", "iframe"} & set(found.names)
    assert found.addresses == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "&lt;u&gt;&amp;" in text
    assert "url(" not in text


def test_every_chart_of_the_page_is_sound_and_has_a_name(history: Path) -> None:
    text = page(made(history))
    charts = [one for one in svgs(text) if one.get("role") == "img"]
    assert len(charts) == 4
    assert all(one.get("aria-label") for one in charts)
    (devices,) = re.findall(r'<div class="gantt".*?</div></div>', text)
    gantt = ElementTree.fromstring(devices)
    assert gantt.get("aria-label")
    spans = [
        one.get("style", "") for one in gantt.iter("span") if "gantt-span" in one.get("class", "")
    ]
    assert spans
    for left, width in (map(float, re.findall(r"([0-9.]+)%", one)) for one in spans):
        assert 0 <= left <= left + width <= 100


def test_a_page_of_an_interval_without_jobs_shows_that(history: Path) -> None:
    text = page(made(history, Window(since_s=T - 100, until_s=T - 50)))
    assert "No device was there" in text
    assert "none" in text
    assert "–" in text


def test_bars_lie_within_the_chart_and_stand_on_each_other() -> None:
    lines = (Line(name="a", css="one", values=(1, 2)), Line(name="b", css="bad", values=(1, None)))
    (chart,) = svgs(bars(WINDOW, (T, T + 1800), 1800.0, lines, count, "bars"))
    rects = [rect.attrib for rect in chart.iter("rect")]
    assert [rect["class"] for rect in rects] == ["one", "bad", "one"]
    first, on_it = ((float(one["y"]), float(one["height"])) for one in rects[:2])
    assert on_it[0] + on_it[1] == pytest.approx(first[0], abs=0.1)
    assert all(float(one["x"]) + float(one["width"]) <= 960 for one in rects)


def test_a_curve_has_a_gap_where_there_is_no_value() -> None:
    line = Line(name="a", css="one", values=(1.0, None, 3.0))
    text = curves(WINDOW, (T, T + 60, T + 120), 60.0, (line,), seconds, "curve", LENGTHS_S)
    (chart,) = svgs(text)
    (path,) = chart.iter("path")
    assert path.attrib["d"].count("M") == 2
    assert len(list(chart.iter("circle"))) == 2
    assert "5 s" in text


def test_times_of_long_intervals_have_their_date() -> None:
    assert moment(T, WINDOW) == "22:13"
    assert moment(T, Window(since_s=T, until_s=T + 10 * 86_400)) == "11-14 22:13"


def test_values_are_short() -> None:
    shown = [seconds(value) for value in (None, 0.1234, 300.0, 10_000.0)]
    assert shown == ["–", "0.123 s", "5 min", "2.78 h"]
    assert [percent(value) for value in (None, 0.331)] == ["–", "33.1 %"]
    assert [dollars(value) for value in (0.0, 0.00123, 1234.5)] == ["0.00", "0.0012", "1,234.50"]


@pytest.fixture
def in_1970(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: T + 3600)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(command_module, "CLOUD_WITHIN_S", 0.05)


@pytest.mark.usefixtures("in_1970")
def test_the_command_writes_a_page_or_prints_the_figures(history: Path, tmp_path: Path) -> None:
    given = ["report", "--since", "1h", "--store", str(history)]
    file = tmp_path / "page.html"
    done = CliRunner().invoke(cli, [*given, "--output", str(file)])
    assert (done.exit_code, "2 jobs that ended" in done.stdout) == (0, True)
    assert file.read_text().startswith("<!doctype html>")
    done = CliRunner().invoke(cli, [*given, "--json", "--memory-mib", "1024"])
    figures = json.loads(done.stdout)
    assert figures["totals"]["succeeded"] == 1
    assert figures["failures"][0] == {
        "reason": "KILLED",
        "function": "<script>alert(1)</script>",
        "attempts": 2,
        "jobs": 1,
    }
    done = CliRunner().invoke(cli, [*given, "--output", str(tmp_path / "none" / "page.html")])
    assert "cannot write" in str(done.exception)


def test_the_command_names_a_missing_history(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["report", "--store", str(tmp_path / "none")])
    assert "orchgpu collect" in str(done.exception)


def test_runs_of_a_workflow_have_a_section_with_their_steps(history: Path) -> None:
    assert "Workflows" not in page(made(history)), "without runs"
    with Store(history) as store:
        store.write(Batch(records=[step_job("r1", "cut", 30), step_job("r1", "<b>table", 1800)]))
    report = made(history)
    assert [one.runs for one in report.workflows] == [1]
    text = page(report)
    assert "<h2>Workflows</h2>" in text
    assert '<td>film</td><td>all</td><td class="number">1</td><td class="number">2</td>' in text
    assert '<td class="number">30 min</td>' in text
    assert "<td>&lt;b&gt;table</td>" in text


def test_hosts_that_come_and_go_have_a_section_with_their_cost(history: Path) -> None:
    assert "<h2>Hosts</h2>" not in page(made(history))
    with Store(history) as store:
        sizes = [PoolSize(pool="<a>", hosts=n, usd_per_h=2.0, at_s=T + 900 * n) for n in (0, 1, 2)]
        store.write(Batch(pools=sizes))
    report = made(history)
    assert report.hosts is not None
    assert report.hosts.usd == pytest.approx(2.0 * (900 + 2 * 1800) / 3600)
    assert report.hosts_usd_per_device_h == pytest.approx(report.hosts.usd / 0.5)
    text = page(report)
    assert "2.50 USD for hosts, 5.00 for each hour of a device that jobs used" in text
    assert "<td>&lt;a&gt;</td>" in text
    assert len([one for one in svgs(text) if one.get("role") == "img"]) == 5
