"""Jobs with a Python handler, and with the steps of a group."""

import json
from pathlib import Path
from typing import Any

import pytest

from contract.states import Reason
from lambda_functions.gpu_runner.errors import RunnerError
from lambda_functions.gpu_runner.script import steps
from lambda_functions.gpu_runner.settings import read_settings

HANDLER = """
from lambda_functions.work import Work

def answer(work: Work) -> None:
    text = work.input.read_text()
    assert work.input_folder == work.input.parent
    print("called with", work.key, work.device_count)
    (work.output_folder / (work.input.stem + ".out")).write_text(text.upper() + work.variables["MINE"])

def wrong(work):
    return 7

def raises(work):
    (work.output_folder / "half").write_text("half")
    raise ValueError("no such sequence")
"""  # noqa: E501 - as a user writes it


def write_handler(bench: Any, name: str) -> None:
    (bench.folder / "mine.py").write_text(HANDLER)
    bench.handler = f"mine.{name}"


def test_a_handler_gets_its_work_and_writes_files(bench: Any) -> None:
    write_handler(bench, "answer")
    bench.change(variables={"MINE": "!"})
    assert bench.run()["status"] == "succeeded"
    assert bench.outputs == {"res/b.out": b"HELLO!"}
    assert bench.result.log_tail == "called with a/b.txt 1\n"
    assert bench.gateway.heard == ["open", "give_back", "close"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raises", "ValueError: no such sequence"),
        ("wrong", "mine.wrong returned int: results are files in output_folder, return nothing"),
        ("absent", "AttributeError: module 'mine' has no attribute 'absent'"),
    ],
)
def test_an_exception_of_a_handler_fails_the_attempt(bench: Any, name: str, said: str) -> None:
    write_handler(bench, name)
    assert bench.run()["status"] == "failed"
    assert bench.report.reason == Reason.EXIT_NONZERO
    assert said in bench.report.log_tail
    assert (bench.outputs, bench.result) == ({}, None)


def group(bench: Any, scripts: dict[str, str]) -> None:
    """split → upper (its .part files) → count (its .up files); anything else goes to S3."""
    out = bench.job.outputs[0]["bucket"]
    places = {"split": ("nowhere", "in"), "upper": (out, "parts"), "count": ("inner", "ups")}
    wrote = {"split": (out, "parts"), "upper": ("inner", "ups"), "count": (out, "counts")}
    suffixes = {"upper": [".part"], "count": [".up"]}
    listed = []
    for name, text in scripts.items():
        path = bench.folder / f"{name}.sh"
        path.write_text("#!/bin/sh\nset -e\n" + text)
        taken, given = places[name], wrote[name]
        listed.append(
            {
                "name": name,
                "script": path.name,
                "folder": ".",
                "variables": {"STEP": name},
                "inputs": []
                if name == "split"
                else [{"bucket": taken[0], "prefix": taken[1], "suffix": suffixes[name]}],
                "outputs": [{"bucket": given[0], "prefix": given[1]}],
            }
        )
    bench.group = steps.read_steps(bench.folder, json.dumps(listed))


SPLIT = 'for n in 1 2; do cat "$INPUT_FILE_PATH" > $TMP_OUTPUT_DIR/$n.part; done; echo log > $TMP_OUTPUT_DIR/x.log'  # noqa: E501
UPPER = 'tr a-z A-Z < "$INPUT_FILE_PATH" > $TMP_OUTPUT_DIR/$(basename $INPUT_FILE_PATH .part).up'
COUNT = 'echo $STEP $STORAGE_OBJECT_KEY; wc -c < "$INPUT_FILE_PATH" > $TMP_OUTPUT_DIR/$(basename $INPUT_FILE_PATH).n'  # noqa: E501


def test_steps_of_a_group_pass_files_without_s3_in_one_session(bench: Any) -> None:
    group(bench, {"split": SPLIT, "upper": UPPER, "count": COUNT})
    assert bench.run()["status"] == "succeeded"
    assert {k: v.split() for k, v in bench.outputs.items()} == {
        "parts/x.log": [b"log"],
        "counts/1.up.n": [b"5"],
        "counts/2.up.n": [b"5"],
    }
    assert bench.gateway.heard == ["open", "give_back", "close"]
    assert "[count]\ncount ups/2.up\n" in bench.result.log_tail
    assert bench.result.times["EStart"] <= bench.result.times["EEnd"]


def test_all_steps_of_a_sandbox_see_one_folder_that_is_empty_at_first(bench: Any) -> None:
    note = 'echo $STEP >> "$RUN_DIR/seen"; '
    group(
        bench,
        {
            "split": 'test -z "$(ls -A "$RUN_DIR")"; ' + note + SPLIT,
            "upper": note + UPPER,
            "count": note + COUNT + '; cp "$RUN_DIR/seen" $TMP_OUTPUT_DIR/seen',
        },
    )
    assert bench.run()["status"] == "succeeded"
    seen = bench.outputs["counts/seen"].split()
    assert seen == [b"split", b"upper", b"upper", b"count", b"count"]


def test_a_function_of_its_own_has_no_folder_of_a_sandbox(bench: Any) -> None:
    bench.write('test -z "${RUN_DIR+set}"')
    assert bench.run()["status"] == "succeeded"


def test_a_failing_step_ends_the_job_and_is_named(bench: Any) -> None:
    group(bench, {"split": SPLIT, "upper": "echo broken; exit 4", "count": COUNT})
    assert bench.run() | {"job_id": ""} == {
        "job_id": "",
        "attempt": 1,
        "status": "failed",
        "reason": "EXIT_NONZERO",
        "detail": "the script of step upper exited with 4",
    }
    assert bench.report.log_tail == "[split]\n\n[upper]\nbroken\n"
    assert (bench.outputs, bench.result) == ({}, None)


def test_an_invalid_output_of_a_step_is_reported_with_the_step(bench: Any) -> None:
    group(bench, {"split": "ln -s /etc/passwd $TMP_OUTPUT_DIR/x.part", "upper": UPPER})
    assert bench.run()["detail"].startswith("step split: output 'x.part' links to outside of")
    assert bench.gateway.heard == ["open", "give_back", "close"]


def test_a_fan_out_is_limited(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "RUNS_MAX", 2)
    group(bench, {"split": SPLIT, "upper": UPPER, "count": COUNT})
    assert bench.run()["detail"] == "step split: over 2 runs of steps"


def test_an_invalid_list_of_steps_stops_the_function_at_its_start(tmp_path: Path) -> None:
    (tmp_path / "steps.json").write_text('[{"name": 1}]')
    variables = {"LAMBDA_TASK_ROOT": str(tmp_path), "ORCHGPU_STEPS": "steps.json"}
    with pytest.raises(RunnerError, match="deploy the function again"):
        read_settings(variables)
    with pytest.raises(RunnerError, match=r"lacks gone\.json"):
        read_settings(variables | {"ORCHGPU_STEPS": "gone.json"})
