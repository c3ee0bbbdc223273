"""Promised runs and jobs in a whole system: admitted, served at their bookings, refused at once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.run import admission_key, run_id, run_result_key
from orchgpu.core.prices import Prices
from tests.e2e.live import Live, get, until

CRASHING = str(Path(__file__).with_name("crashing_orchestrator.py"))
#: Of each step, as stated; the system has two devices, and a step takes a whole one.
EXECUTION_S, LATENCY_S = 14.0, 50.0
#: Of a second with a device; a slow job takes two.
COST_USD = Prices().job_usd_per_s(512, 1)
COUNT = re.compile(r'ssgmd_promises_total\{[^}]*outcome="(\w+)"[^}]*\} (\S+)')
COPY = """#!/bin/sh
grep -q slow "$INPUT_FILE_PATH" && sleep 2
grep -q nothing "$INPUT_FILE_PATH" || cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""


def entry(name: str, source: str, to: str, gpu: str = "") -> str:
    return f"""\
  - lambda:
      {{name: {name}, init_script: copy.sh, timeout: 30, container: {{timeout_threshold: 10}},
       input: [{{path: {source}}}], output: [{{path: {to}}}]}}
    gpu: {{memory: 256, kinds: [cpu], compute: 100{gpu},
          times: {{cpu: {{execution: {EXECUTION_S}s}}}}}}
    job: {{attempts: 1}}
"""


PAGES = f"""\
functions:
  aws:
{entry("look", "pages/in", "pages/seen")}\
{entry("read", "pages/seen", "pages/out")}\
{entry("hasty", "hasty/in", "hasty/out")}\
{entry("single", "single-in", "single/out", f", slo: {{latency: {LATENCY_S}s}}")}\
{entry("never", "never-in", "never/out", ", slo: {latency: 2s}")}\
  - lambda:
      {{name: costly, init_script: copy.sh, timeout: 30, container: {{timeout_threshold: 10}},
       input: [{{path: costly-in}}], output: [{{path: costly/out}}]}}
    gpu: {{memory: 256, kinds: [cpu], compute: 100, times: {{cpu: {{execution: 0.5s}}}},
          slo: {{latency: {LATENCY_S}s, cost: {COST_USD:.9f}}}}}
workflows:
  pages: {{steps: [look, read], slo: {{latency: {LATENCY_S}s}}}}
  hurry: {{steps: [hasty], slo: {{latency: 2s}}}}
"""


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    live.deploy_text("pages", PAGES, {"copy.sh": COPY})
    set_policy(live, "slo")


@pytest.fixture
def serving(live: Live) -> None:
    """One orchestrator, which stays for the next test."""
    if "orchestrator" not in live.children:
        live.start("orchestrator")


@pytest.fixture
def alone(live: Live) -> Iterator[None]:
    """No orchestrator but those of the test."""
    kill_orchestrators(live)
    yield
    kill_orchestrators(live)


def kill_orchestrators(live: Live) -> None:
    for name in [n for n in live.children if n.startswith("orchestrator")]:
        live.kill(name)


def set_policy(live: Live, policy: str) -> None:
    command = [sys.executable, "-m", "gpu_scheduler.client", "set", "policy", policy]
    scheduler = {"SSGM_SCHEDULER": str(live.ready["scheduler"]["socket"])}
    environment = {**live.environment, **scheduler}
    subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)


def upload(live: Live, workflow: str, bucket: str, name: str, word: str) -> str:
    """The run of a new input."""
    s3, key = live.client("s3"), f"in/{name}"
    version = s3.put_object(Bucket=bucket, Key=key, Body=word.encode()).get("VersionId")
    if version is None or version == "null":
        head = s3.head_object(Bucket=bucket, Key=key)
        version = f"{head['ETag'].strip(chr(34))}@{head['LastModified'].isoformat()}"
    return run_id(bucket, key, version, workflow)


def stored(live: Live, bucket: str, key: str, within_s: float = 60.0) -> dict[str, Any]:
    s3 = live.client("s3")
    found: dict[str, Any] = json.loads(until(key, lambda: get(s3, bucket, key), within_s))
    return found


def end_of(live: Live, run: str, bucket: str = "look-intermediate") -> dict[str, Any]:
    return stored(live, bucket, run_result_key(run))


def promises(live: Live) -> dict[str, float]:
    """The counts of the scheduler by outcome."""
    url = f"http://{str(live.ready['scheduler']['http']).removeprefix('http://')}/metrics"
    with urllib.request.urlopen(url, timeout=10) as answer:
        found = COUNT.findall(answer.read().decode())
    return {outcome: float(value) for outcome, value in found}


@pytest.mark.usefixtures("serving")
def test_runs_are_promised_up_to_the_capacity_and_the_next_is_refused_at_once(live: Live) -> None:
    before = promises(live)
    runs = [upload(live, "pages", "pages", f"{n}.txt", f"slow {n}") for n in range(3)]
    admissions = {run: stored(live, "look-intermediate", admission_key(run, 0)) for run in runs}
    granted = [run for run in runs if admissions[run]["outcome"] == "granted"]
    (refused,) = set(runs) - set(granted)
    assert admissions[refused]["outcome"] == "busy", admissions[refused]
    result = end_of(live, refused)
    assert (result["state"], result["reason"]) == ("REJECTED", "SLO_BUSY")
    assert "the earliest end is in" in result["detail"]
    assert "on free devices" in result["detail"]
    s3 = live.client("s3")
    assert not any(get(s3, "look-intermediate", run_result_key(run)) for run in granted)
    for run in granted:
        ended = end_of(live, run)
        assert ended["state"] == "SUCCEEDED", ended
        took_s = ended["ended_at_s"] - ended["started_at_s"]
        assert took_s < 2 * EXECUTION_S, "it began at its booking, not after it"
        seen = json.loads(live.orchgpu("job", run, "--json"))["run"]
        served = {one["name"]: one["jobs"][0]["result"]["device"]["host"] for one in seen["steps"]}
        booked = {one["name"]: one["host"] for one in admissions[run]["steps"]}
        assert served == booked, "each step has the device that is booked for it"
    live.orchgpu("wait", refused, "--timeout", "1s", status=6)
    live.quiet("look", "read")
    after = promises(live)
    gained = {one: after.get(one, 0) - before.get(one, 0) for one in after}
    assert gained["given"] == 2, gained
    assert gained.get("kept", 0) + gained.get("waived", 0) == 2, gained


@pytest.mark.usefixtures("serving")
def test_the_booking_of_a_skipped_step_is_given_back_and_its_run_keeps_its_promise(
    live: Live,
) -> None:
    before = promises(live)
    run = upload(live, "pages", "pages", "skipped.txt", "nothing")
    result = end_of(live, run)
    assert [one["state"] for one in result["steps"]] == ["DONE", "SKIPPED"]
    seen = json.loads(live.orchgpu("job", run, "--json"))["run"]
    assert seen["promised"]["word"] == "slo kept"
    after = promises(live)
    assert {one for one in after if after[one] > before.get(one, 0)} == {"given", "kept"}


@pytest.mark.usefixtures("serving")
def test_an_impossible_run_is_refused_before_its_first_step(live: Live) -> None:
    run = upload(live, "hurry", "hasty", "a.txt", "word")
    result = end_of(live, run, "hasty-intermediate")
    assert (result["state"], result["reason"]) == ("REJECTED", "SLO_IMPOSSIBLE")
    assert [(one["state"], one["jobs"]) for one in result["steps"]] == [("SKIPPED", 0)]
    live.orchgpu("wait", run, "--timeout", "1s", status=7)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("point", ["before:Admit", "promised", "after:Admit"])
def test_a_replica_that_dies_at_the_promise_leaves_a_promised_run(
    live: Live, point: str, tmp_path: Path
) -> None:
    command = (sys.executable, CRASHING, point, str(tmp_path / "crashed"))
    live.start("orchestrator-1", "orchestrator", command)
    run = upload(live, "pages", "pages", f"{point}.txt".replace(":", "-"), "word")
    assert live.wait("orchestrator-1") == -9
    live.start("orchestrator-2", "orchestrator")
    assert end_of(live, run)["state"] == "SUCCEEDED"
    assert stored(live, "look-intermediate", admission_key(run, 0))["outcome"] == "granted"
    live.quiet("look", "read")


@pytest.mark.usefixtures("serving")
def test_a_job_is_promised_or_rejected_at_once(live: Live) -> None:
    kept, never = live.upload("single"), live.upload("never")
    result = live.result("never", never)
    assert (result.state, result.reason) == ("REJECTED", "SLO_IMPOSSIBLE")
    assert live.result("single", kept).state == "SUCCEEDED"
    live.quiet("single", "never")
    assert live.take_dead_letters("never") == [(never, "SLO_IMPOSSIBLE")]


@pytest.mark.usefixtures("serving")
def test_a_job_that_costs_more_than_it_promised_missed_its_promise(live: Live) -> None:
    job = live.upload("costly", "slow.txt", b"slow")
    result = live.result("costly", job)
    assert result.state == "SUCCEEDED", "the objective is no cap"
    assert result.cost_usd is not None
    assert result.cost_usd > COST_USD
    live.quiet("costly")
    listed = json.loads(live.orchgpu("jobs", "--json"))["jobs"]
    assert [one["promised"]["word"] for one in listed if one["job_id"] == job] == [
        "slo missed COST"
    ]
    assert " USD" in live.orchgpu("job", job)
    assert f"{job} of costly: slo missed COST" in live.log("orchestrator")


@pytest.mark.usefixtures("alone")
def test_a_policy_without_promises_never_pretends(live: Live) -> None:
    set_policy(live, "fifo")
    live.start("orchestrator")
    run, job = upload(live, "pages", "pages", "fifo.txt", "word"), live.upload("single", "b.txt")
    result = end_of(live, run)
    assert (result["state"], result["reason"]) == ("REJECTED", "NO_PROMISES")
    assert "ssgm set policy slo" in result["detail"]
    rejected = live.result("single", job)
    assert (rejected.state, rejected.reason) == ("REJECTED", "NO_PROMISES")
    assert "ssgm set policy slo" in rejected.detail
    set_policy(live, "slo")
    live.orchgpu("retry", run)
    live.orchgpu("wait", run, "--timeout", "60s")
    live.quiet("look", "read", "single")
