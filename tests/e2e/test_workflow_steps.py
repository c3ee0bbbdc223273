"""Steps of workflows in a whole system: conditions, parameters and a sandbox that they share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.live import Live, get, until

#: Answers itself, and states how sure it is: the input's first word, unless a parameter decides.
SMALL = """#!/bin/sh
set -e
read sure rest < "$INPUT_FILE_PATH"
echo "{\\"sure\\": ${ORCHGPU_PARAM_SURE:-$sure}}" > "$RESULT_FILE"
echo "small $ORCHGPU_PARAM_TAG" > "$TMP_OUTPUT_DIR/$(basename "$INPUT_FILE_PATH").answer"
"""
#: MENDED is a file that a test makes.
LARGE = """#!/bin/sh
test -e MENDED || exit 3
echo "large $ORCHGPU_PARAM_TAG $INPUT_METADATA" > "$TMP_OUTPUT_DIR/answer"
"""
CASCADE = """\
functions:
  aws:
  - lambda:
      {name: small, init_script: small.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: cascade/in}], output: [{path: cascade/small}]}
  - lambda:
      {name: large, init_script: large.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: cascade/small, when: document.sure < `0.9`}],
       output: [{path: cascade/large}]}
    gpu: {memory: 256, kinds: [cpu]}
    job: {attempts: 1}
workflows:
  cascade: {steps: [small, large]}
"""
SPLIT = """#!/bin/sh
set -e
test -z "$(ls -A "$RUN_DIR")"
for word in $(cat "$INPUT_FILE_PATH"); do echo $word > "$TMP_OUTPUT_DIR/$word.part"; done
echo "$ORCHGPU_PARAM_TAG" > "$RUN_DIR/tag"
"""
SHOUT = """#!/bin/sh
set -e
echo "$(tr a-z A-Z < "$INPUT_FILE_PATH") $(cat "$RUN_DIR/tag")" > "$TMP_OUTPUT_DIR/$(basename "$INPUT_FILE_PATH").out"
"""  # noqa: E501 - one command
SHARED = """\
functions:
  aws:
  - lambda:
      {name: split, init_script: split.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: shared/in}], output: [{path: shared/parts}]}
  - lambda:
      {name: shout, init_script: shout.sh, timeout: 30, container: {timeout_threshold: 10},
       input: [{path: shared/parts, each: true}], output: [{path: shared/out}]}
    gpu: {memory: 256, kinds: [cpu]}
workflows:
  words: {steps: [split, shout], sandbox: shared, gpu: {memory: 256, kinds: [cpu]}}
"""


@pytest.fixture(scope="module", autouse=True)
def _deployed(live: Live) -> None:
    large = LARGE.replace("MENDED", str(live.path / "mended"))
    live.deploy_text("cascade", CASCADE, {"small.sh": SMALL, "large.sh": large})
    live.deploy_text("shared", SHARED, {"split.sh": SPLIT, "shout.sh": SHOUT})


@pytest.fixture(scope="module", autouse=True)
def _orchestrator(live: Live, _deployed: None) -> Iterator[None]:
    live.start("orchestrator")
    (live.path / "mended").touch()
    yield
    live.children["orchestrator"].kill()
    live.wait("orchestrator")


def ran(live: Live, file: Path, *options: str, status: int = 0) -> dict[str, Any]:
    told = live.orchgpu("run", "cascade", str(file), "--wait", "--json", *options, status=status)
    (run,) = json.loads(told)["runs"]
    found: dict[str, Any] = run
    return found


def states(run: dict[str, Any]) -> list[str]:
    return [one["state"] for one in run["steps"]]


def text_of(live: Live, run: dict[str, Any]) -> str:
    (file,) = run["files"]
    return (get(live.client("s3"), file["bucket"], file["key"]) or b"").decode().strip()


@pytest.mark.parametrize("sure", [True, False])
def test_a_step_starts_only_where_the_one_before_is_not_sure(
    live: Live, tmp_path: Path, sure: bool
) -> None:
    file = tmp_path / ("sure" if sure else "unsure")
    file.write_text("0.97 page\n" if sure else "0.4 page\n")
    run = ran(live, file)
    assert run["state"] == "SUCCEEDED"
    assert states(run) == ["DONE", "SKIPPED" if sure else "DONE"]
    assert text_of(live, run) == ("small" if sure else "large")
    live.quiet("small", "large")


def test_a_condition_without_an_answer_fails_the_run_with_its_text(
    live: Live, tmp_path: Path
) -> None:
    file = tmp_path / "null"
    file.write_text("null page\n")
    run = ran(live, file, status=1)
    assert (run["state"], run["reason"]) == ("FAILED", "CONDITION_ERROR")
    assert states(run) == ["DONE", "FAILED"]
    assert "document.sure < `0.9`: it is null, neither true nor false" in run["detail"]


def test_parameters_and_metadata_reach_every_step_and_a_retry(live: Live, tmp_path: Path) -> None:
    file = tmp_path / "given"
    file.write_text("0.97 page\n")
    (live.path / "mended").unlink()
    options = ("--set", "SURE=0.1", "--set", "TAG=red one")
    run = ran(live, file, *options, status=1)
    assert (run["state"], states(run)) == ("FAILED", ["DONE", "FAILED"])
    (live.path / "mended").touch()
    live.orchgpu("retry", run["run_id"])
    again = ran(live, file, *options)
    assert again["run_id"] == run["run_id"], "the same content with the same parameters"
    assert text_of(live, again) == "large red one"
    other = ran(live, file, "--set", "TAG=blue")
    assert other["run_id"] != run["run_id"]
    assert (states(other), text_of(live, other)) == (["DONE", "SKIPPED"], "small blue")


def test_the_metadata_of_another_tool_reaches_a_step(live: Live) -> None:
    key, s3 = "in/theirs", live.client("s3")
    s3.put_object(Bucket="cascade", Key=key, Body=b"0.1 page\n", Metadata={"Owner": "lab"})

    def answer() -> bytes | None:
        body = get(s3, "cascade", "large/answer")
        return body if body and b"owner" in body else None

    body = until("the answer", answer)
    assert body.decode().strip() == 'large  {"owner": "lab"}'
    live.quiet("small", "large")


def test_the_steps_of_a_shared_sandbox_are_one_job_with_one_folder(
    live: Live, tmp_path: Path
) -> None:
    file = tmp_path / "words"
    file.write_text("red green\n")
    told = live.orchgpu("run", "words", str(file), "--wait", "--json", "--set", "TAG=loud")
    (job,) = json.loads(told)["jobs"]
    assert job["state"] == "SUCCEEDED"
    s3 = live.client("s3")
    found = {name: get(s3, "shared", f"out/{name}.part.out") for name in ("red", "green")}
    assert found == {"red": b"RED loud\n", "green": b"GREEN loud\n"}
    live.quiet("words")
