"""Sessions of leases granted ahead, at a real gpud: they knock, wait, and open at the booking."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

from corekit.values import replace
from gpu_scheduler.model import EndReason
from gpu_scheduler.protocol.host import Install
from remote_gpu.client import Refusal, Refused, Session, connect
from tests.integration.gpud.conftest import Gpud, until


class Start:
    """One start of a function, in a thread, which opens the session of its lease."""

    def __init__(self, gpud: Gpud, install: Install, **options: Any) -> None:
        self.waits = 0  #: messages that it waits
        self.session: Session | None = None
        self.refused: Refused | None = None
        self.thread = threading.Thread(target=self._run, args=(gpud, install), kwargs=options)
        self.thread.start()

    def _waiting(self) -> None:
        self.waits += 1

    def _run(self, gpud: Gpud, install: Install, **options: Any) -> None:
        try:
            self.session = gpud.open(install, on_waiting=self._waiting, **options)
        except Refused as refused:
            self.refused = refused

    def opened(self) -> Session:
        self.thread.join(60)
        assert self.session is not None, self.refused
        return self.session

    def code(self) -> tuple[str, str]:
        self.thread.join(60)
        assert self.refused is not None
        return self.refused.code, self.refused.message


def changes(gpud: Gpud, install: Install, state: str) -> list[dict[str, Any]]:
    """What the host has reported about a lease."""
    return [
        fields
        for op, fields in gpud.scheduler.messages
        if op == "session" and fields["lease"] == install.lease and fields["state"] == state
    ]


def knocks(gpud: Gpud, install: Install) -> int:
    return len(changes(gpud, install, "knocked"))


def book(gpud: Gpud, install: Install) -> None:
    gpud.scheduler.install(replace(install, ahead=False))


def take_back(gpud: Gpud, install: Install) -> None:
    gpud.scheduler.install(replace(install, ahead=True))


def test_a_host_announces_that_sessions_may_wait(shared_gpud: Gpud) -> None:
    assert shared_gpud.hello["advance"] is True


def test_a_session_that_knocked_opens_when_the_processes_before_it_are_gone(
    shared_gpud: Gpud,
) -> None:
    installed = shared_gpud.install(exclusive=True)
    with shared_gpud.open(installed) as first:
        with connect(first.environment()) as device:
            device.op("noop")
            ahead = shared_gpud.install(exclusive=True, ahead=True)
            start = Start(shared_gpud, ahead, new_sandbox=False)
            until(lambda: knocks(shared_gpud, ahead) and start.waits > 2)
            first.give_back()
        book(shared_gpud, ahead)
        with start.opened() as second, connect(second.environment()) as device:
            device.op("noop")
            until(lambda: changes(shared_gpud, ahead, "opened"))
    [knock] = changes(shared_gpud, ahead, "knocked")
    [opened] = changes(shared_gpud, ahead, "opened")
    assert knock["nonce"] == opened["nonce"] == second.nonce
    assert opened["waited_s"] > 0.5, "it waited for more than one beat"
    assert opened["new_sandbox"] is False
    assert second.held_s is not None
    assert second.held_s < opened["waited_s"], "it waited before the booking, too"
    before = shared_gpud.log_s(installed.lease, "cut")
    assert before <= shared_gpud.log_s(ahead.lease, "placed")


def test_a_lease_ahead_is_not_placed_on_a_free_device(shared_gpud: Gpud) -> None:
    ahead = shared_gpud.install(exclusive=True, ahead=True)
    start = Start(shared_gpud, ahead)
    until(lambda: start.waits > 1)
    with shared_gpud.open(shared_gpud.install(exclusive=True)):
        assert start.session is None
    book(shared_gpud, ahead)
    start.opened().close()


def test_a_swap_gives_the_device_to_the_lease_that_knocked(shared_gpud: Gpud) -> None:
    first, second = (shared_gpud.install(exclusive=True, ahead=True) for _ in range(2))
    book(shared_gpud, first)
    assert shared_gpud.log_s(first.lease, "placed")
    start = Start(shared_gpud, second)
    until(lambda: knocks(shared_gpud, second))
    take_back(shared_gpud, first)
    book(shared_gpud, second)
    with start.opened():
        assert shared_gpud.log_s(first.lease, "unplaced")
        late = Start(shared_gpud, first)
        until(lambda: knocks(shared_gpud, first))
    book(shared_gpud, first)
    late.opened().close()


def test_a_session_that_opened_before_the_swap_keeps_its_device(shared_gpud: Gpud) -> None:
    first, second = (shared_gpud.install(exclusive=True, ahead=True) for _ in range(2))
    book(shared_gpud, first)
    with shared_gpud.open(first) as session, connect(session.environment()) as device:
        take_back(shared_gpud, first)
        book(shared_gpud, second)
        start = Start(shared_gpud, second)
        until(lambda: start.waits)
        device.op("noop")
        assert start.session is None
        session.give_back()
    start.opened().close()


def test_a_lease_that_is_withdrawn_while_its_session_waits(shared_gpud: Gpud) -> None:
    ahead = shared_gpud.install(ahead=True)
    start = Start(shared_gpud, ahead)
    until(lambda: knocks(shared_gpud, ahead))
    shared_gpud.scheduler.end(ahead, EndReason.WITHDRAWN)
    code, message = start.code()
    assert code == Refusal.ENDED
    assert message.startswith("WITHDRAWN: ")
    with pytest.raises(Refused, match="WITHDRAWN"):
        shared_gpud.open(ahead)
    until(lambda: shared_gpud.scheduler.is_cut(ahead.lease))


def test_a_client_that_died_while_it_waited_is_not_opened(shared_gpud: Gpud) -> None:
    ahead = shared_gpud.install(ahead=True)
    code = (
        "import json, sys; from remote_gpu.client import Session;"
        "Session.open(json.loads(sys.argv[1]), 60)"
    )
    connection = json.dumps(shared_gpud.connection(ahead))
    with subprocess.Popen([sys.executable, "-c", code, connection]) as client:
        until(lambda: knocks(shared_gpud, ahead))
        client.kill()
    until(lambda: changes(shared_gpud, ahead, "left"))
    again = Start(shared_gpud, ahead)
    until(lambda: knocks(shared_gpud, ahead) == 2)
    book(shared_gpud, ahead)
    with again.opened() as session:
        until(lambda: changes(shared_gpud, ahead, "opened"))
        [opened] = changes(shared_gpud, ahead, "opened")
        assert opened["nonce"] == session.nonce
        assert session.alive


def test_of_two_starts_that_wait_one_opens(shared_gpud: Gpud) -> None:
    ahead = shared_gpud.install(ahead=True)
    starts = [Start(shared_gpud, ahead) for _ in range(2)]
    until(lambda: knocks(shared_gpud, ahead) == 2)
    book(shared_gpud, ahead)
    for start in starts:
        start.thread.join(60)
    [session] = [start.session for start in starts if start.session is not None]
    [refused] = [start.refused for start in starts if start.refused is not None]
    assert refused.code == Refusal.CLAIMED
    session.close()


def test_a_newer_start_takes_the_place_of_the_oldest(shared_gpud: Gpud) -> None:
    ahead = shared_gpud.install(ahead=True)
    starts = []
    for number in range(1, 6):
        starts.append(Start(shared_gpud, ahead))
        until(lambda number=number: knocks(shared_gpud, ahead) == number)  # type: ignore[misc]
    assert starts[0].code()[0] == Refusal.BUSY
    shared_gpud.scheduler.end(ahead, EndReason.WITHDRAWN)
    assert {start.code()[0] for start in starts[1:]} == {Refusal.ENDED}


def test_a_client_bounds_its_wait(shared_gpud: Gpud) -> None:
    ahead = shared_gpud.install(ahead=True)
    with pytest.raises(Refused) as refused:
        shared_gpud.open(ahead, wait_s=0.2)
    assert refused.value.code == Refusal.TIMEOUT


def test_the_session_of_any_lease_reports_how_long_it_waited(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    with shared_gpud.open(install):
        until(lambda: changes(shared_gpud, install, "opened"))
    [opened] = changes(shared_gpud, install, "opened")
    assert 0 <= opened["waited_s"] < 30


def test_a_late_session_is_given_the_time_since_the_booking(shared_gpud: Gpud) -> None:
    ahead = shared_gpud.install(ahead=True)
    book(shared_gpud, ahead)
    assert shared_gpud.log_s(ahead.lease, "placed")
    with shared_gpud.open(ahead) as session:
        assert session.held_s is not None
        assert session.held_s > 0
    with shared_gpud.open(shared_gpud.install()) as session:
        assert session.held_s is None
