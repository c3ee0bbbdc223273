"""An endpoint's calls, over its sockets, with a run that is a function of the test."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Semaphore, Thread

import pytest

from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox import Workspace, write_new
from lambda_functions.gpu_runner.script import endpoint
from lambda_functions.gpu_runner.script.endpoint import Endpoint, Terms
from lambda_functions.gpu_runner.script.process import Ending, Outcome, Signals
from lambda_functions.gpu_runner.script.resident import Kept, Task
from lambda_functions.gpu_runner.script.steps import Item, Run, Step
from remote_gpu.wire import calls
from remote_gpu.wire.calls import Message
from remote_gpu.wire.channel import Channel

UNLOADABLE = Outcome(
    ending=Ending.OWN, status=1, started_s=1.0, ended_s=2.0, log_tail="no module\n"
)


@dataclass
class Served:
    """An endpoint in a thread, and the host's socket."""

    host: socket.socket
    signals: Signals
    thread: Thread | None = None
    run: Run | None = None
    tasks: list[Task] = field(default_factory=list)
    holders: set[int] = field(default_factory=set)  #: of processes
    loads_max: int = 16  #: of them that can load
    waiting: Semaphore = field(default_factory=lambda: Semaphore(0))  #: of calls that wait
    go: Event = field(default_factory=Event)  #: for those
    no_load: Event = field(default_factory=Event)  #: a load waits for `go`, too
    callers: ExitStack = field(default_factory=ExitStack)

    def caller(self) -> Channel:
        channel = self.connected()
        ready = calls.receive(channel)
        assert ready == Message(kind="ready")
        return channel

    def connected(self) -> Channel:
        ours, theirs = socket.socketpair()
        self.callers.enter_context(ours).settimeout(20)
        with theirs:
            socket.send_fds(self.host, [b"call"], [theirs.fileno()])
        return Channel(ours, calls.CALLS)

    def ended(self) -> Run:
        assert self.thread is not None
        self.thread.join(20)
        assert self.run is not None
        return self.run


@pytest.fixture(autouse=True)
def _kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "KEPT", Kept())


@contextmanager
def serving(
    folder: Path,
    *,
    idle_s: float = 20.0,
    call_s: float = 5.0,
    lasts_s: float = 60.0,
    calls_max: int = 1,
) -> Iterator[Served]:
    host, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    signals = Signals(lost_fd=os.eventfd(0), preempt_fd=os.eventfd(0))
    limits = TimeLimits.within(lasts_s)
    served = Served(host, signals)
    with host, theirs, Workspace(folder) as workspace:
        item = Item(step=Step(name=""), file=workspace.input, key="", event={}, workspace=workspace)
        terms = Terms(idle_s=idle_s, call_s=call_s, calls_max=calls_max)
        one = Endpoint(theirs.fileno(), terms, limits, signals)

        def run(
            item: Item, task: Task, end_s: float, part: Callable[[bytes], None], kept: Kept
        ) -> Outcome:
            served.tasks.append(task)
            if task == "load":
                assert not served.no_load.is_set() or served.go.wait(20)
                if len(served.holders | {id(kept)}) > served.loads_max:
                    return UNLOADABLE
                served.holders.add(id(kept))
            elif item.file.read_text() in ("wait", "break"):
                if item.file.read_text() == "break":
                    served.loads_max = 0
                served.waiting.release()
                assert served.go.wait(20)
            return ran(item, task, end_s, part)

        def serve() -> None:
            served.run = one.serve(item, run)

        served.thread = Thread(target=serve)
        served.thread.start()
        with served.callers:
            yield served
            host.close()
            served.ended()
    for descriptor in (signals.lost_fd, signals.preempt_fd):
        os.close(descriptor)


def ran(item: Item, task: Task, end_s: float, part: Callable[[bytes], None]) -> Outcome:
    ending, asked = Ending.OWN, "" if task == "load" else item.file.read_text()
    output = item.workspace.output
    if asked in ("DEADLINE", "PREEMPTED", "LOST"):
        ending = Ending(asked)
    elif asked == "link":
        (output / "a").symlink_to("/etc/passwd")
    elif asked == "replaced":
        output.rmdir()
        output.symlink_to(item.workspace.root / "input")
    elif asked == "next":  # the folder of the next call
        (item.workspace.root.parent / "step-1").mkdir()
    elif asked == "large":
        (output / "a").write_bytes(bytes(calls.CALL_BYTES_MAX + 1))
    elif asked == "parts":
        part(b"1")
        part(b"2")
    elif asked == "start":
        raise AttemptFailed(Reason.SCRIPT_ERROR, "it cannot be started")
    elif asked == "time":
        (output / "a").write_text(str(end_s - time.monotonic()))
    elif asked:
        (output / "a.txt").write_text(f"{asked} {item.key}")
    return Outcome(ending=ending, status=0, started_s=1.0, ended_s=3.0, log_tail="")


def asked(channel: Channel, text: str) -> Message:
    calls.send(channel, Message(kind="call", name="in.txt", content=text.encode()))
    return received(channel)


def received(channel: Channel) -> Message:
    found = calls.receive(channel)
    assert found is not None
    return found


def test_callers_are_answered_in_turn_and_each_call_has_its_folder(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        one, two = served.caller(), served.caller()
        answer = Message(kind="answer", name="a.txt", content=b"x in.txt")
        assert [asked(caller, "x") for caller in (one, two, one)] == [answer] * 3
        assert asked(one, "parts") == Message(kind="part", content=b"1")
        assert [received(one), received(one)] == [
            Message(kind="part", content=b"2"),
            Message(kind="answer"),
        ]
    run = served.ended()
    assert (run.calls, run.outcome.good, run.notes) == (4, True, [])


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("DEADLINE", "timeout", "after 2.0 s"),
        ("link", "failed", "link"),
        ("replaced", "failed", "link in place of a folder"),
        ("large", "failed", "yield"),
        ("start", "failed", "cannot be started"),
    ],
)
def test_a_call_that_fails_is_named_and_others_follow(
    tmp_path: Path, text: str, code: str, words: str
) -> None:
    with serving(tmp_path) as served:
        caller = served.caller()
        failed = asked(caller, text)
        assert (failed.kind, failed.code) == ("failed", code)
        assert words in failed.message
        assert asked(caller, "x").kind == "answer"


def test_a_folder_that_cannot_be_made_fails_its_call_alone(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        caller = served.caller()
        answers = [asked(caller, text) for text in ("next", "x", "x")]
        assert [answer.kind for answer in answers] == ["answer", "failed", "answer"]
        assert (answers[1].code, "step-1" in answers[1].message) == ("failed", True)


def test_an_input_is_not_written_through_a_link(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    with Workspace(tmp_path) as workspace:
        workspace.input.rmdir()
        workspace.input.symlink_to(private)
        with pytest.raises(OSError):
            write_new(workspace.root, ("input", "in.txt"), b"x")
        assert not any(private.iterdir())


def test_a_call_that_the_end_of_the_endpoint_cuts_took_not_too_long(tmp_path: Path) -> None:
    with serving(tmp_path, call_s=60.0, lasts_s=60.0) as served:
        answer = asked(served.caller(), "DEADLINE")
        assert (answer.kind, answer.code) == ("failed", "unavailable")


def test_no_call_begins_that_has_not_its_time(tmp_path: Path) -> None:
    with serving(tmp_path, call_s=59.9, lasts_s=2.0) as served:
        begun_s = time.monotonic()
        assert served.ended().outcome.good
        assert time.monotonic() - begun_s < 0.9  # the script has 1 s


@pytest.mark.parametrize("ending", [Ending.PREEMPTED, Ending.LOST])
def test_a_lease_that_ends_during_a_call_ends_it(tmp_path: Path, ending: Ending) -> None:
    with serving(tmp_path) as served:
        caller = served.caller()
        assert asked(caller, ending).code == "unavailable"
        assert calls.receive(caller) is None
        assert served.ended().outcome.ending is ending


@pytest.mark.parametrize("signal", ["lost_fd", "preempt_fd"])
def test_a_lease_that_ends_between_two_calls_ends_it_in_order(tmp_path: Path, signal: str) -> None:
    with serving(tmp_path) as served:
        caller = served.caller()
        os.eventfd_write(getattr(served.signals, signal), 1)
        assert calls.receive(caller) is None
        assert served.ended().outcome.good


def test_it_ends_without_calls_and_at_its_time(tmp_path: Path) -> None:
    with serving(tmp_path, idle_s=0.05) as served:
        assert served.ended().calls == 0
    with serving(tmp_path, lasts_s=0.2) as served:
        assert served.ended().outcome.good


def test_a_call_has_the_time_of_its_terms(tmp_path: Path) -> None:
    with serving(tmp_path, call_s=5.0) as served:
        assert 4.0 < float(asked(served.caller(), "time").content) <= 5.0


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n" * 2, None])
def test_a_caller_that_does_not_speak_the_protocol_is_dropped_alone(
    tmp_path: Path, sent: bytes | None
) -> None:
    with serving(tmp_path) as served:
        bad, good = served.caller(), served.caller()
        if sent is None:
            calls.send(bad, Message(kind="answer"))
        else:
            bad.send_bytes(sent)
        assert calls.receive(bad) is None
        assert asked(good, "x").kind == "answer"


def test_a_process_that_cannot_load_ends_the_endpoint(tmp_path: Path) -> None:
    host, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    signals = Signals(lost_fd=os.eventfd(0), preempt_fd=os.eventfd(0))
    with host, theirs, Workspace(tmp_path) as workspace:
        item = Item(step=Step(name=""), file=workspace.input, key="", event={}, workspace=workspace)
        terms = Terms(idle_s=9.0, call_s=1.0)
        one = Endpoint(theirs.fileno(), terms, TimeLimits.within(60), signals)
        assert one.serve(item, lambda *_: UNLOADABLE).outcome is UNLOADABLE
    for descriptor in (signals.lost_fd, signals.preempt_fd):
        os.close(descriptor)


def begin(channel: Channel, text: str) -> Channel:
    calls.send(channel, Message(kind="call", name="in.txt", content=text.encode()))
    return channel


def test_calls_run_side_by_side_up_to_their_number(tmp_path: Path) -> None:
    with serving(tmp_path, calls_max=2) as served:
        one, two, three = (served.caller() for _ in range(3))
        waiting = [begin(one, "wait"), begin(two, "wait")]
        assert [served.waiting.acquire(timeout=20) for _ in waiting] == [True, True]
        begin(three, "wait")
        assert not served.waiting.acquire(timeout=0.05)  # both processes have a call
        served.go.set()
        answers = [received(caller) for caller in (*waiting, three)]
        assert [answer.kind for answer in answers] == ["answer"] * 3
        assert (len(served.holders), served.tasks.count("call")) == (2, 3)
    assert served.ended().calls == 3


def test_a_call_that_costs_its_process_leaves_those_beside_it(tmp_path: Path) -> None:
    with serving(tmp_path, calls_max=2) as served:
        one, two = served.caller(), served.caller()
        begin(one, "wait")
        assert served.waiting.acquire(timeout=20)
        assert [asked(two, text).kind for text in ("DEADLINE", "x")] == ["failed", "answer"]
        served.go.set()
        assert received(one).kind == "answer"


def test_a_caller_does_not_wait_for_the_load_that_follows_its_call(tmp_path: Path) -> None:
    with serving(tmp_path, calls_max=2) as served:
        one, _ = served.caller(), served.caller()
        served.no_load.set()
        try:
            assert [asked(one, text).content for text in "xy"] == [b"x in.txt", b"y in.txt"]
        finally:
            served.go.set()


def test_a_further_process_that_cannot_load_closes_its_caller_alone(tmp_path: Path) -> None:
    with serving(tmp_path, calls_max=2) as served:
        served.loads_max = 1
        one = served.caller()
        assert [calls.receive(served.connected()) for _ in "23"] == [None, None]
        assert asked(one, "x").kind == "answer"
        served.loads_max = 9
        two = served.caller()
        begin(one, "wait")
        assert served.waiting.acquire(timeout=20)
        assert asked(two, "x").kind == "answer", "in a process of its own"
        served.go.set()
    assert served.ended().outcome.good


def test_the_end_of_the_lease_ends_all_calls(tmp_path: Path) -> None:
    with serving(tmp_path, calls_max=2) as served:
        one, two = served.caller(), served.caller()
        begin(one, "wait")
        assert served.waiting.acquire(timeout=20)
        assert asked(two, "LOST").code == "unavailable"
        served.go.set()  # as its own process ends by the signal
        assert received(one).kind == "answer"
        assert calls.receive(two) is None
        assert served.ended().outcome.ending is Ending.LOST


def test_a_caller_that_waits_gets_the_reason_of_code_that_loads_no_more(tmp_path: Path) -> None:
    with serving(tmp_path) as served:
        one, two = served.caller(), served.caller()
        begin(one, "break")
        assert served.waiting.acquire(timeout=20)
        begin(two, "x")
        served.go.set()
        assert received(one).kind == "answer"
        failed = received(two)
        assert (failed.code, failed.message) == ("unavailable", "it cannot load: no module")
        assert served.ended().outcome is UNLOADABLE


def test_what_is_no_endpoint_opens_none() -> None:
    signals = Signals(lost_fd=-1, preempt_fd=-1)
    with pytest.raises(AttemptFailed, match="opens an endpoint"):
        endpoint.opened(None, TimeLimits.within(60), signals)
