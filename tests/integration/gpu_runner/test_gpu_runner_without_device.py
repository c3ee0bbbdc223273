"""Attempts without a device: claimed by an object, which only one start can store."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace

import pytest

from contract import keys
from contract.claim import Claim
from contract.result import Result
from lambda_functions.gpu_runner import claims
from tests.integration.gpu_runner.conftest import Bench

COPY = '#!/bin/sh\nenv > "$TMP_OUTPUT_DIR/env"\ncp "$INPUT_FILE_PATH" "$TMP_OUTPUT_DIR/copy"\n'


@pytest.fixture
def plain(bench: Bench) -> Bench:
    bench.with_device = False
    bench.change(fence=0)
    bench.write(COPY)
    return bench


def test_it_runs_without_any_host_and_commits_its_result(plain: Bench) -> None:
    assert plain.run()["status"] == "succeeded"
    assert plain.outputs["res/copy"] == b"hello"
    assert b"ORCHGPU_CONNECTION" not in plain.outputs["res/env"]
    assert plain.result is not None
    assert (plain.result.state, plain.result.nonce, plain.result.device) == (
        "SUCCEEDED",
        "start-1",
        {},
    )
    assert plain.gateway.heard == []
    claim = plain.claim
    assert claim is not None
    assert claim.request == "start-1"
    assert claim.claimed_at_s < claim.ends_at_s <= claim.claimed_at_s + plain.timeout_s


def test_a_failure_leaves_a_report(plain: Bench) -> None:
    plain.write("#!/bin/sh\necho why >&2\nexit 3\n")
    assert plain.run()["status"] == "failed"
    report = plain.report
    assert report is not None
    assert (report.reason, report.exit_code, report.nonce) == ("EXIT_NONZERO", 3, "start-1")
    assert "why" in report.log_tail
    assert plain.result is None


def test_a_script_at_the_cap_of_its_cost_is_stopped(plain: Bench) -> None:
    cost = {"paid_usd": 0.5, "usd_per_s": 0.25, "since_s": time.time(), "cap_usd": 0.75}
    plain.change(cost=cost)
    plain.write("#!/bin/sh\necho began\nexec sleep 60\n")
    assert plain.run()["reason"] == "MAX_COST"
    report = plain.report
    assert report is not None
    assert (report.reason, report.log_tail) == ("MAX_COST", "began\n")
    assert "the cap of 0.75 USD is reached" in report.detail
    assert plain.result is None


def test_a_second_start_does_nothing(plain: Bench) -> None:
    plain.run()
    first = plain.claim
    plain.write("#!/bin/sh\nexit 1\n")
    plain.request = "start-2"
    assert plain.deliver()["status"] == "duplicate"
    assert (plain.claim, plain.report) == (first, None)


def test_lambdas_retry_of_the_same_event_does_nothing(plain: Bench) -> None:
    """A retry has the same request id: the code of its first run may still have written."""
    plain.run()
    assert plain.deliver()["status"] == "duplicate"


def test_a_start_of_an_attempt_that_was_closed_does_nothing(plain: Bench) -> None:
    closed = Claim(job_id=plain.job.job_id, attempt=1, request="", claimed_at_s=1.0, ends_at_s=1.0)
    plain.s3.put_object(
        Bucket=plain.job.intermediate_bucket,
        Key=keys.claim_key(plain.job.job_id, 1),
        Body=closed.to_json(),
    )
    assert plain.run()["status"] == "duplicate"
    assert plain.outputs == {}


def test_of_two_starts_at_once_one_runs(plain: Bench) -> None:
    plain.stage()
    answers: list[object] = []
    other = replace(plain, request="start-2")
    threads = [
        threading.Thread(target=lambda b=bench: answers.append(b.deliver()["status"]))
        for bench in (plain, other)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(map(str, answers)) == ["duplicate", "succeeded"]


def test_a_cancel_ends_the_code(plain: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CANCEL_LOOK_S", 0.05)
    plain.write("#!/bin/sh\nsleep 60\n")
    plain.s3.put_object(
        Bucket=plain.job.intermediate_bucket,
        Key=keys.result_key(plain.job.job_id),
        Body=_cancelled(plain),
    )
    begun_s = time.monotonic()
    answer = plain.run()
    assert (answer["status"], answer["reason"]) == ("failed", "CANCELLED_BY_USER")
    assert time.monotonic() - begun_s < 30  # not the script's minute
    assert plain.outputs == {}


def test_the_failure_that_a_redrive_replaces_is_no_cancel(
    plain: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "CANCEL_LOOK_S", 0.05)
    plain.write("#!/bin/sh\nsleep 0.4\ntouch $TMP_OUTPUT_DIR/done\n")
    put = plain.s3.put_object(
        Bucket=plain.job.intermediate_bucket,
        Key=keys.result_key(plain.job.job_id),
        Body=_cancelled(plain),
    )
    plain.change(replace_etag=put["ETag"].strip('"'))
    assert plain.run()["status"] == "succeeded"


def _cancelled(bench: Bench) -> bytes:
    result = Result(
        job_id=bench.job.job_id,
        state="CANCELLED",
        reason="CANCELLED_BY_USER",
        attempt=1,
        nonce="",
        exit_code=None,
        files=[],
        times={},
        log_tail=json.dumps(""),
    )
    return result.to_json()
