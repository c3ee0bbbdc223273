"""Runs of workflows in a whole system: real programs, real functions, kills between transitions."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.run import run_id, run_result_key
from tests.e2e.live import Live, get, until

CRASHING = str(Path(__file__).with_name("crashing_orchestrator.py"))
PARTS = 6
#: Writes the parts of a film, which begin with its own word; one of them is not wanted.
CUT = f"""#!/bin/sh
word=$(cat "$INPUT_FILE_PATH")
echo junk > "$TMP_OUTPUT_DIR/0.part"
test "$word" = nothing && exit 0
for n in $(seq 1 {PARTS}); do echo "$word $n" > "$TMP_OUTPUT_DIR/$n.part"; done
"""
#: A job a part: writes it unless it is junk.
FILTER = """#!/bin/sh
grep -q junk "$INPUT_FILE_PATH" || cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"
"""
#: MENDED is a file that a test makes.
COUNT = """#!/bin/sh
test -n "$ORCHGPU_RUN" && test "$ORCHGPU_STEP" = measure || exit 1
grep -q slow "$INPUT_FILE_PATH" && sleep 20
grep -q broken "$INPUT_FILE_PATH" && test ! -e MENDED && exit 1
wc -w < "$INPUT_FILE_PATH" > "$TMP_OUTPUT_DIR/$(basename "$INPUT_FILE_PATH" .part).count"
"""
#: One row a file, of all in one.
TABLE = """#!/bin/sh
test "$INPUT_FILE_PATH" = "$TMP_INPUT_DIR" || exit 1
for file in "$TMP_INPUT_DIR"/measure/*; do
  echo "$(basename "$file") $(cat "$file")" >> "$TMP_OUTPUT_DIR/table.txt"
done
"""
FILM = """\
functions:
  aws:
  - lambda:
      {name: cut, init_script: cut.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: film/in}], output: [{path: film/parts}]}
  - lambda:
      {name: choose, init_script: choose.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: film/parts, each: true}], output: [{path: film/chosen}]}
  - lambda:
      {name: measure, init_script: measure.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: film/chosen, each: true}], output: [{path: film/counts}]}
    gpu: {memory: 256, kinds: [cpu]}
    job: {attempts: 1}
  - lambda:
      {name: table, init_script: table.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: film/counts}], output: [{path: film/out}]}
workflows:
  film: {steps: [cut, choose, measure, table]}
"""
SCRIPTS = {"cut.sh": CUT, "choose.sh": FILTER, "measure.sh": COUNT, "table.sh": TABLE}
STEPS = ("cut", "choose", "measure", "table")


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    measure = COUNT.replace("MENDED", str(live.path / "mended"))
    live.deploy_text("film", FILM, {**SCRIPTS, "measure.sh": measure})


@pytest.fixture(autouse=True)
def _no_orchestrator_left(live: Live) -> Iterator[None]:
    yield
    for name in [n for n in live.children if n.startswith("orchestrator")]:
        live.children[name].kill()
        live.wait(name)


def workflow_of(live: Live) -> dict[str, Any]:
    """The record of the workflow."""
    s3 = live.client("s3")
    for bucket in (one["Name"] for one in s3.list_buckets()["Buckets"]):
        body = get(s3, bucket, "workflows/film.json")
        if body is not None:
            found: dict[str, Any] = json.loads(body)
            return found
    raise AssertionError("no bucket has the record of the workflow")


def upload(live: Live, name: str, word: bytes = b"part") -> tuple[str, str]:
    """The run of a new input, and the bucket of its objects."""
    s3, key = live.client("s3"), f"in/{name}"
    version = s3.put_object(Bucket="film", Key=key, Body=word).get("VersionId")
    if version is None or version == "null":
        head = s3.head_object(Bucket="film", Key=key)
        version = f"{head['ETag'].strip(chr(34))}@{head['LastModified'].isoformat()}"
    return run_id("film", key, version, "film"), workflow_of(live)["bucket"]


def end_of(live: Live, run: str, bucket: str, within_s: float = 120.0) -> dict[str, Any]:
    s3 = live.client("s3")
    body = until(f"the end of {run}", lambda: get(s3, bucket, run_result_key(run)), within_s)
    found: dict[str, Any] = json.loads(body)
    return found


def is_one_table(live: Live, result: dict[str, Any]) -> None:
    assert result["state"] == "SUCCEEDED", result
    states = {one["name"]: (one["state"], one["jobs"]) for one in result["steps"]}
    assert states == {
        "cut": ("DONE", 1),
        "choose": ("DONE", PARTS + 1),
        "measure": ("DONE", PARTS),
        "table": ("DONE", 1),
    }
    (file,) = result["files"]
    rows = (get(live.client("s3"), file["bucket"], file["key"]) or b"").decode().splitlines()
    assert Counter(rows) == {f"{n}.count 2": 1 for n in range(1, PARTS + 1)}, "every part once"


def test_parts_become_one_table(live: Live) -> None:
    live.start("orchestrator")
    run, bucket = upload(live, "one.mp4")
    is_one_table(live, end_of(live, run, bucket))
    live.quiet(*STEPS)
    assert f'"run": "{run}"' in live.log("orchestrator")
    assert live.terminate("orchestrator") == 0


def test_what_runs_and_what_a_gather_took_are_shown(live: Live) -> None:
    live.start("orchestrator")
    run, bucket = upload(live, "shown.mp4")
    until("a device step", lambda: live.leases())
    is_one_table(live, end_of(live, run, bucket))
    tables = json.loads(live.orchgpu("jobs", "--function", "table", "--json"))["jobs"]
    (table,) = [job for job in tables if job["run"] == run]
    assert table["inputs"] == [f"film/counts/{n}.count" for n in range(1, PARTS + 1)]
    assert f"film/counts/1.count and {PARTS - 1} more" in live.orchgpu("jobs")
    printed = live.orchgpu("job", run)
    assert [name for name in STEPS if f"\n{name}  " not in printed] == [], "a row for each step"
    live.quiet(*STEPS)
    assert live.terminate("orchestrator") == 0


POINTS = (
    "before:StartStep:choose",
    "before:EndRun",
    *(
        pytest.param(point, marks=pytest.mark.soak)
        for point in ("after:StartStep:measure", "after:EndRun", "before:DeleteMessages")
    ),
)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_orchestrator_leaves_one_table(live: Live, point: str, tmp_path: Path) -> None:
    command = (sys.executable, CRASHING, point, str(tmp_path / "crashed"))
    live.start("orchestrator-1", "orchestrator", command)
    run, bucket = upload(live, f"{point}.mp4".replace(":", "-"))
    assert live.wait("orchestrator-1") == -9
    live.start("orchestrator-2", "orchestrator")
    is_one_table(live, end_of(live, run, bucket))
    live.quiet(*STEPS)
    assert live.terminate("orchestrator-2") == 0


def test_a_killed_scheduler_leaves_one_table(live: Live) -> None:
    live.start("orchestrator")
    run, bucket = upload(live, "scheduler.mp4")
    until("a device step", lambda: live.leases())
    live.children["scheduler"].kill()
    live.wait("scheduler")
    live.start("scheduler")
    is_one_table(live, end_of(live, run, bucket))
    live.quiet(*STEPS)
    assert live.terminate("orchestrator") == 0


def states_of(result: dict[str, Any]) -> list[str]:
    assert [one["name"] for one in result["steps"]] == list(STEPS)
    return [one["state"] for one in result["steps"]]


def test_steps_without_files_are_skipped(live: Live) -> None:
    live.start("orchestrator")
    run, bucket = upload(live, "nothing.mp4", b"nothing")
    result = end_of(live, run, bucket)
    assert (result["state"], result["files"]) == ("SUCCEEDED", [])
    assert states_of(result) == ["DONE", "DONE", "SKIPPED", "SKIPPED"]
    live.quiet(*STEPS)


def test_a_cancelled_run_gives_its_devices_back(live: Live) -> None:
    live.start("orchestrator")
    run, bucket = upload(live, "slow.mp4", b"slow")
    until("a running step", lambda: [one for one in live.leases() if one["state"] == "ACTIVE"])
    live.orchgpu("cancel", run, "--reason", "wrong film")
    result = end_of(live, run, bucket)
    assert result["state"] == "CANCELLED"
    assert states_of(result) == ["DONE", "DONE", "CANCELLED", "CANCELLED"]
    live.quiet(*STEPS)
    assert live.leases() == []


def test_a_retried_run_keeps_what_is_done(live: Live) -> None:
    live.start("orchestrator")
    run, bucket = upload(live, "broken.mp4", b"broken")
    result = end_of(live, run, bucket)
    assert (result["state"], result["reason"]) == ("FAILED", "EXIT_NONZERO")
    cut = json.loads(live.orchgpu("job", run, "--json"))["run"]["steps"][0]["jobs"]
    (live.path / "mended").touch()
    live.orchgpu("retry", run)
    live.orchgpu("wait", run, "--timeout", "100s")
    is_one_table(live, end_of(live, run, bucket))
    seen = json.loads(live.orchgpu("job", run, "--json"))["run"]
    assert seen["steps"][0]["jobs"] == cut, "the first step did not run again"
    assert seen["retries"] == 1
    live.quiet(*STEPS)
