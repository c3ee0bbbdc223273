"""What one attempt used, in its result or its report."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from typing import Any

from contract.provenance import RELEASE
from contract.states import Reason
from lambda_functions.gpu_runner.secrets.values import SecretValues

#: A program whose devices note what they used: lines of the file that the runner names.
NOTES = (
    f"#!{sys.executable}\nimport os, sys\n"
    "with open(os.environ['ORCHGPU_USES'], 'a') as file:\n"
    "    file.write({0!r})\n"
    "open(os.environ['TMP_OUTPUT_DIR'] + '/o', 'w').write('x')\n"
    "sys.exit({1})\n"
)


def notes(*lines: Any) -> str:
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_a_result_has_what_was_known_and_what_was_seen(bench: Any) -> None:
    known = {"function": {"revision": "r"}, "input": {"etag": "e"}, "newer": 1}
    bench.change(provenance=known | {"versions": {"orchgpu": "9"}})
    line = {"operation": "sgemm", "implementation": "numpy"}
    lines = notes(
        line,
        line,
        {"data": {"nr": "d1"}},
        {"programs": {"blast": "d2"}},
        {"resource": "sha256:d3", "type": "model", "source": "m.onnx"},
        ["not an object"],
        {"of a newer version": 1},
    )
    bench.write(NOTES.format(lines + "{torn", 0))
    assert bench.run()["status"] == "succeeded"
    assert bench.result.provenance == {
        "function": {"revision": "r"},
        "input": {"etag": "e", "sha256": hashlib.sha256(b"hello").hexdigest()},
        "newer": 1,
        "versions": {"orchgpu": "9", "runner": RELEASE, "python": platform.python_version()},
        "operations": [{"name": "sgemm", "implementation": "numpy"}],
        "data": {"nr": "d1"},
        "programs": {"blast": "d2"},
        "resources": [{"type": "model", "sha256": "d3", "source": "m.onnx"}],
    }


def test_an_input_by_reference_is_hashed_while_it_is_read(bench: Any) -> None:
    bench.change(input_inline=False, input_size=5)
    bench.s3.put_object(Bucket=bench.job.input_bucket, Key=bench.job.input_key, Body=b"other")
    bench.write(NOTES.format("", 0))
    bench.run()
    digest = bench.result.provenance["input"]["sha256"]
    assert digest == hashlib.sha256(b"other").hexdigest()


def test_secrets_are_masked(bench: Any) -> None:
    bench.change(provenance={"parameters": {"X": "tell s3cret-value"}})
    bench.secrets = {"": {"TOKEN": "ssm:/token"}}
    bench.values = SecretValues(lambda _: "s3cret-value")
    bench.write(NOTES.format(notes({"operation": "s3cret-value", "implementation": "i"}), 0))
    bench.run()
    assert "s3cret-value" not in json.dumps(bench.result.provenance)
    assert bench.result.provenance["parameters"]["X"] == "tell ***"


def test_a_failure_on_a_host_that_lacks_data_names_it(bench: Any) -> None:
    bench.change(provenance={"function": {"revision": "r"}})
    bench.write(NOTES.format(notes({"lacks": {"data": "nr"}}, {"lacks": {"programs": "b"}}), 3))
    assert bench.run()["reason"] == "NOT_ON_HOST"
    report = bench.report
    assert (report.reason, report.exit_code) == (Reason.NOT_ON_HOST, 3)
    assert report.lacks == {"data": ["nr"], "programs": ["b"]}
    assert report.detail == "its host has no data nr, programs b: the script exited with 3"
    assert report.provenance["function"] == {"revision": "r"}
    assert bench.result is None


def test_a_script_that_goes_on_without_the_data_succeeds(bench: Any) -> None:
    bench.write(NOTES.format(notes({"lacks": {"data": "nr"}}), 0))
    assert bench.run()["status"] == "succeeded"


def test_other_failures_keep_their_reasons(bench: Any) -> None:
    bench.write(NOTES.format(notes({"lacks": {"data": 3}}, {"lacks": "x"}), 3))
    bench.run()
    assert (bench.report.reason, bench.report.lacks) == (Reason.EXIT_NONZERO, {})


def test_a_removed_or_huge_file_of_notes_costs_the_notes_only(bench: Any) -> None:
    text = f"#!{sys.executable}\nimport os\nos.remove(os.environ['ORCHGPU_USES'])\n"
    bench.write(text + "open(os.environ['TMP_OUTPUT_DIR'] + '/o', 'w').write('x')\n")
    assert bench.run()["status"] == "succeeded"
    assert "operations" not in bench.result.provenance
