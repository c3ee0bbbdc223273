"""The live check against the embedded cloud: it measures, and nothing of it is left, ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from tests.embedded_cloud import cloud_in
from tests.integration.conftest import until

ROOT = Path(__file__).resolve().parents[2]
FAST = ("--yes", "--wait", "60", "--interval", "0.5")


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "cloud").mkdir()
    with cloud_in(tmp_path / "cloud") as address:
        yield f"http://{address.netloc}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    return made


@contextmanager
def client(service: str, endpoint: str) -> Iterator[Any]:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    config = Config(s3={"addressing_style": "path"})
    made = boto3.client(
        service, endpoint_url=endpoint, region_name="us-east-1", config=config, **keys
    )
    with closing(made):
        yield made


def left(endpoint: str) -> list[str]:
    """Everything that an account has."""
    with client("s3", endpoint) as s3, client("sqs", endpoint) as sqs:
        names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        names += sqs.list_queues().get("QueueUrls", [])
    with client("lambda", endpoint) as functions:
        return names + [f["FunctionName"] for f in functions.list_functions()["Functions"]]


def started(endpoint: str, folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint, "ORCHGPU_HOME": str(folder / "home")}
    return subprocess.Popen(
        [sys.executable, "-m", "tools.aws_live_check", "--folder", str(folder), *arguments],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def run_of(folder: Path) -> dict[str, Any]:
    """The run on disk; {} before it begins."""
    files = list(folder.glob("orchgpu-live-*.json"))
    found: dict[str, Any] = json.loads(files[0].read_text()) if files else {}
    return found


def test_it_measures_and_leaves_nothing(endpoint: str, folder: Path) -> None:
    output, _ = (check := started(endpoint, folder, *FAST)).communicate(timeout=240)
    run = run_of(folder)
    assert check.returncode == 0, output
    assert "costs: at most about" in output
    assert (run["error"], run["left"]) == ("", [])
    assert run["measures"]["uploads"] >= 3
    assert run["measures"]["lost_uploads"] == 0
    assert run["measures"]["deploy_s"] > 0
    assert any("function" in sentence for sentence, _ in run["deploy_steps"])
    assert {"Lambda concurrency", "buckets"} <= {f["check"] for f in run["doctor"]}
    [page] = folder.glob("*.md")
    assert "Nothing is left." in page.read_text()
    assert left(endpoint) == []


def test_without_consent_nothing_is_made(endpoint: str, folder: Path) -> None:
    output, _ = (check := started(endpoint, folder)).communicate("n\n", timeout=60)
    assert check.returncode == 0, output
    assert "Continue? [y/N]" in output
    assert left(endpoint) == []
    assert not list(folder.iterdir())


def deployed(folder: Path, check: subprocess.Popen[str]) -> str:
    """Wait for the first upload; the run's id."""

    def uploaded() -> bool:
        assert check.poll() is None, check.communicate()[0]
        return bool(run_of(folder).get("probes"))

    until("an upload", uploaded, within_s=180)
    return str(run_of(folder)["run"])


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.soak)]
)
def test_an_interrupted_run_cleans_up(endpoint: str, folder: Path, number: int) -> None:
    check = started(endpoint, folder, "--yes", "--wait", "600", "--interval", "100")
    deployed(folder, check)
    check.send_signal(number)
    output, _ = check.communicate(timeout=120)
    assert check.returncode == 130, output
    run = run_of(folder)
    assert (run["error"], run["left"]) == ("interrupted", []), output
    assert left(endpoint) == [], output


def test_a_killed_run_is_cleaned_up_by_its_id(endpoint: str, folder: Path) -> None:
    with client("s3", endpoint) as s3:
        s3.create_bucket(Bucket="orchgpu-live-notours-in")
    check = started(endpoint, folder, "--yes", "--wait", "600", "--interval", "100")
    run = deployed(folder, check)
    os.killpg(check.pid, signal.SIGKILL)
    check.communicate()
    assert len(left(endpoint)) > 1
    output, _ = (again := started(endpoint, folder, "--clean-up", run)).communicate(timeout=120)
    assert again.returncode == 0, output
    assert left(endpoint) == ["orchgpu-live-notours-in"]
    output, _ = (again := started(endpoint, folder, "--clean-up", run)).communicate(timeout=120)
    assert "nothing is left" in output
    output, _ = (wrong := started(endpoint, folder, "--clean-up", "")).communicate(timeout=60)
    assert wrong.returncode == 2, output


def test_uploads_that_never_arrive_are_a_failure_that_is_cleaned_up(
    endpoint: str, folder: Path
) -> None:
    output, _ = (
        check := started(endpoint, folder, "--yes", "--wait", "0", "--interval", "1")
    ).communicate(timeout=120)
    assert check.returncode == 1, output
    assert "in a row" in run_of(folder)["error"]
    assert left(endpoint) == []
