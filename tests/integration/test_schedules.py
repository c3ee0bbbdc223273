"""`schedule:` deployed to clouds over HTTP, and `orchgpu schedule`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.keys import job_id
from tests.integration.test_deploy_clouds import Bench, bench, endpoint  # noqa: F401

FDL = """\
functions:
  aws:
  - lambda:
      name: {name}
      init_script: run.sh
      input: [{{path: {name}-in/plans}}]
      output: [{{path: {name}-out}}]
    schedule:
    - {{cron: 0 3 * * 1, name: weekly, timezone: Europe/Madrid, input_file: plan.json}}
    - {{cron: 0 0 1 1 *, name: yearly}}
"""


def listed(bench: Bench) -> dict[str, Any]:  # noqa: F811
    answer = json.loads(bench.run("schedule", "ls", "--json").stdout)
    return {one["name"]: one for one in answer["schedules"]}


@pytest.fixture
def deployed(bench: Bench) -> Bench:  # noqa: F811
    (bench.folder / "plan.json").write_text('{"plan": "ü", "at": "<aws.scheduler.scheduled-time>"}')
    file = bench.write(FDL, "report")
    assert "report: deployed" in bench.run("deploy", file).output
    assert "plan: nothing to do" in bench.run("plan", file).output
    return bench


def test_a_schedule_lives_as_its_function_does(deployed: Bench) -> None:
    before = listed(deployed)
    assert list(before) == ["report-weekly", "report-yearly"]
    assert before["report-weekly"]["cron"] == "cron(0 3 ? * MON *)"
    assert before["report-weekly"]["last"] is None
    assert before["report-yearly"]["next_s"] % 86400 == 0

    made = json.loads(deployed.run("schedule", "run", "report-weekly", "--json").stdout)
    s3 = deployed.clients["s3"]
    answer = s3.get_object(Bucket=made["bucket"], Key=made["key"])
    at = made["key"].removeprefix("plans/report-weekly-").removesuffix(".json")
    assert json.loads(answer["Body"].read()) == {"plan": "ü", "at": at}
    version = answer["VersionId"]
    assert made["job"] == job_id("report-in", made["key"], version, "report")
    last = listed(deployed)["report-weekly"]["last"]
    assert (last["key"], last["job"], last["state"]) == (made["key"], made["job"], "")

    assert "report-weekly: paused" in deployed.run("schedule", "pause", "report-weekly").output
    later = FDL.replace("0 3 * * 1", "0 4 * * 1")
    deployed.run("deploy", deployed.write(later, "report"))
    weekly = listed(deployed)["report-weekly"]
    assert (weekly["cron"], weekly["paused"]) == ("cron(0 4 ? * MON *)", True)
    assert "paused" in deployed.run("schedule", "ls").output
    assert "report-weekly: resumed" in deployed.run("schedule", "resume", "report-weekly").output
    assert not listed(deployed)["report-weekly"]["paused"]

    fewer = FDL.replace("    - {{cron: 0 0 1 1 *, name: yearly}}\n", "")
    assert (
        "- schedule report-yearly" in deployed.run("deploy", deployed.write(fewer, "report")).output
    )
    assert list(listed(deployed)) == ["report-weekly"]
    wrong = deployed.run("schedule", "run", "report-weekli", status=3)
    assert "did you mean 'report-weekly'?" in wrong.output
    deployed.run("rm", "report", "--force")
    assert listed(deployed) == {}
    assert "no schedules" in deployed.run("schedule", "ls").output


def test_a_file_of_bytes_is_refused(bench: Bench) -> None:  # noqa: F811
    (bench.folder / "plan.json").write_bytes(b"\xff")
    wrong = bench.run("deploy", bench.write(FDL, "bytes"), status=2)
    assert "plan.json is not UTF-8" in wrong.output
