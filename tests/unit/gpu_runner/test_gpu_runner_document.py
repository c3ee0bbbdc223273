"""The document of a result, read without trust."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from contract.envelope import Job
from contract.result import DOCUMENT_BYTES_MAX, OutputFile, Result
from contract.states import Reason
from lambda_functions.gpu_runner.document import DEPTH_MAX, read_document
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.storage.commit import FILES_BYTES_MAX, listed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "document"


def test_a_document_is_what_the_code_wrote_with_secrets_masked(file: Path) -> None:
    assert read_document(file) is None
    file.write_text('{"confidence": 0.97, "text": ["hunter2"]}')
    masked = read_document(file, lambda text: text.replace("hunter2", "***"))
    assert masked == {"confidence": 0.97, "text": ["***"]}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ('{"a": NaN}', "is not JSON: NaN is not a number of JSON"),
        ('{"a": 1e999}', "is not JSON: Out of range float"),
        ('{"a": 9223372036854775808}', "is not JSON: 9223372036854775808… does not fit into 64"),
        ('{"a": "\\ud800"}', "is not JSON"),
        ('{"a": ' + "[" * DEPTH_MAX + "]" * DEPTH_MAX + "}", "is nested over 32 deep"),
        ('{"a": ' + "[" * 60_000, "is not JSON"),
        (json.dumps({"a": "b" * DOCUMENT_BYTES_MAX}), "has 65544 bytes, more than 65536"),
        (json.dumps({"a": "b" * 3 * DOCUMENT_BYTES_MAX}), "is larger than 65536 bytes"),
        (json.dumps({"a": "é" * 20_000}, ensure_ascii=False), "has 120008 bytes"),
    ],
)
def test_what_is_no_small_object_fails_the_attempt(file: Path, text: str, why: str) -> None:
    file.write_text(text)
    with pytest.raises(AttemptFailed) as caught:
        read_document(file)
    assert caught.value.reason is Reason.OUTPUT_ERROR
    assert caught.value.detail.startswith(f"the result document (RESULT_FILE) {why}")


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_only_a_plain_file_is_read(file: Path, kind: str) -> None:
    if kind == "link":
        file.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    with pytest.raises(AttemptFailed, match=r"is not a plain file|cannot be read"):
        read_document(file)


def test_a_result_names_fewer_files_beside_a_document() -> None:
    one = OutputFile(bucket="b", key="k" * 1000, size=1, sha256="0" * 64)
    files = [one] * (FILES_BYTES_MAX // 1000)
    document = {"a": "b" * 60_000}
    assert len(listed(files)) - len(listed(files, document)) in range(40, 70)


def test_older_records_have_no_document() -> None:
    result = Result(
        job_id="j",
        state="SUCCEEDED",
        reason="NONE",
        attempt=1,
        nonce="",
        exit_code=0,
        files=[],
        times={},
        log_tail="",
    )
    old = json.loads(result.to_json())
    del old["document"]
    assert Result.from_json(json.dumps(old).encode()) == result
    assert Job.from_json(json.dumps({**_JOB, "later": 1}).encode()).run is None


_JOB = {
    "version": 1,
    "job_id": "j",
    "attempt": 1,
    "fence": 0,
    "function": "f",
    "input_bucket": "b",
    "input_key": "k",
    "input_version": None,
    "input_etag": "",
    "input_size": 0,
    "input_inline": True,
    "event": {},
    "outputs": [],
    "intermediate_bucket": "b",
    "staged_at_s": 0.0,
    "connect_by_s": 0.0,
}
