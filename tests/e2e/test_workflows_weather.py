"""Runs of workflows in AWS's weather: an ensemble, a cascade, many parts while programs are killed.

Scale 0.02, as in `test_weather.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from contract.run import run_id, run_result_key, step_jobs
from tests.e2e.live import Live, get, live_system, until

WEATHER = "aws:scale=0.02,seed=3,throttle_pause_s=50-300,throttle_s=60-180"
PARTS, JUNK = 40, 4
FILES = """\
functions:
  aws:
"""


def entry(name: str, script: str, source: str, *outputs: str, device: bool = False) -> str:
    """A function; an output may have a suffix behind `|`."""
    written = ", ".join(
        f"{{path: {path}, suffix: ['{suffix}']}}" if suffix else f"{{path: {path}}}"
        for path, _, suffix in (output.partition("|") for output in outputs)
    )
    gpu = "\n    gpu: {memory: 256, kinds: [cpu]}" if device else ""
    return f"""\
  - lambda:
      {{name: {name}, init_script: {script}.sh, timeout: 30,
       container: {{timeout_threshold: 10}}, input: [{{{source}}}], output: [{written}]}}{gpu}
"""


ENSEMBLE = (
    FILES
    + entry("shrink", "copy", "path: photo/in", "photo/small")
    + entry("first", "vote", "path: photo/small", "photo/votes", device=True)
    + entry("second", "vote", "path: photo/small", "photo/votes")
    + entry("decide", "decide", "path: photo/votes", "photo/labels")
    + "workflows:\n  photo: {steps: [shrink, first, second, decide]}\n"
)
CASCADE = (
    FILES
    + entry("quick", "quick", "path: paper/in", "paper/sure|.sure", "paper/unsure|.unsure")
    + entry("careful", "careful", "path: paper/unsure", "paper/sure", device=True)
    + entry("archive", "archive", "path: paper/sure", "paper/out")
    + "workflows:\n  paper: {steps: [quick, careful, archive]}\n"
)
MANY = (
    FILES
    + entry("split", "split", "path: many/in", "many/parts")
    + entry("filter", "filter", "path: many/parts, each: true", "many/wanted")
    + entry("weigh", "weigh", "path: many/wanted, each: true", "many/weights", device=True)
    + entry("sum", "sum", "path: many/weights", "many/out")
    + "workflows:\n  many: {steps: [split, filter, weigh, sum]}\n"
)
SCRIPTS = {
    "copy": 'cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"',
    "vote": 'cat "$INPUT_FILE_PATH" > "$TMP_OUTPUT_DIR/$ORCHGPU_STEP.vote"',
    "decide": 'cat "$TMP_INPUT_DIR"/*/*.vote > "$TMP_OUTPUT_DIR/label"',
    "quick": """
word=$(cat "$INPUT_FILE_PATH")
echo "quick $word" > "$TMP_OUTPUT_DIR/page.$(test "$word" = clear && echo sure || echo unsure)"
""",
    "careful": 'sed s/quick/careful/ "$INPUT_FILE_PATH" > "$TMP_OUTPUT_DIR/page.read"',
    "archive": 'cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/page.txt"',
    "split": f"""
for n in $(seq 1 {PARTS}); do echo "part $n" > "$TMP_OUTPUT_DIR/$n.part"; done
for n in $(seq 1 {JUNK}); do echo "junk $n" > "$TMP_OUTPUT_DIR/junk$n.part"; done
""",
    "filter": 'grep -q junk "$INPUT_FILE_PATH" || cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"',
    "weigh": 'cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/"',
    "sum": 'cat "$TMP_INPUT_DIR"/weigh/*.part > "$TMP_OUTPUT_DIR/table"',
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    scripts = {f"{name}.sh": f"#!/bin/sh\n{text}\n" for name, text in SCRIPTS.items()}
    with live_system(tmp_path_factory.mktemp("weather"), weather=WEATHER) as system:
        system.start_all()
        for name, text in (("photo", ENSEMBLE), ("paper", CASCADE), ("many", MANY)):
            system.deploy_text(name, text, scripts)
        yield system


def upload(live: Live, bucket: str, name: str, body: bytes) -> str:
    """The run of a new input; each bucket is of the workflow of its name."""
    made = live.client("s3").put_object(Bucket=bucket, Key=f"in/{name}", Body=body)
    return run_id(bucket, f"in/{name}", made["VersionId"], bucket)


def end_of(live: Live, run: str, first: str, within_s: float = 150.0) -> dict[str, Any]:
    s3, bucket = live.client("s3"), f"{first}-intermediate"
    body = until(f"the end of {run}", lambda: get(s3, bucket, run_result_key(run)), within_s)
    found: dict[str, Any] = json.loads(body)
    assert found["state"] == "SUCCEEDED", found
    return found


def lines_of(live: Live, result: dict[str, Any]) -> list[str]:
    """Of the only file of a run, in the version that it wrote: other runs write to its key."""
    (file,) = result["files"]
    found = live.client("s3").get_object(
        Bucket=file["bucket"], Key=file["key"], VersionId=file["version"]
    )
    return [line.decode() for line in found["Body"].read().splitlines()]


def states_of(result: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["state"] for one in result["steps"]}


def test_an_ensemble_joins_every_vote_once(live: Live) -> None:
    runs = [upload(live, "photo", f"{n}.png", b"cat\n") for n in range(3)]
    for run in runs:
        result = end_of(live, run, "shrink")
        assert lines_of(live, result) == ["cat", "cat"]
        assert set(states_of(result).values()) == {"DONE"}
    live.quiet("shrink", "first", "second", "decide")


def test_a_cascade_skips_what_is_sure(live: Live) -> None:
    clear, dim = (upload(live, "paper", f"{word}.pdf", word.encode()) for word in ("clear", "dim"))
    sure, read = end_of(live, clear, "quick"), end_of(live, dim, "quick")
    assert (lines_of(live, sure), lines_of(live, read)) == (["quick clear"], ["careful dim"])
    assert states_of(sure) == {"quick": "DONE", "careful": "SKIPPED", "archive": "DONE"}
    assert states_of(read) == {"quick": "DONE", "careful": "DONE", "archive": "DONE"}
    live.quiet("quick", "careful", "archive")


def has_ended(live: Live, run: str, step: str, count: int) -> bool:
    """Whether so many of a step's jobs have a result."""
    pages = live.client("s3").get_paginator("list_objects_v2")
    prefix = f"results/{step_jobs(run, step)}"
    found = pages.paginate(Bucket=f"{step}-intermediate", Prefix=prefix)
    return sum(int(page["KeyCount"]) for page in found) >= count


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_every_part_is_in_one_table_although_programs_are_killed(live: Live) -> None:
    run = upload(live, "many", "film.mp4", b"film")
    for step, count in (("split", 1), ("filter", 10), ("filter", 30), ("weigh", 5), ("weigh", 25)):
        until(f"{count} of {step}", partial(has_ended, live, run, step, count), 150.0)
        for name in ("orchestrator", "scheduler"):
            live.kill(name)
            live.start(name)
    result = end_of(live, run, "split", within_s=300.0)
    assert Counter(lines_of(live, result)) == {f"part {n}": 1 for n in range(1, PARTS + 1)}
    jobs = {one["name"]: one["jobs"] for one in result["steps"]}
    assert jobs == {"split": 1, "filter": PARTS + JUNK, "weigh": PARTS, "sum": 1}
    live.quiet("split", "filter", "weigh", "sum", within_s=150.0)
