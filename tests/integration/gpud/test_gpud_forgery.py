"""Forged, foreign, replayed, ended, never installed, second: over real sockets, all refused."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections import Counter

import pytest

from remote_gpu.client import connect
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.frames import HANDSHAKE, Meta
from tests.forgery import Attempt, Target, attempts
from tests.integration.gpud.conftest import Gpud, until


def said(channel: Channel) -> tuple[str, Meta]:
    """The gateway's one word, and what it says of it."""
    received = channel.receive()
    assert received is not None
    [(word, value)] = received[1].items()
    return word, value


def code_of(gpud: Gpud, one: Attempt) -> str:
    """The code with which the gateway refuses an attempt."""
    host, _, port = gpud.gateway.rpartition(":")
    with socket.create_connection((host, int(port)), 60) as stream:
        channel = Channel(stream, HANDSHAKE)
        channel.send(one.hello.to_meta())
        word, value = said(channel)
        if word == "challenge":
            channel.send({"proof": one.prove(value["nonce"], value["authority"])})
            word, value = said(channel)
        return str(value["code"]) if word == "refused" else word


def attack(gpud: Gpud, seed: int, count: int, kinds: tuple[str, ...] = ()) -> Counter[str]:
    installs = [gpud.install() for _ in range(4)]
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(gpud.open(one)) for one in installs]
        *held, ended = [
            Target(lease=i.lease, fence=i.fence, secret=bytes.fromhex(i.secret), session=s.nonce)
            for i, s in zip(installs, sessions, strict=True)
        ]
        gpud.scheduler.end(installs[-1])
        until(lambda: not sessions[-1].alive)
        tried = Counter[str]()
        for one in itertools.islice(attempts(seed, "gpu-a", held, ended, kinds), count):
            code = code_of(gpud, one)
            # a malformed proof counts as foreign bytes
            assert code in one.codes | ({"PROTOCOL"} if one.name == "garbage" else set()), one
            tried[one.name] += 1
        for session in sessions[:-1]:
            with connect(session.environment()) as device:
                assert device.op("noop").values == {}
        return tried


def test_every_kind_is_refused(shared_gpud: Gpud) -> None:
    assert len(attack(shared_gpud, seed=1, count=22)) == 11


@pytest.mark.soak
def test_a_thousand_are_refused(shared_gpud: Gpud) -> None:
    assert sum(attack(shared_gpud, seed=2, count=1_100).values()) == 1_100
