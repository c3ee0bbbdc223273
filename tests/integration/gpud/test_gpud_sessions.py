"""Sessions of a real gpud: the first claims, none outlives its deadlines, every end is reported."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from corekit.budget import Budget
from corekit.values import replace
from gpu_scheduler.model import LeaseLifetime
from remote_gpu.client import Refusal, Refused, Session, connect
from tests.integration.gpud.conftest import SCALE, Gpud, at_once, until


def test_one_lease_from_install_to_cut(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    session = shared_gpud.open(install)
    assert session.alive
    with connect(session.environment()) as device:
        result = device.op("noop", b"some bytes", answer=42)
        assert bytes(result.buffers[0]) == b"some bytes"
        assert result.values == {"args": {"answer": 42}}
    session.give_back()
    session.give_back()  # it is idempotent
    session.close()
    session.close()
    scheduler = shared_gpud.scheduler
    until(lambda: scheduler.is_cut(install.lease) and len(scheduler.states(install.lease)) == 3)
    assert scheduler.states(install.lease) == [
        ("opened", None),
        ("freed", None),
        ("closed", "DONE"),
    ]
    nonces = {
        f["nonce"]
        for op, f in scheduler.messages
        if op == "session" and f["lease"] == install.lease
    }
    assert nonces == {session.nonce}
    cuts = [f for op, f in scheduler.messages if op == "cut" and f["lease"] == install.lease]
    assert len(cuts) == 1, "the shares were free before its session closed"


def test_the_end_of_a_session_whose_code_failed_is_reported_as_such(shared_gpud: Gpud) -> None:
    given_back, raised = shared_gpud.install(), shared_gpud.install()
    with shared_gpud.open(given_back) as session:
        session.give_back(succeeded=False)
    with pytest.raises(ZeroDivisionError), shared_gpud.open(raised):
        raise ZeroDivisionError
    scheduler = shared_gpud.scheduler
    until(lambda: scheduler.is_cut(given_back.lease) and scheduler.is_cut(raised.lease))

    def reported(lease: str) -> dict[str, object]:
        changes = [f for op, f in scheduler.messages if op == "session" and f["lease"] == lease]
        return {f["state"]: f.get("succeeded") for f in changes}

    until(lambda: "closed" in reported(given_back.lease) and "closed" in reported(raised.lease))
    assert reported(given_back.lease) == {"opened": None, "freed": False, "closed": True}
    assert reported(raised.lease) == {"opened": None, "closed": False}


def test_the_notice_of_a_preemption_reaches_the_session_once(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    notices: list[float] = []
    with shared_gpud.open(install, on_preempt=notices.append) as session:
        for _ in range(2):
            shared_gpud.scheduler.preempt(install, 2.5)
        until(lambda: notices)
        assert session.alive, "until the lease ends"
        session.give_back()  # answered after both notices
        assert notices == [2.5]


def test_a_preempted_lease_without_a_session_has_nobody_to_notify(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    shared_gpud.scheduler.preempt(install, 2.5)
    with shared_gpud.open(install) as session:
        assert session.alive
        session.give_back()


def test_a_second_start_of_the_same_attempt_is_refused_as_claimed(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    with shared_gpud.open(install) as session:
        for _ in range(3):
            with pytest.raises(Refused) as refused:
                shared_gpud.open(install)
            assert refused.value.code == Refusal.CLAIMED
        session.give_back()
        with pytest.raises(Refused, match="CLAIMED"):
            shared_gpud.open(install)
        assert session.alive
    with pytest.raises(Refused) as refused:
        shared_gpud.open(install)
    assert refused.value.code == Refusal.ENDED


def test_ten_starts_at_once_one_claims(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    opened: list[Session] = []
    codes: list[str] = []

    def start() -> None:
        try:
            opened.append(shared_gpud.open(install))
        except Refused as refused:
            codes.append(refused.code)

    at_once(*[start] * 10)
    assert (len(opened), set(codes)) == (1, {"CLAIMED"})
    opened[0].close()


def test_a_lease_that_is_never_installed(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    started_s = time.monotonic()
    with pytest.raises(Refused) as refused:
        Session.open(shared_gpud.connection(install, lease="lease-unknown"), 10)
    assert refused.value.code == Refusal.NOT_INSTALLED
    assert time.monotonic() - started_s > 0.2, "its install was waited for"


def test_a_program_holds_no_secret_and_cannot_take_the_session(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    with shared_gpud.open(install) as session:
        environment = session.environment()
        assert install.secret not in str(environment)
        stolen = shared_gpud.connection(install, secret=session.view().hosts[0].secret)
        with pytest.raises(Refused) as refused:
            Session.open(stolen, 10)
        assert refused.value.code == Refusal.DENIED


def test_an_install_that_arrives_after_the_session_asks(shared_gpud: Gpud) -> None:
    shared_gpud.install()
    fence = shared_gpud._fence + 1
    port = int(shared_gpud.gateway.rpartition(":")[2])
    others = connections_at(port)

    def install() -> None:
        until(lambda: connections_at(port) > others)
        shared_gpud.install(secret="ab" * 32)

    thread = threading.Thread(target=install)
    thread.start()
    host = {"host": "gpu-a", "gateway": shared_gpud.gateway, "secret": "ab" * 32}
    connection = {"lease": f"lease-{fence}", "fence": fence, "hosts": [host]}
    Session.open(connection, 10).close()
    thread.join()


def connections_at(port: int) -> int:
    """The number of established TCP connections at a local port."""
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(
        line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "01" for line in lines
    )


def test_a_killed_client_ends_its_lease(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    code = (
        "import json, sys, time; from remote_gpu.client import Session, connect;"
        "s = Session.open(json.loads(sys.argv[1]), 60); d = connect(s.environment());"
        "d.op('noop'); print('open', flush=True); d.op('burn', ms=60000)"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(shared_gpud.connection(install))],
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"open\n"
    client.kill()
    client.wait()
    client.stdout.close()
    assert shared_gpud.log_s(install.lease, "cut")  # its operation would have taken a minute
    until(lambda: ("closed", "SESSION_LOST") in shared_gpud.scheduler.states(install.lease))


def test_a_stopped_client_loses_its_lease_by_silence(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    code = (
        "import json, sys, time; from remote_gpu.client import Session;"
        "s = Session.open(json.loads(sys.argv[1]), 60); print('open', flush=True); time.sleep(60)"
    )
    client = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(shared_gpud.connection(install))],
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    assert client.stdout.readline() == b"open\n"
    client.send_signal(signal.SIGSTOP)
    assert shared_gpud.log_s(install.lease, "closed")  # it would have slept for a minute
    client.kill()
    client.wait()
    client.stdout.close()
    until(lambda: ("closed", "SESSION_LOST") in shared_gpud.scheduler.states(install.lease))


def test_heartbeats_keep_a_session_until_its_cap(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    lost: list[Refused] = []
    started_s = time.monotonic()
    session = shared_gpud.open(install, cap_s=2.5, on_lost=lost.append)
    with connect(session.environment()) as device, pytest.raises(Refused) as refused:
        device.op("burn", ms=60_000)
    assert refused.value.code == Refusal.ENDED
    assert time.monotonic() - started_s > 2.4  # longer than the silence of 1.5 s
    until(lambda: lost)
    assert "CAP" in str(lost[0])
    assert not session.alive
    session.close()
    until(lambda: ("closed", "CAP") in shared_gpud.scheduler.states(install.lease))


def test_a_revoke_cuts_session_and_lanes_at_once(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    session = shared_gpud.open(install)
    device = connect(session.environment())
    timer = threading.Timer(0.3, shared_gpud.scheduler.end, [install])
    timer.start()
    began_s = time.monotonic()
    with pytest.raises(Refused):
        device.op("burn", ms=60_000)
    until(lambda: not session.alive)
    assert time.monotonic() - began_s < 30, "the operation was not waited for"
    assert "REVOKED" in str(session.lost)
    until(lambda: shared_gpud.scheduler.is_cut(install.lease))
    timer.join()
    device.close()
    session.close()
    with pytest.raises(Refused, match="ENDED"):
        shared_gpud.open(install)


def test_a_deadline_lease_outlives_its_sessions(shared_gpud: Gpud) -> None:
    install = shared_gpud.install(hold=LeaseLifetime.DEADLINE, cap_s=60.0)
    environment = {"ORCHGPU_CONNECTION": json.dumps(shared_gpud.connection(install))}
    for _ in range(3):
        with connect(environment) as device:
            device.op("noop")
            with pytest.raises(Refused, match="CLAIMED"):
                connect(environment)
    assert not any(state == "closed" for state, _ in shared_gpud.scheduler.states(install.lease))


@pytest.mark.parametrize("by_its_cap", [False, True])
def test_lanes_end_with_their_session_where_the_lease_goes_on(
    shared_gpud: Gpud, by_its_cap: bool
) -> None:
    install = shared_gpud.install(hold=LeaseLifetime.DEADLINE, cap_s=600.0)
    with shared_gpud.open(install, cap_s=1.0 if by_its_cap else 60.0) as session:
        device = connect(session.environment())
        device.buffer(200 << 20)  # MiB of 256
        if by_its_cap:
            with pytest.raises(Refused, match="ENDED"):
                device.op("burn", ms=600_000)
        session.close()
        with pytest.raises(Refused, match="ENDED"):
            device.op("burn", ms=600_000)
    with shared_gpud.open(install) as session, connect(session.environment()) as device:
        device.buffer(200 << 20)
        assert device.op("burn", ms=1).values["ms"] > 0
    shared_gpud.scheduler.end(install)
    until(lambda: shared_gpud.scheduler.is_cut(install.lease))


def test_a_deadline_lease_that_goes_on_keeps_its_worker(shared_gpud: Gpud) -> None:
    install = shared_gpud.install(hold=LeaseLifetime.DEADLINE, cap_s=4.0)
    with connect({"ORCHGPU_CONNECTION": json.dumps(shared_gpud.connection(install))}) as device:
        device.op("noop")
        ends_s = time.monotonic() + 5.0  # with the second by which a worker outlives its lease
        shared_gpud.scheduler.install(replace(install, cap_s=60.0))
        until(lambda: time.monotonic() > ends_s + 0.2)
        device.op("noop")
    assert shared_gpud.scheduler.states(install.lease)[0][0] == "opened"
    assert ("closed", "EXPIRED") not in shared_gpud.scheduler.states(install.lease)


def test_without_a_runner_connect_holds_the_session_itself(shared_gpud: Gpud) -> None:
    install = shared_gpud.install()
    environment = {"ORCHGPU_CONNECTION": json.dumps(shared_gpud.connection(install))}
    with connect(environment) as device:
        assert device.op("noop").values == {}
    until(lambda: shared_gpud.scheduler.states(install.lease)[-1] == ("closed", "DONE"))


def test_a_session_waits_until_the_old_lease_is_cut(shared_gpud: Gpud) -> None:
    """A cut is real work, which no time scale shortens: the wait for one is not scaled either."""
    old = shared_gpud.install(exclusive=True)
    with shared_gpud.open(old) as session:
        new = shared_gpud.install(exclusive=True)
        opened: list[Session] = []
        opening = threading.Thread(target=lambda: opened.append(shared_gpud.open(new)))
        opening.start()
        until_s = time.monotonic() + 6 * Budget().scaled(SCALE).install_wait_s
        until(lambda: time.monotonic() > until_s or not opening.is_alive())
        assert opening.is_alive(), "refused, though the old lease was about to be cut"
        session.give_back()  # the old session is still open, its share is not
        opening.join(60)
        with opened[0] as second, connect(second.environment()) as device:
            device.op("noop")
            assert session.alive
    assert shared_gpud.log_s(old.lease, "cut") <= shared_gpud.log_s(new.lease, "placed")
