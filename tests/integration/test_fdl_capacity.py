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


def test_a_request_that_fits_no_known_device_gives_a_warning(programs: Any) -> None:
    address = programs.ssgmd().wait_ready()["socket"]
    (note,) = capacity_notes(parse(TEXT), address)
    assert note.text("f").startswith(
        "f:5:5: warning: functions.aws[1].gpu: no known device could do this: "
    )
    assert capacity_notes(parse(TEXT.split("  - lambda: {name: huge")[0]), address) == ()


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
    assert f"the scheduler {address} did not check this request: " in note.message


def test_without_a_scheduler_there_is_no_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("ORCHGPU_SCHEDULER", "ORCHGPU_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("orchgpu.cli.scheduler.ANSWER_WITHIN_S", 0.2)
    assert capacity_notes(parse(TEXT), None) == ()
    with pytest.raises(AppError) as refused:
        capacity_notes(parse(TEXT), "127.0.0.1:9")
    assert refused.value.code in (ErrorCode.UNAVAILABLE, ErrorCode.TIMEOUT)
