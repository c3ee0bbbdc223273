"""A handler's process that stays for the next call, as the runner starts and ends it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lambda_functions.gpu_runner import on_host
from lambda_functions.gpu_runner.on_host import HostContext
from lambda_functions.gpu_runner.script import reaper, resident
from lambda_functions.gpu_runner.script.process import (
    Ending,
    Outcome,
    Signals,
    handler_command,
    run,
)
from lambda_functions.gpu_runner.script.resident import Kept, Resident
from remote_gpu.client.transport.readiness import readable

MODULE = """
import os, subprocess, sys, tempfile, threading
import orchgpu

def load():
    return {"calls": 0}

@orchgpu.function(input="a/in", output="a/out", load=load)
def work(work, loaded):
    loaded["calls"] += 1
    print(loaded["calls"], os.environ["MINE"], os.getcwd() == os.environ["TMPDIR"]
          == tempfile.gettempdir(), sys.stdin.read() == "")
    if work.input.stem == "fails":
        raise ValueError("as it must")
    if work.input.stem == "starts":
        print(subprocess.Popen(["/bin/sleep", "600"]).pid)
    if work.input.stem == "hangs":
        threading.Event().wait(600)
    if work.input.stem == "parts":
        return parts()

def parts():
    yield "é"
    yield b"x" * 3_000_000
"""
ROOT = Path(resident.__file__).parents[3]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kept]:
    made = Kept()
    for module in (resident, on_host):
        monkeypatch.setattr(module, "KEPT", made)
    yield made
    if (left := made.idle) is not None:
        left.end()


def called(folder: Path, name: str, *, lasts_s: float = 60.0, **more: Any) -> Outcome:
    if not (folder / "work.py").exists():  # another one may read it
        (folder / "work.py").write_text(MODULE)
    own = folder / name
    own.mkdir(parents=True)
    variables = {
        "INPUT_FILE_PATH": str(own / f"{own.name}.txt"),
        "TMP_INPUT_DIR": str(own),
        "TMP_OUTPUT_DIR": str(own),
        "STORAGE_OBJECT_KEY": name,
        "EVENT": "{}",
        "MINE": name,
        "TMPDIR": str(own),
        "PYTHONPATH": str(ROOT),
    }
    return run(
        handler_command(folder, "work.work"),
        variables=variables,
        folder=own,
        deadline_s=time.monotonic() + lasts_s,
        grace_s=0.1,
        **{"kept": resident.KEPT, **more},
    )


def pid_of(kept: Kept) -> int | None:
    return None if kept.idle is None else kept.idle.process.pid


def test_one_process_serves_calls_with_their_own_variables_and_folder(
    kept: Kept, tmp_path: Path
) -> None:
    first = called(tmp_path, "one")
    pid = pid_of(kept)
    second = called(tmp_path, "two")
    assert [first.good, second.good] == [True, True]
    assert first.log_tail == "1 one True True\n"
    assert second.log_tail == "2 two True True\n"
    assert pid is not None
    assert pid_of(kept) == pid
    assert kept.idle is not None
    assert kept.idle.loading_s > 0


def test_one_that_fails_ends_and_the_next_loads_again(kept: Kept, tmp_path: Path) -> None:
    called(tmp_path, "one")
    failed = called(tmp_path, "fails")
    assert (failed.status, pid_of(kept)) == (1, None)
    assert "ValueError: as it must" in failed.log_tail
    assert called(tmp_path, "two").log_tail.startswith("1 two")


def test_one_that_is_called_stays_when_it_raises_and_sends_what_it_yields(
    kept: Kept, tmp_path: Path
) -> None:
    parts: list[bytes] = []
    loaded = called(tmp_path, "one", task="load")
    assert (loaded.status, loaded.log_tail) == (0, "")
    failed = called(tmp_path, "fails", task="call", on_part=parts.append)
    assert (failed.status, failed.answered, parts) == (1, True, [])
    assert failed.log_tail.startswith("1 fails")
    assert "ValueError: as it must" in failed.log_tail
    good = called(tmp_path, "parts", task="call", on_part=parts.append)
    assert (good.good, good.log_tail) == (True, "2 parts True True\n")
    assert b"".join(parts) == "é".encode() + b"x" * 3_000_000


def test_the_parts_of_a_job_are_refused(kept: Kept, tmp_path: Path) -> None:
    assert "returned generator" in called(tmp_path, "parts").log_tail


@pytest.mark.parametrize(
    "sent",
    [
        b"no json\n",
        b"[]\n",
        b'{"part": -1}\n',
        b'{"part": 99999999}\n',
        b"x" * 5000,
        b'{"loading_s": 1}\nmore',
    ],
)
def test_a_process_that_answers_what_ours_does_not_is_not_kept(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, subprocess.Popen(["true"]) as process:
        one = Resident(command=(), process=process, output=-1, calls=ours)
        theirs.sendall(sent)
        assert one.answered() is False
        theirs.close()
        assert one.answered() is False


def test_a_message_in_pieces_is_read_when_it_is_whole() -> None:
    ours, theirs = socket.socketpair()
    parts: list[bytes] = []
    with ours, theirs, subprocess.Popen(["true"]) as process:
        one = Resident(command=(), process=process, output=-1, calls=ours, on_part=parts.append)
        for piece in (b'{"part": 3', b"}\nab", b'c{"part": 1}\nd{"failed": true, '):
            theirs.sendall(piece)
            assert one.answered() is None
        theirs.sendall(b'"loading_s": 2}\n')
        assert (one.answered(), one.failed, one.loading_s) == (True, True, 2.0)
    assert parts == [b"abc", b"d"]


def test_one_that_takes_too_long_is_ended(kept: Kept, tmp_path: Path) -> None:
    called(tmp_path, "one")
    cut = called(tmp_path, "hangs", lasts_s=0.5)
    assert (cut.ending, pid_of(kept)) == (Ending.DEADLINE, None)


def test_one_that_died_between_two_calls_is_replaced(kept: Kept, tmp_path: Path) -> None:
    called(tmp_path, "one")
    left = kept.idle
    assert left is not None
    killed(left)
    assert pid_of(kept) is None
    assert called(tmp_path, "two").log_tail.startswith("1 two")


def test_the_group_of_one_that_ended_is_not_killed_later(kept: Kept, tmp_path: Path) -> None:
    """Its number may be that of another process then."""
    called(tmp_path, "one")
    left = kept.idle
    assert left is not None
    assert left.process.pid in reaper.RUNS._groups
    killed(left)
    assert kept.take(left.command) is None
    assert left.process.pid not in reaper.RUNS._groups


def test_what_it_started_ends_with_it(kept: Kept, tmp_path: Path) -> None:
    started = os.pidfd_open(int(called(tmp_path, "starts").log_tail.split()[-1]))
    try:
        assert kept.idle is not None
        killed(kept.idle)
        assert not readable([started], 0.0)
        called(tmp_path, "two")
        assert readable([started], 10.0)
    finally:
        os.close(started)


def test_calls_side_by_side_have_their_own_process_log_and_notice(
    kept: Kept, tmp_path: Path
) -> None:
    """The end of one spares the other's, and a preempted lease ends both."""
    flags = os.EFD_CLOEXEC | os.EFD_NONBLOCK
    signals = Signals(lost_fd=os.eventfd(0, flags), preempt_fd=os.eventfd(0, flags))
    other = Kept()
    with ThreadPoolExecutor(2) as threads:
        hangs = threads.submit(called, tmp_path, "hangs", signals=signals, task="call")
        for name in ("one", "two"):
            beside = called(tmp_path, name, kept=other, task="call")
            assert beside.log_tail.split()[1] == name
        assert not hangs.done()
        again = threads.submit(
            called, tmp_path, "again/hangs", signals=signals, task="call", kept=other
        )
        os.eventfd_write(signals.preempt_fd, 50)
        assert [one.result().ending for one in (hangs, again)] == [Ending.PREEMPTED] * 2
    assert (kept.idle, other.idle) == (None, None)
    os.close(signals.lost_fd)
    os.close(signals.preempt_fd)


def killed(one: resident.Resident) -> None:
    """Kill its process, and leave it to be reaped."""
    one.process.kill()
    os.waitid(os.P_PID, one.process.pid, os.WEXITED | os.WNOWAIT)


class _Host(contextlib.AbstractContextManager["_Host"]):
    """The host's end of the runner's socket."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def __exit__(self, *_: object) -> None:
        self.ours.close()
        self.theirs.close()


def test_the_runner_serves_orders_while_its_program_stays(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []

    def handled(event: Any, context: HostContext) -> int:
        events.append((event, context.aws_request_id))
        called(tmp_path, event)
        return 0  # a failed attempt is no failed run

    monkeypatch.setattr(on_host, "_handled", handled)
    monkeypatch.setattr(on_host, "_log_like_lambda", lambda _: None)
    with _Host() as host:
        order = {"event": '"fails"', "request": "r2", "ends_at_s": 1.0}
        host.ours.sendall(json.dumps(order).encode() + b"\n")
        with host.theirs.makefile("rb") as orders:
            context = HostContext("r1", 1.0)
            assert on_host._run_several("one", context, host.theirs, orders) == 0
        assert events == [("one", "r1"), ("fails", "r2")]
        (idle,) = host.ours.recv(1000).splitlines()
        assert json.loads(idle)["idle"]["loading_s"] > 0
        assert not os.get_inheritable(host.theirs.fileno())
