"""Parameters and metadata that a job is given, and the document that it gives back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from contract.states import Reason

COPY = 'cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/$(basename "$INPUT_FILE_PATH").out"'


def test_a_result_has_the_document_that_the_code_wrote(bench: Any) -> None:
    bench.write(COPY + """; echo '{"confidence": 0.97}' > "$RESULT_FILE" """)
    assert bench.run()["status"] == "succeeded"
    assert bench.result.document == {"confidence": 0.97}
    assert list(bench.outputs) == ["res/b.txt.out"]


def test_parameters_and_metadata_are_variables_that_replace_no_other(bench: Any) -> None:
    given = {"orchgpu-set": '{"PATH":"x","MODE":"fast mode"}', "owner": "lab"}
    bench.job = replace(bench.job, metadata=given, variables={"MODE": "slow"})
    bench.write(
        'echo "$ORCHGPU_PARAM_MODE $MODE $INPUT_METADATA" > "$TMP_OUTPUT_DIR/a"; test "$PATH" != x'
    )
    assert bench.run()["status"] == "succeeded"
    assert bench.outputs == {"res/a": b'fast mode slow {"owner": "lab"}\n'}


def test_parameters_that_are_none_fail_the_attempt_with_a_sentence(bench: Any) -> None:
    bench.job = replace(bench.job, metadata={"orchgpu-set": "MODE=fast"})
    bench.write("true")
    assert bench.run()["status"] == "failed"
    assert bench.report.reason == Reason.INPUT_ERROR
    assert "the metadata 'orchgpu-set' of the input is not a JSON object" in bench.report.detail


def test_declared_values_take_the_place_of_none_of_the_runners_variables(bench: Any) -> None:
    declared = {"INPUT_METADATA": "{}", "RUN_DIR": "/tmp", "TRACEPARENT": "x", "MODE": "m"}
    bench.job = replace(bench.job, variables=declared)
    bench.write(
        'echo "${INPUT_METADATA-no} ${RUN_DIR-no} ${TRACEPARENT-no} $MODE" > "$TMP_OUTPUT_DIR/a"'
    )
    assert bench.run()["status"] == "succeeded"
    assert bench.outputs == {"res/a": b"no no no m\n"}


def test_a_document_that_is_not_valid_fails_the_attempt(bench: Any) -> None:
    bench.write(COPY + '; echo sure > "$RESULT_FILE"')
    assert bench.run()["status"] == "failed"
    assert (bench.report.reason, bench.report.exit_code) == (Reason.OUTPUT_ERROR, 0)
    assert bench.report.detail.startswith("the result document (RESULT_FILE) is not JSON: ")
    assert bench.outputs == {}
