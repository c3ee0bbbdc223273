"""`orchgpu quote` and `run --quote` against a real ssgmd, with and without a policy that plans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.client import SchedulerClient
from gpu_scheduler.model import Request, Sharing
from gpu_scheduler.promises import PromisedStep, Slo, StepTimes
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import Outcome
from orchgpu.jobs import scheduler as jobs_scheduler
from orchgpu.jobs.scheduler import ask
from tests.commandline import Done, done
from tests.integration.cli.deployed import STATE
from tests.integration.ssgm.played_host import PlayedHost
from tests.scheduler_thread import scheduler_in_thread

DEVICE = {"kind": "cuda", "model": "Tesla V100", "memory_mib": 1000}
TIMES = "times: {cuda: {execution: 4s, loading: 1s}}"
FILE = f"""\
functions:
  aws:
  - lambda: {{name: qcut, init_script: s.sh, memory: 1024, input: [{{path: quote-in/a}}], output: [{{path: quote-mid/b}}]}}
  - lambda: {{name: qeach, init_script: s.sh, memory: 1024, input: [{{path: quote-mid/b, each: true}}], output: [{{path: quote-mid/c}}]}}
    gpu: {{memory: 100, kinds: [cuda], sharing: exclusive, {TIMES}}}
  - lambda: {{name: qjoin, init_script: s.sh, memory: 1024, input: [{{path: quote-mid/c}}], output: [{{path: quote-out/d}}]}}
    gpu: {{memory: 100, kinds: [cuda], sharing: exclusive, {TIMES}}}
  - lambda: {{name: qalone, init_script: s.sh, memory: 1024, input: [{{path: quote-alone/a}}], output: [{{path: quote-out/e}}]}}
    gpu: {{memory: 100, kinds: [cuda], sharing: exclusive, max_cost: 0.0001, {TIMES}}}
  - lambda: {{name: qnew, init_script: s.sh, input: [{{path: quote-new/a}}], output: [{{path: quote-out/f}}]}}
    gpu: {{memory: 100, kinds: [cuda]}}
  - lambda: {{name: qfast, init_script: s.sh, input: [{{path: quote-fast/a}}], output: [{{path: quote-out/g}}]}}
    gpu: {{memory: 100, kinds: [cuda], slo: {{latency: 2s}}, {TIMES}}}
workflows:
  qfilms: {{steps: [qcut, qeach, qjoin]}}
"""  # noqa: E501  (one function per line)
WAYS = f"""\
functions:
  aws:
  - lambda: {{name: qprint, init_script: s.sh, memory: 1024, input: [{{path: quote-print/a}}], output: [{{path: quote-mid/h}}]}}
    job: {{way: 3s}}
  - lambda: {{name: qsign, init_script: s.sh, memory: 1024, input: [{{path: quote-mid/h}}], output: [{{path: quote-out/h}}]}}
    gpu: {{memory: 100, kinds: [cuda], sharing: exclusive, {TIMES}}}
    job: {{way: 500ms}}
workflows:
  qprints: {{steps: [qprint, qsign]}}
"""  # noqa: E501


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler with one device, and its own policy."""
    with (
        scheduler_in_thread(tmp_path_factory.mktemp("quote") / "state") as address,
        closing(PlayedHost(address, "gpu-a", "127.0.0.1:1", DEVICE)),
    ):
        yield address


@pytest.fixture
def promising(plain: str) -> Iterator[str]:
    """The same scheduler, with policy `slo`."""

    def policy(name: str) -> None:
        async def set_it(client: SchedulerClient) -> object:
            return await client.ask(ops.SetParameter(name="policy", value=name))

        ask(plain, set_it)

    policy("slo")
    yield plain
    policy("fifo")


@pytest.fixture
def file(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(jobs_scheduler, "ANSWER_WITHIN_S", 60.0)
    (tmp_path / "s.sh").write_text("#!/bin/sh\n")
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    made = tmp_path / "films.yaml"
    made.write_text(FILE)
    return made


def json_of(made: Done) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.stdout)
    return found


def test_a_workflow_is_quoted_before_it_is_deployed(file: Path, promising: str, s3: Any) -> None:
    shown = done(["quote", str(file), "--scheduler", promising])
    assert shown.exit_code == 0, shown.output
    assert "qfilms: possible now" in shown.stdout
    assert "95 % end within 9.0 s" in shown.stdout, "the second worker is warm"
    assert "limited by: qcut → qeach → qjoin" in shown.stdout
    assert "qeach: one job; there is one for each file" in shown.stderr
    there = {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
    assert not {"quote-in", "quote-mid"} & there, "nothing was made"
    assert not s3.list_objects_v2(Bucket=STATE, Prefix="workflows/").get("Contents")


def test_the_same_in_json(file: Path, promising: str) -> None:
    shown = done(["quote", str(file), "--name", "qfilms", "--scheduler", promising, "--json"])
    found = json_of(shown)
    assert (shown.exit_code, found["outcome"], found["inputs"]) == (0, "granted", 1)
    assert [one["quantile"] for one in found["estimates"]] == [0.5, 0.95]
    assert [one["end_in_s"] for one in found["estimates"]] == [pytest.approx(9.0)] * 2
    assert found["estimates"][1]["cost_usd"] == pytest.approx(9 * (0.9 / 3600 + 1.66667e-5))
    steps = {one["name"]: one for one in found["steps"]}
    assert steps["qcut"]["booking"] is None
    assert steps["qjoin"]["after"] == ["qeach"]
    assert steps["qjoin"]["booking"]["start_in_s"] == pytest.approx(5.0)
    assert found["all_inputs"] is None


def test_stated_ways_count_until_they_are_learned(file: Path, promising: str) -> None:
    file.write_text(WAYS)
    shown = done(["quote", str(file), "--scheduler", promising, "--json"])
    assert shown.exit_code == 0, shown.output
    found = json_of(shown)
    assert [one["end_in_s"] for one in found["estimates"]] == [pytest.approx(8.5)] * 2
    (step,) = [one["booking"] for one in found["steps"] if one["name"] == "qsign"]
    assert step["start_in_s"] == pytest.approx(3.5)


def test_several_inputs_are_quoted_one_after_the_other_and_at_once(
    file: Path, promising: str
) -> None:
    asked = ["quote", str(file), "one", "two", "--name", "qalone", "--scheduler", promising]
    shown = done(asked)
    assert shown.exit_code == 0, shown.output
    assert "one input: 95 % end within 5.0 s" in shown.stdout
    assert "2 inputs, one after the other: 95 % end within 10.0 s" in shown.stdout
    assert "2 inputs at once: 95 % end within 9.0 s" in shown.stdout, "there is one device"
    assert "max_cost is 0.0001 USD" in shown.stderr
    found = json_of(done([*asked, "--json"]))
    assert [one["end_in_s"] for one in found["all_inputs"]["one_by_one"]] == [10.0, 10.0]


def test_a_deployed_function_is_quoted_by_run_and_nothing_is_uploaded(
    file: Path, promising: str, s3: Any
) -> None:
    assert done(["deploy", str(file), "--allow-infeasible"]).exit_code == 0
    shown = done(["run", "qalone", "one", "--quote", "--scheduler", promising])
    assert shown.exit_code == 0, shown.output
    assert "qalone: possible now" in shown.stdout
    assert not s3.list_objects_v2(Bucket="quote-alone").get("Contents")
    same = done(["quote", "--name", "qfilms", "--scheduler", promising])
    assert "qfilms: possible now" in same.stdout, same.output


def test_an_objective_that_no_device_meets_is_impossible(file: Path, promising: str) -> None:
    shown = done(["quote", str(file), "--name", "qfast", "--scheduler", promising])
    assert shown.exit_code == 7, shown.output
    assert "qfast: impossible" in shown.stdout
    assert "no placement meets" in shown.stdout
    assert "5.0 s for" in shown.stdout, "the frontier"


def test_without_times_it_says_how_to_state_them(file: Path, promising: str) -> None:
    shown = done(["quote", str(file), "--name", "qnew", "--scheduler", promising])
    assert shown.exit_code == 7, shown.output
    assert "state its times" in shown.stdout
    assert "gpu: {times: {'*': {execution: 2s" in shown.stderr


def test_another_policy_quotes_nothing_and_names_the_one_that_does(file: Path, plain: str) -> None:
    shown = done(["quote", str(file), "--scheduler", plain])
    assert shown.exit_code == 4, shown.output
    assert "policy fifo gives no promises" in shown.stderr
    assert "ssgm set policy slo" in shown.stderr


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        (["quote"], 2, "give --name NAME"),
        (["quote", "films.yaml", "--name", "qfilm"], 3, "did you mean 'qfilms'"),
        (["quote", "none.yaml"], 3, "none.yaml"),
        (["quote", "--name", "nobody"], 3, "nobody"),
        (["quote", "films.yaml", "no-such-file"], 2, "no-such-file"),
    ],
)
def test_what_cannot_be_quoted_is_named(
    file: Path, asked: list[str], status: int, text: str
) -> None:
    shown = done(asked)
    assert (shown.exit_code, text in shown.stderr) == (status, True), shown.output
    assert file.exists()


def test_a_busy_device_ends_with_6_and_the_earliest_end(file: Path, promising: str) -> None:
    file.write_text(FILE.replace("slo: {latency: 2s}", "slo: {latency: 6s}"))
    asked = ["quote", str(file), "--name", "qfast", "--scheduler", promising]
    assert done(asked).exit_code == 0
    booked = PromisedStep(
        name="other",
        job="other",
        request=Request(sharing=Sharing.EXCLUSIVE),
        times={"*": StepTimes(execution_s=60.0)},
    )
    other = ops.Admit(run="other", steps=(booked,), slo=Slo(latency_s=100.0))
    assert ask(promising, lambda client: client.ask(other)).outcome is Outcome.GRANTED
    try:
        shown = done(asked)
        found = json_of(done([*asked, "--json"]))
    finally:
        ask(promising, lambda client: client.ask(ops.Waive(run="other")))
    assert (shown.exit_code, found["outcome"]) == (6, "busy"), shown.output
    assert "qfast: busy" in shown.stdout
