"""Secrets of a real attempt: in the script's environment, and in nothing that the runner writes."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

from contract.states import Reason
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.plain import run_plain
from lambda_functions.gpu_runner.script.steps import Step
from lambda_functions.gpu_runner.secrets.stores import Stores
from lambda_functions.gpu_runner.secrets.values import SecretValues, parsed
from lambda_functions.gpu_runner.storage.outputs import Destination

VALUE = "correct-horse\nbattery-staple"
SHOW = 'printf "%s" "$TOKEN" > "$TMP_OUTPUT_DIR/seen.txt"; echo "it is $TOKEN"; env'


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(VALUE + "\n")
    return path


def written(bench: Any, capsys: pytest.CaptureFixture[str]) -> str:
    """Everything that a run leaves for people and programs, other than its outputs."""
    records = [asdict(one) for one in (bench.result, bench.report) if one is not None]
    shown = capsys.readouterr()
    return json.dumps(records) + shown.out + shown.err


def hidden(text: str) -> bool:
    return not any(line in text for line in VALUE.splitlines())


def test_the_script_has_the_value_and_its_log_does_not(
    bench: Any, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.secrets = {"": {"TOKEN": f"file:{secret}"}}
    bench.write(SHOW)
    assert bench.run()["status"] == "succeeded"
    assert bench.outputs == {"res/seen.txt": VALUE.encode()}
    assert "it is ***\n***" in bench.result.log_tail
    assert hidden(written(bench, capsys))


def test_a_failure_does_not_show_it(
    bench: Any, secret: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.secrets = {"": {"TOKEN": f"file:{secret}"}}
    bench.write('echo "$TOKEN" >&2; ln -s /none "$TMP_OUTPUT_DIR/battery-staple"')
    answer = bench.run()
    assert answer["reason"] == "OUTPUT_ERROR"
    assert "output '***' is a broken link" in bench.report.detail
    assert hidden(written(bench, capsys) + json.dumps(answer))


def test_notes_do_not_show_it(bench: Any, secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench.secrets = {"": {"TOKEN": f"file:{secret}"}}
    bench.job.outputs[0]["suffix"] = [".out"]
    bench.write('echo > "$TMP_OUTPUT_DIR/battery-staple.txt"')
    assert bench.run()["status"] == "succeeded"
    assert bench.result.notes == ["1 file matched no output: ***.txt; nothing was stored"]
    assert hidden(written(bench, capsys))


def test_a_missing_secret_fails_the_attempt_before_anything_is_fetched(bench: Any) -> None:
    bench.secrets = {"": {"TOKEN": "file:/none/token"}}
    bench.write(SHOW)
    assert bench.run()["reason"] == "SECRET_ERROR"
    assert bench.report.reason == Reason.SECRET_ERROR
    assert bench.report.detail == (
        "secret TOKEN (file:/none/token) does not exist where the function runs: restore it, or"
        " correct `secrets:`"
    )
    assert bench.gateway.heard == ["open", "close"]
    assert bench.outputs == {}


def test_a_declared_variable_and_a_secret_are_both_there(bench: Any, secret: Path) -> None:
    bench.change(variables={"MODE": "fast"})
    bench.secrets = {"": {"TOKEN": f"file:{secret}"}}
    bench.write('echo "$MODE"; [ -n "$TOKEN" ] && echo yes > "$TMP_OUTPUT_DIR/a"')
    assert bench.run()["status"] == "succeeded"
    assert bench.result.log_tail == "fast\n"


def test_each_step_of_a_group_has_its_own(bench: Any, secret: Path, tmp_path: Path) -> None:
    for name, text in (("one", 'echo "one $TOKEN" > "$TMP_OUTPUT_DIR/x"'), ("two", SHOW)):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    inner = {"bucket": "inner", "prefix": "x"}
    bench.group = (
        Step(name="one", script=tmp_path / "one", outputs=(Destination.of(inner),), variables={}),
        Step(
            name="two",
            script=tmp_path / "two",
            inputs=(Destination.of(inner),),
            outputs=(Destination.of(bench.job.outputs[0]),),
            variables={},
        ),
    )
    bench.secrets = {"two": {"TOKEN": f"file:{secret}"}}
    assert bench.run()["status"] == "succeeded"
    assert bench.outputs == {"res/seen.txt": VALUE.encode()}


def test_a_plain_function_has_them_too(bench: Any, secret: Path) -> None:
    bucket = bench.job.input_bucket
    bench.s3.put_object(Bucket=bucket, Key="a.txt", Body=b"x")
    bench.secrets = {"": {"TOKEN": f"file:{secret}"}}
    bench.write('printf "%s" "$TOKEN" > "$TMP_OUTPUT_DIR/seen"')
    settings = replace(bench.settings(), outputs=tuple(bench.job.outputs))
    record = {"s3": {"bucket": {"name": bucket}, "object": {"key": "a.txt"}}}
    limits = TimeLimits.within(30)
    answer = run_plain(bench.s3, settings, limits, (bucket, "a.txt"), record, bench.values)
    assert answer["status"] == "succeeded"
    assert bench.outputs == {"res/seen": VALUE.encode()}


def test_a_value_of_a_store(bench: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    client = boto3.client("ssm")
    client.put_parameter(Name="/runner/token", Value=VALUE, Type="SecureString")
    client.close()
    bench.secrets = {"": {"TOKEN": "ssm:/runner/token"}}
    bench.values = SecretValues(Stores(parsed(bench.secrets)).read)
    bench.write(SHOW)
    assert bench.run()["status"] == "succeeded"
    assert bench.outputs == {"res/seen.txt": VALUE.encode()}
    assert hidden(bench.result.log_tail)
