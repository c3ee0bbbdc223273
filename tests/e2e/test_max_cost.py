"""`max_cost` in a whole system: a real cap ends a real job and a real run, also after a kill."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract.run import run_id
from orchgpu.core.prices import Prices
from tests.e2e.live import Live, until
from tests.e2e.test_workflows import end_of

MEMORY_MIB = 512
#: Dollars of three seconds with a device.
CAP_USD = 3 * (Prices().function_usd_per_s(MEMORY_MIB) + Prices().device_usd_per_s)
SCRIPT = """#!/bin/sh
grep -q long "$INPUT_FILE_PATH" && sleep 60
cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
LAMBDA = f"memory: {MEMORY_MIB}, timeout: 90, container: {{timeout_threshold: 10}}"
ALONE = f"""\
functions:
  aws:
  - lambda:
      {{name: capped, init_script: run.sh, {LAMBDA},
       input: [{{path: capped-in}}], output: [{{path: capped-out}}]}}
    gpu: {{memory: 64, kinds: [cpu], max_cost: {CAP_USD:.9f}}}
  - lambda:
      {{name: roomy, init_script: run.sh, {LAMBDA},
       input: [{{path: roomy-in}}], output: [{{path: roomy-out}}]}}
    gpu: {{memory: 64, kinds: [cpu], max_cost: 1}}
"""
CHAIN = f"""\
functions:
  aws:
  - lambda:
      {{name: one, init_script: run.sh, {LAMBDA},
       input: [{{path: chain/in}}], output: [{{path: chain/between}}]}}
    gpu: {{memory: 64, kinds: [cpu]}}
  - lambda:
      {{name: two, init_script: long.sh, {LAMBDA},
       input: [{{path: chain/between}}], output: [{{path: chain/out}}]}}
    gpu: {{memory: 64, kinds: [cpu]}}
workflows:
  chain: {{steps: [one, two], max_cost: {4 * CAP_USD:.9f}}}
"""


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    live.deploy_text("alone", ALONE, {"run.sh": SCRIPT})
    live.deploy_text("chain", CHAIN, {"run.sh": SCRIPT, "long.sh": "#!/bin/sh\nsleep 60\n"})


@pytest.fixture(autouse=True)
def _no_orchestrator_left(live: Live) -> Iterator[None]:
    yield
    for name in [n for n in live.children if n.startswith("orchestrator")]:
        live.kill(name)


def ended_at_its_cap(live: Live, job: str) -> None:
    result = live.result("capped", job)
    assert (result.state, result.reason) == ("FAILED", "MAX_COST"), result
    assert result.cost_usd is not None
    assert result.cost_usd >= CAP_USD * 0.99
    assert result.attempt == 1
    live.quiet("capped")
    assert live.leases() == []
    assert live.take_dead_letters("capped") == [(job, "MAX_COST")]


def test_a_job_that_costs_less_succeeds_and_states_its_cost(live: Live) -> None:
    live.start("orchestrator")
    result = live.result("roomy", live.upload("roomy", "short.txt", b"short\n"))
    assert (result.state, result.cost_usd is not None) == ("SUCCEEDED", True), result


def test_a_job_ends_at_its_cap_with_its_lease(live: Live) -> None:
    live.start("orchestrator")
    ended_at_its_cap(live, live.upload("capped", "a.txt", b"long\n"))


def test_another_orchestrator_continues_the_sum(live: Live) -> None:
    live.start("orchestrator")
    job = live.upload("capped", "b.txt", b"long\n")
    until("the run", lambda: live.steps().get(job) == "RUNNING")
    live.kill("orchestrator")
    live.start("orchestrator-2", "orchestrator")
    ended_at_its_cap(live, job)


def test_a_run_ends_when_its_cost_is_used_up(live: Live) -> None:
    live.start("orchestrator")
    s3 = live.client("s3")
    version = s3.put_object(Bucket="chain", Key="in/a.txt", Body=b"short\n").get("VersionId")
    if version is None or version == "null":
        head = s3.head_object(Bucket="chain", Key="in/a.txt")
        version = f"{head['ETag'].strip(chr(34))}@{head['LastModified'].isoformat()}"
    result = end_of(live, run_id("chain", "in/a.txt", version, "chain"), "one-intermediate")
    assert (result["state"], result["reason"]) == ("FAILED", "MAX_COST"), result
    assert [one["state"] for one in result["steps"]] == ["DONE", "FAILED"]
    assert result["cost_usd"] >= 4 * CAP_USD * 0.99
