"""`orchgpu simulate`: runs, comparisons, sweeps, files, and errors."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from tests.commandline import run

RUN = """\
name: small
duration: 60
seeds: 2
hosts: [{name: gpu, devices: 2}]
workloads: {a: {execution: 1, loading: 2}, b: {execution: 3, loading: 4}}
load:
- {kind: poisson, workload: a, rate: 0.5}
- {kind: poisson, workload: b, rate: 0.2}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "run.yaml"
    path.write_text(RUN)
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["simulate", *arguments]) == 0
    return capsys.readouterr().out


def test_a_file_alone_is_a_run(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    short = json.loads(printed(capsys, file, "--json"))
    whole = json.loads(printed(capsys, "run", file, "--json"))
    assert short == whole
    assert short["policy"] == "fifo"
    assert short["figures"]["requests"] == short["figures"]["done"] > 10


def test_the_table_has_the_trace_and_the_rate(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    header, row, last = printed(capsys, file, "--policy", "sticky", "--seed", "3").splitlines()
    assert header.split()[:3] == ["POLICY", "REQUESTS", "COLD"]
    assert row.split()[0] == "sticky"
    assert last.startswith("seed 3, trace ")


def test_policies_and_parameters_are_named_as_for_ssgm(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--set", "policy.fair-sticky.overdue_s=2m")
    found = json.loads(printed(capsys, file, "--policy", "fair-sticky", *given, "--json"))
    assert found["policy"] == "fair_sticky"
    settings = ("fair-sticky:overdue_s=2m", "fair_sticky:overdue_s=120")
    compared = printed(capsys, "compare", file, *settings, "--workers", "1", "--json")
    one, two = json.loads(compared)["policies"]
    assert one["traces"] == two["traces"]


@pytest.mark.parametrize("name", ["jobs.csv", "jobs.jsonl"])
def test_requests_are_written_as_lines(
    file: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / name
    found = json.loads(printed(capsys, file, "--requests", str(target), "--json"))
    with target.open() as text:
        rows = list(csv.DictReader(text) if name.endswith("csv") else map(json.loads, text))
    assert len(rows) == found["figures"]["requests"]
    assert sum(int(row["cold"]) for row in rows) == found["figures"]["cold"]
    assert {row["workload"] for row in rows} == {"a", "b"}


def test_a_comparison_has_intervals_and_the_same_requests(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "policies.csv"
    policies = ("fifo", "sticky", "sticky:patience_s=50")
    arguments = ("compare", file, *policies, "--json", "--workers", "1", "--csv", str(table))
    found = json.loads(printed(capsys, *arguments))["policies"]
    assert [one["policy"] for one in found] == list(policies)
    assert len({one["figures"]["requests"]["mean"] for one in found}) == 1
    for one in found:
        wait = one["figures"]["wait_mean_s"]
        assert wait["low"] <= wait["mean"] <= wait["high"]
        assert one["seeds"] == [1, 2]
    assert found[0]["traces"] != found[1]["traces"]
    with table.open() as text:
        lines = list(csv.DictReader(text))
    assert {line["policy"] for line in lines} == set(policies)


def test_workers_change_no_result(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (
        printed(capsys, "compare", file, "fifo", "fair", "--workers", workers, "--json")
        for workers in ("1", "2")
    )
    assert one == two


def test_a_sweep_has_a_column_for_each_value(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(
        capsys, "sweep", file, "fifo", "sticky", "--devices", "1,2,4", "--workers", "1"
    ).splitlines()
    assert lines[0] == "wait_mean_s over devices:"
    assert lines[1].split() == ["POLICY", "1", "2", "4"]
    assert [line.split()[0] for line in lines[2:]] == ["fifo", "sticky"]


def test_plots_are_written_and_equal_for_equal_seeds(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="needs orchgpu[simulate]")
    for folder in ("one", "two"):
        printed(capsys, file, "--plots", str(tmp_path / folder))
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == [
        "cold-starts.svg",
        "devices-fifo.svg",
        "latency-cdf.svg",
        "queue.svg",
        "utilisation.svg",
    ]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    printed(capsys, "compare", file, "fifo", "fair", "--plots", str(tmp_path / "three"))
    printed(
        capsys, "sweep", file, "fifo", "--occupancy", "0.5,1", "--plots", str(tmp_path / "four")
    )
    assert (tmp_path / "three" / "policies.svg").exists()
    assert (tmp_path / "four" / "occupancy-wait_mean_s.svg").exists()


def test_plots_without_matplotlib_name_the_extra(
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    Path(file).write_text("load: []")  # not read: nothing runs whose plots cannot be drawn
    assert run(["simulate", file, "--plots", str(tmp_path / "plots")]) == 8
    assert "pip install 'orchgpu[simulate]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--policy", "stikcy"), "did you mean"),
        (("run", "--set", "aging_s"), "write NAME=VALUE"),
        (("run", "--set", "aging=1"), "parameter 'aging' is unknown"),
        (("compare", "sticky:patience=1"), "policy.sticky.patience"),
        (("sweep",), "name one of --occupancy, --devices, --clients, --loading, --execution"),
        (("sweep", "--clients", "0"), "at least one client"),
        (("sweep", "--loading", "0"), "a factor of times is above 0"),
        (("sweep", "--devices", "one"), "write numbers with commas"),
        (("sweep", "fifo", "--devices", "1", "--figure", "wait"), "is not a figure"),
        (  # found before the experiment, whose second policy would fail
            ("sweep", "fifo", "sticky:patience=1", "--devices", "1", "--figure", "wait"),
            "is not a figure",
        ),
    ],
)
def test_an_error_is_one_message(
    arguments: tuple[str, ...], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    assert run(["simulate", command, file, *rest]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["compare", "sweep"])
def test_the_file_may_stand_behind_the_policies(
    file: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    swept = ["--devices", "1,2"] if name == "sweep" else []
    options = ["--seeds", "1", "--workers", "1", "--json", *swept]
    first = printed(capsys, name, file, "fifo", "fair", *options)
    assert printed(capsys, name, "fifo", "fair", file, *options) == first


@pytest.mark.parametrize(("compute", "used_pct"), [(0, 100.0), (50, 75.0), (100, 100.0)])
def test_jobs_without_a_guarantee_use_what_guarantees_leave(
    tmp_path: Path, compute: int, used_pct: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """One job for 10 s, and one without a guarantee for 5 s beside it."""
    path = tmp_path / "shared.yaml"
    path.write_text(f"""\
name: shared
duration: 20
hosts: [{{name: gpu, devices: 1}}]
workloads: {{a: {{execution: 10, compute: {compute}}}, b: {{execution: 5, compute: 0}}}}
load:
- {{kind: times, workload: a, at: [0]}}
- {{kind: times, workload: b, at: [0]}}
""")
    found = json.loads(printed(capsys, str(path), "--json"))
    assert found["figures"]["utilisation_pct"] == pytest.approx(used_pct)


def test_functions_of_any_run_may_have_a_start(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    off = ("--set", "advance_s_max=0")
    given = (("--start", "1.5:0.2"), ("--start", "1.5:0.2", *off), off)
    ahead, started, plain = (
        json.loads(printed(capsys, file, *words, "--json"))["figures"] for words in given
    )
    assert plain["device_idle_s"] < ahead["device_idle_s"] < started["device_idle_s"]
    assert plain["function_wait_s"] == started["function_wait_s"] == 0 < ahead["function_wait_s"]


@pytest.mark.parametrize(("part_pct", "start_s"), [(0, 1.0), (100, 4.0)])
def test_a_part_of_the_functions_may_start_a_sandbox(
    part_pct: int, start_s: float, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def idle_s(start: str) -> float:
        words = ("--start", start, "--set", "advance_s_max=0", "--json")
        found: float = json.loads(printed(capsys, file, *words))["figures"]["device_idle_s"]
        return found

    assert idle_s(f"1,{part_pct}:4") == idle_s(f"{start_s}")
