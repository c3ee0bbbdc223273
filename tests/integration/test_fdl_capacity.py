"""What a real scheduler says of a definition's requests, before anything is deployed."""

from __future__ import annotations

import json
import socketserver
import threading
from pathlib import Path
from typing import Any

import pytest

from corekit.errors import AppError, ErrorCode
from fdl.diagnostics import Severity
from fdl.parse import parse
from orchgpu.cli.definition.capacity import capacity_notes

TEXT = """\
functions:
  aws:
  - lambda: {name: plain, input: [{path: one}]}
  - lambda: {name: huge, init_script: a, input: [{path: two}]}
    gpu: {count: 4, memory: 80GiB, kinds: [cuda], models: [A100]}
"""
HUGE = "{count: 4, memory: 80GiB, kinds: [cuda], models: [A100]}"


def test_a_request_that_fits_no_known_device_is_an_error(programs: Any) -> None:
    address = declared(programs, "{kind: cuda, model: T4, memory_mib: 16GiB}")
    (note,) = capacity_notes(parse(TEXT), address)
    assert note.text("f") == (
        "f:5:5: error: functions.aws[1].gpu: no known device could do this: no known capacity can"
        " ever serve 4 × cuda A100 with 81920 MiB: only T4 is known, the largest fit is 1 × cuda"
        " with 16384 MiB, 100 % (no device has registered yet)"
    )
    assert capacity_notes(parse(TEXT.split("  - lambda: {name: huge")[0]), address) == ()
    assert capacity_notes(parse(TEXT.replace(HUGE, "{memory: 16GiB}")), address) == ()


@pytest.mark.parametrize(
    ("gpu", "short"),
    [
        ("{memory: 16385}", "the largest such device has 16384 MiB"),
        ("{count: 2, placement: same_host}", "only 1 such device exists"),
        ("{kinds: [vpu]}", "only cuda is known"),
        ("{middleware: rcuda, min_driver: 550}", "driver unknown is the newest"),
    ],
)
def test_what_is_short_is_named(programs: Any, gpu: str, short: str) -> None:
    address = declared(programs, "{kind: cuda, model: T4, memory_mib: 16GiB}")
    (note,) = capacity_notes(parse(TEXT.replace(HUGE, gpu)), address)
    assert note.severity is Severity.ERROR
    assert f": {short}, the largest fit is" in note.message


@pytest.mark.parametrize(
    ("devices", "severity", "ends"),
    [
        ("{kind: cpu, model: x, memory_mib: 1GiB}", Severity.WARNING, "(on_unavailable: cpu)"),
        (
            "{kind: cuda, model: T4, memory_mib: 1GiB}",
            Severity.ERROR,
            "(no device has registered yet)",
        ),
    ],
)
def test_a_fallback_to_a_cpu_is_checked_too(
    programs: Any, devices: str, severity: Severity, ends: str
) -> None:
    text = TEXT.replace(HUGE, "{models: [A100], memory: 512, on_unavailable: cpu}")
    (note,) = capacity_notes(parse(text), declared(programs, devices))
    assert note.severity is severity
    assert note.message.endswith(ends)
    assert ("nor its fallback: " in note.message) is (severity is Severity.ERROR)


def test_a_wait_that_the_scheduler_shortens_is_named(programs: Any) -> None:
    address = declared(programs, "{kind: cuda, model: T4, memory_mib: 16GiB}")
    job = "    job: {advance: %s}\n"
    text = TEXT.replace(HUGE, "{memory: 16GiB}") + job
    (note,) = capacity_notes(parse(text % 90), address)
    assert (note.severity, note.path) == (Severity.WARNING, "functions.aws[1].job.advance")
    assert note.message == (
        "the scheduler lets functions wait for 30 s at most: `ssgm set advance_s_max 90`, or ask"
        " for less"
    )
    for wait in ("auto", "30", "off"):
        assert capacity_notes(parse(text % wait), address) == ()


def declared(programs: Any, *devices: str) -> str:
    """The address of a scheduler with this declared capacity."""
    file = programs.inventory("declared.yaml", *(line.strip("{}") for line in devices))
    state, listen = str(programs.folder / "state"), ("--listen", "127.0.0.1:0")
    daemon = programs.start(
        "gpu_scheduler.daemon", "--state", state, *listen, "--capacity", str(file)
    )
    address: str = daemon.wait_ready()["socket"]
    return address


class Newer(socketserver.StreamRequestHandler):
    """A scheduler that welcomes everybody and answers in words that nobody here knows."""

    def handle(self) -> None:
        for line in self.rfile:
            asked = json.loads(line)
            said = {"epoch": 1, "now_s": 0.0} if asked["op"] == "hello" else {"outcome": "ODD"}
            self.wfile.write(json.dumps({"id": asked["id"], "ok": said}).encode() + b"\n")


def test_an_unexpected_answer_of_the_scheduler_is_ignored() -> None:
    with socketserver.TCPServer(("127.0.0.1", 0), Newer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        address = "{}:{}".format(*server.server_address)
        (note,) = capacity_notes(parse(TEXT), address)
        server.shutdown()
    assert note.severity is Severity.WARNING
    assert "not checked whether a device can hold this request: " in note.message


def test_without_a_scheduler_there_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("ORCHGPU_SCHEDULER", "ORCHGPU_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("orchgpu.jobs.scheduler.ANSWER_WITHIN_S", 0.2)
    (note,) = capacity_notes(parse(TEXT), None)
    assert note.severity is Severity.WARNING
    assert (
        "not checked whether a device can hold this request: no scheduler is known" in note.message
    )
    monkeypatch.setenv("ORCHGPU_SCHEDULER", "127.0.0.1:9")
    (note,) = capacity_notes(parse(TEXT), None)
    assert note.severity is Severity.WARNING
    assert "not checked whether a device can hold this request: " in note.message
    assert capacity_notes(parse(TEXT.split("  - lambda: {name: huge")[0]), None) == ()
    with pytest.raises(AppError) as refused:
        capacity_notes(parse(TEXT), "127.0.0.1:9")
    assert refused.value.code in (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)


def test_the_address_that_functions_reach_need_not_answer_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("orchgpu.jobs.scheduler.ANSWER_WITHIN_S", 0.2)
    (note,) = capacity_notes(parse(TEXT), "127.0.0.1:9", elsewhere=True)
    assert note.severity is Severity.WARNING
