"""One attempt against a real S3 endpoint, a real session and a real script."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from contract import keys
from contract.result import Result
from contract.states import JobState, Reason
from lambda_functions.gpu_runner.errors import EnvelopeError, LeaseNotOpen

COPY = 'cp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/$(basename "$INPUT_FILE_PATH").out"'


def test_a_job_runs_to_its_result(bench: Any) -> None:
    bench.write(COPY + "; echo said")
    assert bench.run() == {
        "status": "succeeded",
        "files": 1,
        "job_id": bench.job.job_id,
        "attempt": 1,
    }
    assert bench.outputs == {"res/b.txt.out": b"hello"}
    result = bench.result
    assert (result.state, result.reason, result.exit_code) == (JobState.SUCCEEDED, Reason.NONE, 0)
    assert (result.attempt, result.nonce) == (1, bench.gateway.holder)
    assert result.files == [
        {
            "bucket": bench.job.outputs[0]["bucket"],
            "key": "res/b.txt.out",
            "size": 5,
            "sha256": hashlib.sha256(b"hello").hexdigest(),
            "version": None,
            "etag": hashlib.md5(b"hello", usedforsecurity=False).hexdigest(),
        }
    ]
    assert result.log_tail == "said\n"
    assert result.device == {"host": "gpu-a", "kind": "cpu", "model": "test"}
    times = result.times
    assert times["EStart"] <= times["EEnd"] <= times["committed"] == result.ended_at_s
    assert bench.report is None
    assert bench.gateway.heard == ["open", "give_back", "close"]
    assert bench.gateway.succeeded == [True, True]


def test_the_device_is_given_back_before_the_first_upload_and_the_session_closed_after_the_result(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, tuple[str, ...]]] = []

    def note(params: dict[str, Any], **_: Any) -> None:
        seen.append((params["Key"].split("/")[0], tuple(bench.gateway.heard)))

    bench.write(COPY)
    bench.stage()
    events = bench.s3.meta.events
    events.register("provide-client-params.s3.PutObject", note)
    try:
        bench.deliver()
    finally:
        events.unregister("provide-client-params.s3.PutObject", note)
    assert seen == [("res", ("open", "give_back")), ("results", ("open", "give_back"))]


def test_the_script_gets_its_environment_without_credentials(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never")
    monkeypatch.setenv("ORCHGPU_SCRIPT", "never")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/function")
    mine = {"MINE": "1 ünï", "PYTHONPATH": "/mine", "LD_LIBRARY_PATH": "/of/the/user"}
    bench.change(variables=mine)
    bench.write(
        "#!/usr/bin/env python3\nimport json, os\n"
        "from remote_gpu.client import connect\n"
        "json.dump(dict(os.environ), open(os.environ['TMP_OUTPUT_DIR'] + '/env', 'w'))\n"
    )
    bench.run()
    found = json.loads(bench.outputs["res/env"])
    assert found["MINE"] == "1 ünï"
    assert found["PYTHONPATH"].startswith("/mine:")
    assert found["LD_LIBRARY_PATH"] == "/of/the/user"
    assert found["STORAGE_OBJECT_KEY"] == "a/b.txt"
    assert found["EVENT_TIME"] == "2026-01-01T00:00:00Z"
    assert json.loads(found["EVENT"]) == bench.job.event
    assert found["INPUT_FILE_PATH"] == found["TMP_INPUT_DIR"] + "/b.txt"
    assert found["ORCHGPU_DEVICE_COUNT"] == "1"
    assert found["AWS_REGION"] == "eu-west-1"
    assert bench.gateway.secret not in found["ORCHGPU_SESSION"]
    assert "never" not in found.values()


@pytest.mark.parametrize(
    "key", ["sp ace+plus%25.txt", "日本/ünï-😀", "no-dot", "a.b.c.d", "tab\there", "-rf"]
)
def test_unusual_keys_are_unchanged(bench: Any, key: str) -> None:
    bench.change(input_key=key)
    bench.write(COPY + '; printf %s "$STORAGE_OBJECT_KEY" > "$TMP_OUTPUT_DIR/key"')
    assert bench.run()["status"] == "succeeded"
    assert (
        bench.s3.get_object(Bucket=bench.job.outputs[0]["bucket"], Key="res/key")["Body"].read()
        == key.encode()
    )


@pytest.mark.parametrize(
    ("text", "reason", "code"),
    [
        ("echo bad >&2; echo x > $TMP_OUTPUT_DIR/half; exit 3", Reason.EXIT_NONZERO, 3),
        ("echo bad; kill -9 $$", Reason.KILLED, 137),
        ("echo bad; ln -s /etc/passwd $TMP_OUTPUT_DIR/x", Reason.OUTPUT_ERROR, 0),
    ],
)
def test_a_failed_script_is_reported_and_nothing_is_uploaded(
    bench: Any, text: str, reason: Reason, code: int
) -> None:
    bench.write(text)
    assert bench.run()["status"] == "failed"
    report = bench.report
    assert (report.reason, report.exit_code, report.log_tail) == (reason, code, "bad\n")
    assert report.nonce == bench.gateway.holder
    assert report.times["EStart"] <= report.times["EEnd"]
    assert (bench.outputs, bench.result) == ({}, None)
    assert bench.gateway.heard == ["open", "give_back", "close"]
    assert bench.gateway.succeeded == [False, False]


def test_a_script_over_its_time_is_a_timeout_with_its_log(bench: Any) -> None:
    bench.timeout_s = 1.0
    bench.write("echo began; echo half > $TMP_OUTPUT_DIR/half; sleep 60")
    assert bench.run()["reason"] == "TIMEOUT"
    assert bench.report.log_tail == "began\n"
    assert (bench.outputs, bench.result) == ({}, None)


@pytest.mark.parametrize(
    ("script", "changes", "reason", "detail"),
    [
        ("", {}, "SCRIPT_ERROR", "without a script"),
        (COPY, {"outputs": [{"bucket": "no-such-bucket"}]}, "OUTPUT_ERROR", "no-such-bucket"),
        (COPY, {"input_size": 6}, "INPUT_ERROR", "5 bytes, not 6"),
        (COPY, {"input_inline": False, "input_etag": "0" * 32}, "INPUT_ERROR", "404"),
    ],
)
def test_an_attempt_that_cannot_run_or_be_stored_is_reported(
    bench: Any, script: str, changes: dict[str, Any], reason: str, detail: str
) -> None:
    bench.change(**changes)
    if script:
        bench.write(script)
    assert bench.run()["reason"] == reason
    assert detail in bench.report.detail
    assert bench.result is None
    ran = ["give_back"] if reason == "OUTPUT_ERROR" else []
    assert bench.gateway.heard == ["open", *ran, "close"]


# ------------------------------------------------------------------ input


def test_a_referenced_input_is_read_by_its_version(bench: Any) -> None:
    bucket, key = bench.job.input_bucket, bench.job.input_key
    bench.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    old = bench.s3.put_object(Bucket=bucket, Key=key, Body=b"first")
    bench.s3.put_object(Bucket=bucket, Key=key, Body=b"second")
    bench.change(input_inline=False, input_version=old["VersionId"], input_etag=old["ETag"])
    bench.write(COPY)
    assert bench.run()["status"] == "succeeded"
    assert bench.outputs == {"res/b.txt.out": b"first"}


def test_an_overwritten_input_is_an_input_error(bench: Any) -> None:
    bench.s3.put_object(Bucket=bench.job.input_bucket, Key=bench.job.input_key, Body=b"other")
    bench.change(input_inline=False, input_etag="0" * 32)
    bench.write(COPY)
    assert bench.run()["reason"] == "INPUT_ERROR"
    assert "412" in bench.report.detail
    assert bench.gateway.heard == ["open", "close"]


# ------------------------------------------------------------------ session


def test_a_second_delivery_does_nothing(bench: Any) -> None:
    bench.write("echo x >> " + str(bench.folder / "ran"))
    bench.run()
    for _ in range(2):
        assert bench.deliver()["status"] == "duplicate"
    assert (bench.folder / "ran").read_text() == "x\n"
    assert bench.gateway.heard == ["open", "give_back", "close"]


@pytest.mark.parametrize("code", ["CLAIMED", "ENDED"])
def test_a_duplicate_or_late_start_is_not_an_error(bench: Any, code: str) -> None:
    bench.gateway.refuse = code
    bench.write(COPY)
    assert bench.run()["status"] == "duplicate"
    assert (bench.report, bench.result, bench.outputs) == (None, None, {})


@pytest.mark.parametrize("code", ["NOT_INSTALLED", "DENIED", "NOT_READY", "BUSY"])
def test_a_lease_that_does_not_open_is_an_error_of_the_function(bench: Any, code: str) -> None:
    bench.gateway.refuse = code
    with pytest.raises(LeaseNotOpen, match=code):
        bench.run()


def test_an_unreachable_host_is_an_error_of_the_function(bench: Any) -> None:
    bench.stage()
    bench.gateway.close()
    with pytest.raises(LeaseNotOpen, match="UNREACHABLE"):
        bench.deliver()


def test_a_withdrawn_envelope_is_not_an_error(bench: Any) -> None:
    pauses_s: list[float] = []
    assert bench.deliver(pauses_s.append)["status"] == "withdrawn"
    assert sum(pauses_s) == 10.0


@pytest.mark.parametrize("script", [COPY, "exit 3"], ids=["result", "report"])
def test_a_second_start_after_the_attempts_end_does_not_wait(bench: Any, script: str) -> None:
    """An attempt is started by Invoke and by the envelope's event, which often comes too late."""
    bench.write(script)
    bench.run()
    ends = (bench.result, bench.report, bench.outputs)
    bench.s3.delete_object(Bucket=bench.job.intermediate_bucket, Key=bench.key)
    pauses_s: list[float] = []
    assert bench.deliver(pauses_s.append)["status"] == "duplicate"
    assert pauses_s == []
    assert ends == (bench.result, bench.report, bench.outputs)


def test_an_end_of_another_attempt_is_not_the_end_of_this_one(bench: Any) -> None:
    bucket = bench.job.intermediate_bucket
    for n in (2, 10):
        bench.s3.put_object(Bucket=bucket, Key=keys.report_key(bench.job.job_id, n), Body=b"{}")
    bench.write(COPY)
    assert bench.deliver(lambda _: bench.stage())["status"] == "succeeded"


def test_an_envelope_that_is_not_visible_yet_is_requested_again(bench: Any) -> None:
    """S3 answers 404 for existing objects for a while after versioning is first enabled."""
    bench.write(COPY)
    assert bench.deliver(lambda _: bench.stage())["status"] == "succeeded"


def test_a_session_lost_while_the_script_runs_kills_it(
    bench: Any, until: Callable[..., None]
) -> None:
    marker = bench.folder / "running"
    bench.write(f"echo half > $TMP_OUTPUT_DIR/half; touch {marker}; sleep 60")
    answers: list[Any] = []
    runner = threading.Thread(target=lambda: answers.append(bench.run()))
    runner.start()
    until(marker.exists)
    bench.gateway.lose("REVOKED")
    runner.join(10)
    assert answers[0]["reason"] == "REVOKED"
    assert bench.report.exit_code == 137
    assert (bench.outputs, bench.result) == ({}, None)


def test_a_session_lost_at_the_end_of_the_code_is_a_failure(bench: Any) -> None:
    bench.gateway.lose_on = "give_back"
    bench.write(COPY)
    assert bench.run()["reason"] == "REVOKED"
    assert (bench.outputs, bench.result) == ({}, None)


# ------------------------------------------------------------------ envelope


def test_an_envelope_at_the_key_of_another_attempt_is_refused_before_any_claim(bench: Any) -> None:
    bench.stage()
    job = bench.job
    bench.change(attempt=2)
    bench.s3.copy_object(
        Bucket=job.intermediate_bucket,
        Key=bench.key,
        CopySource={
            "Bucket": job.intermediate_bucket,
            "Key": keys.staging_key("fn", job.job_id, 1, job.fence),
        },
    )
    with pytest.raises(EnvelopeError, match="key of another attempt"):
        bench.deliver()
    assert bench.gateway.heard == []


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "RCUDA_DEVICE_COUNT"])
def test_variables_outside_the_allow_list_are_refused_before_any_claim(
    bench: Any, name: str
) -> None:
    bench.environment = {"variables": {name: "1"}}
    with pytest.raises(EnvelopeError, match=name):
        bench.run()
    assert bench.gateway.heard == []


# ------------------------------------------------------------------ other middlewares


def lupine(bench: Any, at: str) -> None:
    bench.environment = {"middleware": "lupine", "variables": {"LUPINE_SERVER": at}}


def test_the_client_of_another_middleware_finds_the_forwarder(bench: Any) -> None:
    lupine(bench, "127.0.0.1:{0}")
    bench.write(
        '#!/bin/bash\necho "$LUPINE_SERVER"\n'
        'exec 3<>"/dev/tcp/${LUPINE_SERVER/:/\\/}" && cat <&3 && echo ended\n'
    )
    assert bench.run()["status"] == "succeeded"
    address, ended = bench.result.log_tail.splitlines()
    assert ended == "ended"  # this gateway has no doors: the connection was taken, and closed
    port = address.removeprefix("127.0.0.1:")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(port)), 5)


def test_a_port_of_an_unknown_host_is_refused(bench: Any) -> None:
    lupine(bench, "127.0.0.1:{7}")
    bench.write(COPY)
    with pytest.raises(EnvelopeError, match="is not a host of the lease"):
        bench.run()
    assert bench.gateway.heard == ["open", "close"]


# ------------------------------------------------------------------ commit


def other_result(bench: Any, **fields: Any) -> str:
    result = Result(
        job_id=bench.job.job_id,
        state="FAILED",
        reason="EXIT_NONZERO",
        attempt=9,
        nonce="n",
        exit_code=1,
        files=[],
        times={},
        log_tail="",
    )
    reply = bench.s3.put_object(
        Bucket=bench.job.intermediate_bucket,
        Key=keys.result_key(bench.job.job_id),
        Body=result.to_json(),
    )
    etag: str = reply["ETag"]
    return etag


def test_the_second_commit_loses(bench: Any) -> None:
    other_result(bench)
    bench.write(COPY)
    assert bench.run()["status"] == "lost"
    assert bench.result.attempt == 9


@pytest.mark.parametrize("quotes", [True, False])
def test_a_redriven_job_replaces_its_failed_result_only(bench: Any, quotes: bool) -> None:
    etag = other_result(bench)
    bench.change(replace_etag=etag if quotes else etag.strip('"'))
    bench.write(COPY)
    assert bench.run()["status"] == "succeeded"
    assert bench.result.attempt == 1


def test_a_redriven_job_does_not_replace_another_result(bench: Any) -> None:
    other_result(bench)
    bench.change(replace_etag="0" * 32)
    bench.write(COPY)
    assert bench.run()["status"] == "lost"
    assert bench.result.attempt == 9


def test_a_commit_whose_answer_was_lost_is_recognised(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first PUT arrives, its answer does not; botocore tries again and gets a 412."""
    http = bench.s3._endpoint.http_session
    send = http.send
    lost: list[int] = []

    def send_and_lose(request: Any) -> Any:
        response = send(request)
        if "/results/" in request.url and not lost:
            lost.append(response.status_code)
            response.status_code = 500
        return response

    monkeypatch.setattr(http, "send", send_and_lose)
    bench.write(COPY)
    assert bench.run()["status"] == "succeeded"
    assert lost == [200]
    assert bench.result.nonce == bench.gateway.holder


# ------------------------------------------------------------------ outputs


def test_sub_folders_filters_and_two_destinations(bench: Any) -> None:
    bucket = bench.job.outputs[0]["bucket"]
    bench.change(
        outputs=[
            {"bucket": bucket, "prefix": "", "suffix": [".txt"], "filter": []},
            {"bucket": bucket, "prefix": "two/x", "suffix": [".txt", ".csv"], "filter": ["sub/"]},
        ]
    )
    bench.write(
        "cd $TMP_OUTPUT_DIR; mkdir sub; for f in a.txt sub/b.txt sub/c.csv d.bin; do :> $f; done"
    )
    assert bench.run()["files"] == 4
    assert sorted(bench.outputs) == ["a.txt", "sub/b.txt", "two/x/sub/b.txt", "two/x/sub/c.csv"]


def test_a_large_output_is_uploaded_in_parts(bench: Any) -> None:
    bench.write("head -c 9000000 /dev/zero > $TMP_OUTPUT_DIR/big")
    assert bench.run()["status"] == "succeeded"
    file = bench.result.files[0]
    assert file["size"] == 9_000_000
    assert file["sha256"] == hashlib.sha256(bytes(9_000_000)).hexdigest()
    head = bench.s3.head_object(Bucket=file["bucket"], Key=file["key"])
    assert head["ContentLength"] == 9_000_000
    assert head["Metadata"]["orchgpu-job"] == bench.job.job_id


def test_the_folder_is_removed_whatever_the_script_did_to_it(bench: Any) -> None:
    bench.write(
        'cd "$HOME"; mkdir -p a/b; touch a/b/c; chmod 000 a/b a; mkfifo "$TMP_OUTPUT_DIR/pipe"'
    )
    assert bench.run()["files"] == 0


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("true", "no output was written"),
        ("touch $TMP_OUTPUT_DIR/a.txt", "1 file matched no output: a.txt; nothing was stored"),
        (
            "cd $TMP_OUTPUT_DIR; touch a.csv 1 2 3 4 5 6 7",
            "7 files matched no output: 1, 2, 3, 4, 5 and 2 more",
        ),
        ("touch $TMP_OUTPUT_DIR/a.csv", None),
    ],
)
def test_the_notes_of_a_success_name_files_that_were_not_stored(
    bench: Any, script: str, note: str | None
) -> None:
    bench.change(outputs=[{**bench.job.outputs[0], "suffix": [".csv"]}])
    bench.write(f"#!/bin/sh\n{script}\n")
    assert bench.run()["status"] == "succeeded"
    assert bench.result.notes == ([] if note is None else [note])


def test_folders_too_deep_for_a_key_are_an_output_error_and_removed(bench: Any) -> None:
    bench.write(
        "python3 - <<'END'\nimport os\nos.chdir(os.environ['TMP_OUTPUT_DIR'])\n"
        "for _ in range(2000):\n    os.mkdir('deep')\n    os.chdir('deep')\nEND"
    )
    assert bench.run()["reason"] == "OUTPUT_ERROR"
    assert "nested too deeply" in bench.report.detail
