"""Runs with hosts that come and go."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from corekit.errors import AppError
from corekit.values import replace
from orchgpu.cli.main import cli
from orchgpu.fleet.core.model import PolicyName
from simulator.workloads.engine import Engine
from simulator.workloads.fleet import with_policy
from simulator.workloads.measures import figures
from simulator.workloads.model import Run
from simulator.workloads.run_file import load_run, parse_run

RUN = """\
duration: 2h
fleet:
  offers:
  - {name: g, kind: cuda, model: GPU, memory: 16GiB, usd_per_h: 2, max: 3, start_s: 2min}
  usd_per_hour_max: 4
workloads:
  job: {memory: 8GiB, execution: 60, loading: 5}
load:
- {kind: bursts, workload: job, every: 50m, size: 10, start: 10m}
"""


def run_of(text: str = RUN) -> Run:
    return parse_run(text, "run.yaml", Path())


def test_hosts_come_for_a_burst_within_the_guard_and_leave_after_it() -> None:
    engine = Engine(run_of(), 1)
    jobs = engine.simulate()
    assert engine.fleet is not None
    assert {job.outcome for job in jobs} == {"done"}
    assert engine.fleet.most == 2, "three would cost more than usd_per_hour_max"
    spans = engine.fleet.host_spans()
    assert not any(begin_s <= 50 * 60 < end_s for begin_s, end_s in spans), (
        "none between two bursts"
    )
    found = figures(engine)
    assert found["fleet_usd"] == pytest.approx(2 * found["fleet_host_h"])
    assert 0 < found["fleet_host_h"] < 3 * 2


def test_equal_runs_have_equal_traces() -> None:
    one, two = Engine(run_of(), 3), Engine(run_of(), 3)
    one.simulate()
    two.simulate()
    assert one.trace() == two.trace()


def test_a_fixed_fleet_costs_most_and_waits_least() -> None:
    found = {}
    for policy in (PolicyName.FIXED, PolicyName.TRACKING):
        engine = Engine(with_policy(run_of(), policy), 1)
        engine.simulate()
        found[policy] = figures(engine)
    fixed, tracking = found[PolicyName.FIXED], found[PolicyName.TRACKING]
    assert fixed["fleet_usd"] > 2 * tracking["fleet_usd"]
    assert fixed["wait_p95_s"] < tracking["wait_p95_s"]


def test_the_policies_are_compared_by_a_command(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    words = ["simulate", "fleet", str(file), "tracking", "--seeds", "1"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 0, done.output
    assert "tracking" in done.stdout
    found = json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout)
    assert [one["policy"] for one in found["policies"]] == ["tracking"]
    assert found["policies"][0]["figures"]["fleet_usd"]["mean"] > 0


def test_hosts_leases_and_requests_over_time_are_drawn_for_each_policy(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    words = ["simulate", "fleet", str(file), "tracking", "--seeds", "1", "--plots", str(tmp_path)]
    assert CliRunner().invoke(cli, words).exit_code == 0
    text = (tmp_path / "fleet-tracking.svg").read_text()
    assert all(f">{name}</text>" in text for name in ("hosts", "leases", "waiting requests"))


def test_a_run_without_a_fleet_has_no_policy_of_one() -> None:
    text = RUN.replace("fleet:", "x-fleet:").replace("duration", "hosts: [{name: h}]\nduration")
    with pytest.raises(AppError, match="the run has no fleet"):
        with_policy(run_of(text), PolicyName.FIXED)


def test_faults_of_offers_have_their_place() -> None:
    with pytest.raises(AppError, match=r"run\.yaml:4:.*min 9 must not exceed max 3"):
        run_of(RUN.replace("max: 3", "min: 9, max: 3"))


@pytest.mark.parametrize("name", ["days", "sporadic", "azure2019"])
def test_the_runs_of_this_tree_are_served(name: str) -> None:
    run = load_run(Path(__file__).parents[3] / f"simulator/runs/fleet-{name}.yaml")
    engine = Engine(replace(run, duration_s=min(run.duration_s, 30_000.0)), run.seed)
    assert all(job.outcome == "done" for job in engine.simulate())
