"""A run of many parts while its programs die between drawn transitions: one table, every part once.

A replica kills itself with SIGKILL at the first of some drawn points that it reaches, of the run or
of one of its parts; the scheduler is killed with some of them, and when a drawn number of parts has
ended.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contract.run import FILES_MAX, run_id, run_result_key, step_jobs
from tests.e2e.live import Live, get

CRASHING = str(Path(__file__).with_name("crashing_orchestrator.py"))
STEPS = ("fan-cut", "fan-choose", "fan-weigh", "fan-table")
#: Writes as many parts as its file says, and as many files that no later step takes.
CUT = """#!/bin/sh
for n in $(seq 1 "$(cat "$INPUT_FILE_PATH")"); do echo "part $n" > "$TMP_OUTPUT_DIR/$n.part"; done
for n in 1 2 3; do echo junk > "$TMP_OUTPUT_DIR/junk$n.part"; done
"""
CHOOSE = '#!/bin/sh\ngrep -q junk "$INPUT_FILE_PATH" || cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"\n'
WEIGH = '#!/bin/sh\ncp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"\n'
TABLE = '#!/bin/sh\ncat "$TMP_INPUT_DIR"/fan-weigh/* > "$TMP_OUTPUT_DIR/table"\n'
SETTINGS = "timeout: 120, container: {timeout_threshold: 60}"
FAN = f"""\
functions:
  aws:
  - lambda:
      {{name: fan-cut, init_script: cut.sh, {SETTINGS},
       input: [{{path: fan/in}}], output: [{{path: fan/parts}}]}}
  - lambda:
      {{name: fan-choose, init_script: choose.sh, {SETTINGS},
       input: [{{path: fan/parts, each: true}}], output: [{{path: fan/chosen}}]}}
  - lambda:
      {{name: fan-weigh, init_script: weigh.sh, {SETTINGS},
       input: [{{path: fan/chosen, each: true}}], output: [{{path: fan/weights}}]}}
    gpu: {{memory: 64, kinds: [cpu]}}
  - lambda:
      {{name: fan-table, init_script: table.sh, {SETTINGS},
       input: [{{path: fan/weights}}], output: [{{path: fan/out}}]}}
workflows:
  fan: {{steps: [{", ".join(STEPS)}]}}
"""
#: Transitions of the run: each is reached once or twice.
OF_RUN = tuple(
    f"{when}:{what}"
    for when in ("before", "after")
    for what in ("StartStep:fan-choose", "StartStep:fan-weigh", "StartStep:fan-table", "EndRun")
)
#: Those of each of its jobs.
OF_PARTS = tuple(
    f"{when}:{what}"
    for when in ("before", "after")
    for what in ("OpenAttempt", "StageEnvelope", "ReadResult", "FinishJob", "DeleteMessages")
)


class Run:
    """One run of so many parts, and the programs that serve it."""

    def __init__(self, live: Live, parts: int, deaths: int, marks: Path) -> None:
        self.live, self.parts, self.deaths = live, parts, deaths
        self.drawn, self.marks = random.Random(parts), marks
        self.replicas: list[str] = []
        made = live.client("s3").put_object(
            Bucket="fan", Key=f"in/{parts}", Body=str(parts).encode()
        )
        self.id = run_id("fan", f"in/{parts}", made["VersionId"], "fan")
        jobs = 2 * parts
        self.scheduler_dies_at = sorted(self.drawn.sample(range(1, jobs), deaths // 2))

    def start(self) -> None:
        """The next replica; the last one lives on."""
        number = len(self.replicas) + 1
        name = f"orchestrator-{number}"
        command: tuple[str, ...] = ()
        if number <= self.deaths:
            within = self.drawn.randint(1, max(1, self.parts // self.deaths))
            points = f"{self.drawn.choice(OF_RUN)},{self.drawn.choice(OF_PARTS)}#{within}"
            command = (sys.executable, CRASHING, points, str(self.marks / name))
        self.replicas.append(name)
        self.live.start(name, "orchestrator", command)

    def restart_scheduler(self) -> None:
        self.live.kill("scheduler")
        self.live.start("scheduler")

    def ended(self) -> int:
        """The number of parts that have a result."""
        s3, found = self.live.client("s3"), 0
        for step in STEPS[1:3]:
            pages = s3.get_paginator("list_objects_v2").paginate(
                Bucket=f"{step}-intermediate", Prefix=f"results/{step_jobs(self.id, step)}"
            )
            found += sum(int(page["KeyCount"]) for page in pages)
        return found

    def result(self, within_s: float) -> dict[str, Any]:
        """The end of the run; until then what dies is started again."""
        s3, deadline_s = self.live.client("s3"), time.monotonic() + within_s
        while time.monotonic() < deadline_s:
            body = get(s3, "fan-cut-intermediate", run_result_key(self.id))
            if body is not None:
                found: dict[str, Any] = json.loads(body)
                return found
            if self.live.children[self.replicas[-1]].poll() is not None:
                assert self.live.wait(self.replicas[-1]) == -9
                if self.drawn.random() < 0.5:
                    self.restart_scheduler()
                self.start()
            if self.scheduler_dies_at and self.ended() >= self.scheduler_dies_at[0]:
                del self.scheduler_dies_at[0]
                self.restart_scheduler()
            time.sleep(0.1)
        raise AssertionError(f"no end within {within_s:.0f} s; {self.ended()} parts have ended")


@pytest.mark.parametrize(
    ("parts", "deaths", "within_s"),
    [
        pytest.param(40, 3, 200.0, marks=pytest.mark.timeout(400)),
        pytest.param(
            FILES_MAX - 3, 24, 3000.0, marks=[pytest.mark.soak, pytest.mark.timeout(3600)]
        ),
    ],
)
def test_every_part_is_in_one_table(
    live: Live, parts: int, deaths: int, within_s: float, tmp_path: Path
) -> None:
    if not (live.path / "fan").exists():
        scripts = {"cut.sh": CUT, "choose.sh": CHOOSE, "weigh.sh": WEIGH, "table.sh": TABLE}
        live.deploy_text("fan", FAN, scripts)
    run = Run(live, parts, deaths, tmp_path)
    run.start()
    result = run.result(within_s)
    assert result["state"] == "SUCCEEDED", result
    assert len(run.replicas) > deaths // 2, "the kills came"
    jobs = {one["name"]: one["jobs"] for one in result["steps"]}
    assert jobs == dict(zip(STEPS, (1, parts + 3, parts, 1), strict=True))
    (file,) = result["files"]
    found = live.client("s3").get_object(
        Bucket=file["bucket"], Key=file["key"], VersionId=file["version"]
    )
    rows = found["Body"].read().decode().splitlines()
    assert Counter(rows) == {f"part {n}": 1 for n in range(1, parts + 1)}, "every part once"
    if run.replicas[-1] in live.children and live.children[run.replicas[-1]].poll() is not None:
        live.wait(run.replicas[-1])  # it died after the end
    live.start("orchestrator-last", "orchestrator")
    live.quiet(*STEPS, within_s=150.0)
