"""The findings of `orchgpu doctor`."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from corekit.errors import AppError, ErrorCode
from corekit.ids import HostId
from corekit.values import replace
from gpu_scheduler.model import HostState
from gpu_scheduler.protocol.answers import HostView
from orchgpu.cli.commands.operation.doctor import (
    check_clock,
    check_gateways,
    check_processes,
    checked,
)
from orchgpu.jobs.cloud import _ahead_s
from orchgpu.local.home import ProcessRecord, ProgramState
from tests.commandline import run
from tests.local_systems import system_record


def test_a_check_that_fails_is_a_finding() -> None:
    def fails() -> str:
        raise AppError(ErrorCode.UNAVAILABLE, "nobody there")

    assert checked("x", lambda: "fine").good
    finding = checked("x", fails)
    assert (finding.good, finding.message) == (False, "nobody there")


@pytest.mark.parametrize(("ahead_s", "way"), [(60.0, "behind"), (-60.0, "ahead of")])
def test_a_wrong_clock_is_reported_with_its_direction(ahead_s: float, way: str) -> None:
    with pytest.raises(AppError, match=f"60 s {way} the cloud"):
        check_clock(ahead_s)
    assert "within" in check_clock(1.0)
    assert "not known" in check_clock(None)


@pytest.mark.parametrize(
    ("asked_s", "answered_s", "ahead_s"),
    [(99.2, 100.5, 0.0), (100.9, 130.0, 0.0), (90.0, 95.0, 5.0), (111.0, 112.0, -10.0)],
)
def test_a_slow_answer_is_not_a_wrong_clock(
    asked_s: float, answered_s: float, ahead_s: float
) -> None:
    said = "Thu, 01 Jan 1970 00:01:40 GMT"
    assert _ahead_s(said, asked_s, answered_s) == pytest.approx(ahead_s)
    assert _ahead_s("nonsense", 1.0, 2.0) is None
    assert _ahead_s(None, 1.0, 2.0) is None


def test_every_check_is_made_though_nothing_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("AWS_ENDPOINT_URL", "LOCALSTACK_HOST", "ORCHGPU_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")  # which never goes to AWS
    monkeypatch.setenv("ORCHGPU_SCHEDULER", "127.0.0.1:9")
    monkeypatch.setattr("orchgpu.jobs.scheduler.ANSWER_WITHIN_S", 0.1)
    assert run(["doctor", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert [f["check"] for f in said["findings"]] == ["cloud", "clock", "scheduler"]
    assert not any(f["good"] for f in said["findings"])


def host(name: str, gateway: str | None, state: HostState = HostState.UP) -> HostView:
    return HostView(
        host=HostId(name), state=state, gateway=gateway, incarnation="i", silent_s=0.0, devices=()
    )


def test_an_unreachable_gateway_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # and does not listen
        port, nobodys = server.getsockname()[1], closed.getsockname()[1]
        hosts = [host("a", f"127.0.0.1:{port}"), host("watched", None)]
        assert check_gateways(hosts, near=True) == "1 of 1 can be reached"
        hosts += [host("b", f"127.0.0.1:{nobodys}"), host("gone", "x:1", HostState.LOST)]
        with pytest.raises(AppError, match=rf"1 of 2 can be reached; not: b \(127.0.0.1:{nobodys}"):
            check_gateways(hosts, near=True)
        assert "from here; functions reach them" in check_gateways(hosts, near=False)


def test_a_canary_needs_one_function() -> None:
    assert run(["doctor", "--canary", "x"]) == 2


def test_a_dead_program_is_named_with_its_health_and_log() -> None:
    process = ProcessRecord(name="gpu-b", pid=1, birth="no such", address=None, log="/x/gpu-b.log")
    gone = replace(process, name="gpu-c", restarts=1, state=ProgramState.GIVEN_UP.value)
    system = system_record(processes=(process,))
    with pytest.raises(AppError) as error:
        check_processes(system)
    message = "not healthy: gpu-b (unhealthy, 0 restarts; log: /x/gpu-b.log)"
    assert error.value.message == message
    with pytest.raises(AppError, match=r"gpu-c \(given_up, 1 restart; .*`orchgpu down`"):
        check_processes(replace(system, processes=(process, gone)))
