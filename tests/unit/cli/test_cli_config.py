"""Settings and their sources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchgpu.local.home import Home
from orchgpu.local.stack import StackRecord, keep_stack
from tests.commandline import run


def shown(
    capsys: pytest.CaptureFixture[str], *arguments: str
) -> dict[str, tuple[str | None, str, str]]:
    assert run(arguments) == 0
    told = json.loads(capsys.readouterr().out)["settings"]
    return {one["name"]: (one["value"], one["source"], one["problem"]) for one in told}


@pytest.fixture(autouse=True)
def _nobodys_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "AWS_ENDPOINT_URL",
        "LOCALSTACK_HOST",
        "ORCHGPU_HOME",
        "ORCHGPU_SCHEDULER",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
        "AWS_PROFILE",
        "AWS_DEFAULT_PROFILE",
        "NO_COLOR",
    ):
        monkeypatch.setenv(name, "")  # --home sets it: what it was comes back at the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAVERYSECRET")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "moresecret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.chdir(tmp_path)


def test_every_setting_names_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = shown(capsys, "config", "show", "--json")
    assert found["home"] == (str(tmp_path / ".orchgpu"), "default", "")
    assert found["s3 endpoint"] == ("AWS", "AWS", "")
    assert found["credentials"][:2] == ("…CRET", "env")
    assert "orchgpu up" in found["scheduler"][2]
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("ORCHGPU_SCHEDULER", "10.0.0.7:4700")
    monkeypatch.setenv("ORCHGPU_SCHEDULER_KEY", "ops.SECRETSECRET")
    found = shown(capsys, "--home", str(tmp_path / "h"), "config", "show", "--json")
    assert found["home"] == (str(tmp_path / "h"), "--home", "")
    assert found["sqs endpoint"] == ("http://127.0.0.1:4566", "AWS_ENDPOINT_URL", "")
    assert found["region"] == ("eu-west-1", "AWS_REGION", "")
    assert found["scheduler"] == ("10.0.0.7:4700", "ORCHGPU_SCHEDULER", "")
    assert found["scheduler key"] == ("set", "ORCHGPU_SCHEDULER_KEY", "")
    assert "SECRET" not in str(found)


def test_the_stack_in_use_is_a_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_stack(Home(tmp_path / ".orchgpu"), StackRecord(name="lab", account="1", region="r-1"))
    found = shown(capsys, "config", "show", "--json")
    assert found["stack"] == ("lab (1, r-1)", "its home", "")
    assert found["region"] == ("r-1", "the stack in use", "")
    assert found["scheduler"][1] == "the stack"
    assert "needs a key" in found["scheduler"][2]


def test_a_wrong_setting_is_reported_beside_its_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "nonsense")
    monkeypatch.setenv("ORCHGPU_TIME_SCALE", "-1")
    found = shown(capsys, "config", "show", "--json", "--scheduler", "x")
    assert found["s3 endpoint"][0] is None
    assert "is not a valid endpoint" in found["s3 endpoint"][2]
    assert found["sqs endpoint"][2] == ""
    assert "is not an address" in found["scheduler"][2]
    assert "must lie in" in found["time scale"][2]


def test_an_unknown_provider_is_reported_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ORCHGPU_PROVIDER", "asw")
    value, source, problem = shown(capsys, "config", "show", "--json")["provider"]
    assert (value, source) == (None, "ORCHGPU_PROVIDER")
    assert "did you mean 'aws'?" in problem
    assert run(["ls"]) == 2
