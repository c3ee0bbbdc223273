"""The runner's entry on a host, as a process, and the user's code behind the host's command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox import Workspace
from lambda_functions.gpu_runner.script import confined, container, steps
from lambda_functions.gpu_runner.secrets.values import Secrets
from lambda_functions.gpu_runner.settings import read_settings

REQUEST = "00000000-0000-4000-8000-000000000000"
#: Stands for the host's: adds a variable, and is restricted to nothing.
COMMAND = """
import json, os, sys
given = json.load(open(int(sys.argv[1])))
os.execve(sys.argv[2], sys.argv[2:], {**given, "SEEN": "%d" % len(os.environ)})
"""


def run(order: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "lambda_functions.gpu_runner.on_host"],
        input=order if isinstance(order, str) else json.dumps(order),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
    )


def order(tmp_path: Path, event: object, **changes: Any) -> dict[str, Any]:
    return {
        "event": json.dumps(event),
        "environment": {"ORCHGPU_MODE": "job", "AWS_REGION": "us-east-1", "TMPDIR": str(tmp_path)},
        "confine": [],
        "request": REQUEST,
        "function": "f",
        "memory_mib": 128,
        "ends_at_s": time.monotonic() + 60,
        **changes,
    }


def test_an_event_is_handled_as_in_lambda(tmp_path: Path) -> None:
    done = run(order(tmp_path, {"Event": "s3:TestEvent"}))
    assert (done.returncode, done.stderr) == (0, "")
    start, end, report = done.stdout.splitlines()
    assert start.startswith(f"START RequestId: {REQUEST} ")
    assert end == f"END RequestId: {REQUEST}"
    assert report.startswith(f"REPORT RequestId: {REQUEST}\tDuration: ")


def test_what_the_handler_raises_is_shown(tmp_path: Path) -> None:
    done = run(order(tmp_path, {"no": "records"}))
    assert done.returncode == 1
    assert "RunnerError: not an S3 event" in done.stdout


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"event": "no JSON"}'])
def test_anything_but_an_order_is_refused(text: str) -> None:
    done = run(text)
    assert done.returncode == 2
    assert "not the order of a run" in done.stderr


def test_the_users_command_gets_its_variables_behind_the_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confined, "COMMAND", [sys.executable, "-I", "-S", "-c", COMMAND])
    variables = {"LD_PRELOAD": "/none.so", "MINE": "ü"}
    with confined.prepared(["/usr/bin/env"], variables) as start:
        found = subprocess.run(
            start.command,
            env=start.environment,
            pass_fds=start.descriptors,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
    assert {"LD_PRELOAD=/none.so", "MINE=ü"} <= set(found)
    (seen,) = [line for line in found if line.startswith("SEEN=")]
    assert int(seen.removeprefix("SEEN=")) <= 1  # LC_CTYPE, which Python itself sets


def test_in_lambda_the_command_is_started_as_it_is() -> None:
    with confined.prepared(["/bin/true"], {"A": "1"}) as start:
        assert start == confined.Start(command=["/bin/true"], environment={"A": "1"})


@pytest.mark.parametrize(
    ("in_container", "reason"), [(True, Reason.OUT_OF_MEMORY), (False, Reason.KILLED)]
)
def test_a_container_that_is_killed_had_too_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_container: bool, reason: Reason
) -> None:
    """`contained` ends so when its host reports that; a script may be killed for any reason."""
    killed = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(confined, "COMMAND", [sys.executable, "-I", "-S", "-c", killed])
    step = steps.Step(
        name="", script=Path("/bin/true"), folder=tmp_path, container=in_container, outputs=()
    )
    limits = TimeLimits.within(60.0)
    with Workspace(tmp_path) as workspace:
        file = tmp_path / "input"
        file.touch()
        item = steps.Item(step=step, file=file, key="input", event={}, workspace=workspace)
        outcome = steps.run_step(item, limits, {}, Secrets())
    with pytest.raises(AttemptFailed) as failed:
        steps.check_outcome(outcome, limits)
    assert failed.value.reason is reason


def test_the_hosts_socket_is_that_of_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "COMMAND", [])
    monkeypatch.setattr(confined, "DESCRIPTORS", [])
    without = read_settings({}, container.descriptor())
    assert not without.steps(())[0].container
    before = dict(os.environ)
    container.use(5)
    settings = read_settings({}, container.descriptor())
    assert settings.container == 5
    assert settings.steps(())[0].container
    assert confined.DESCRIPTORS == [5]
    assert os.environ == before  # one place for it: no process inherits its number
