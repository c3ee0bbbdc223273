"""Programs of the host's own machine: a Unix socket in place of TCP, found and left by itself."""

from __future__ import annotations

import os
import socket
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from remote_gpu.client import Lane, Refusal, Refused, connect
from remote_gpu.wire.connection import Access
from tests.integration.gpud.conftest import environment_over_tcp


def at(view: Access, path: str) -> Access:
    return replace(view, hosts=tuple(replace(host, unix=path) for host in view.hosts))


def test_a_program_of_this_machine_gets_the_unix_socket(shared_gpud, nothing_left) -> None:
    with shared_gpud.open(shared_gpud.install()) as session:
        [host] = session.view().hosts
        assert stat.S_IMODE(os.stat(host.unix).st_mode) == 0o600
        for environment, family in (
            (session.environment(), socket.AF_UNIX),
            (environment_over_tcp(session), socket.AF_INET),
        ):
            with connect(environment) as device:
                assert device._stream.family == family
                assert bytes(device.op("noop", b"abc").buffers[0]) == b"abc"


def test_a_socket_that_is_not_the_gateways_leads_to_tcp(shared_gpud, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(foreign))
        listener.listen()

        def refuse() -> None:
            stream, _ = listener.accept()
            with stream:
                stream.recv(100)

        thread = threading.Thread(target=refuse)
        thread.start()
        with shared_gpud.open(shared_gpud.install()) as session:
            for path in (str(foreign), str(tmp_path / "nothing"), "\0", "x" * 107):
                with Lane.open(at(session.view(), path)) as lane:
                    assert lane._stream.family == socket.AF_INET
        thread.join()


def test_a_refusal_over_the_unix_socket_is_final_where_tcp_would_say_the_same(shared_gpud) -> None:
    session = shared_gpud.open(shared_gpud.install())
    view = session.view()
    session.close()
    with pytest.raises(Refused) as refused:
        Lane.open(view)
    assert refused.value.code == Refusal.ENDED
