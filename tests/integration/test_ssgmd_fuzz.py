"""Whatever arrives at the door, the daemon answers the next caller."""

from __future__ import annotations

import json
import random
import socket
from typing import Any

from tests.host_hello import host_hello

HELLOS: tuple[dict[str, Any], ...] = (
    {"id": 1, "op": "hello", "role": "requester", "session": "fuzz", "version": 1},
    host_hello(id=1, op="hello", host="f", gateway=None, devices=[]),
)
OPS = (
    {"op": "attempt", "holder": "j", "n": 1, "revision": 0, "request": {}},
    {"op": "reserve", "attempt": "a", "request": {"count": 2}},
    {"op": "records", "limit": 10},
    {"op": "watch", "all": True},
    {"op": "renew", "lease": "l"},
    {"op": "report", "devices": []},
    {"op": "cut", "lease": "l"},
    {"op": "drain", "host": "f"},
    {"op": "session", "lease": "l", "state": "closed", "nonce": "n"},
    {"op": "finish", "holder": "j", "outcome": "o", "reason": "r"},
)
WORDS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    "x" * 5000,
    "\x00\ud83d\ude00",
    "\ud83d",
    [],
    [[]],
    {},
    {"a": {}},
)


def mutated(chance: random.Random) -> bytes:
    """A request with wrong values, missing and foreign keys, or broken bytes."""
    message: dict[str, Any] = {"id": chance.randrange(9), **chance.choice(OPS)}
    for _ in range(chance.randrange(3)):
        key = chance.choice([*message, "extra"])
        message[key] = chance.choice(WORDS)
        if chance.random() < 0.2:
            del message[key]
    line = json.dumps(message).encode() + b"\n"
    if chance.random() < 0.1:
        at = chance.randrange(len(line))
        line = line[:at] + chance.randbytes(3) + line[at:]
    return line


def test_the_daemon_outlives_a_thousand_wrong_messages(programs: Any) -> None:
    daemon = programs.ssgmd()
    host, _, port = daemon.wait_ready()["socket"].rpartition(":")
    seed = 20_001
    chance = random.Random(seed)
    for _ in range(60):
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            if chance.random() < 0.8:
                peer.sendall(json.dumps(chance.choice(HELLOS)).encode() + b"\n")
            lines = b"".join(mutated(chance) for _ in range(20))
            peer.sendall(lines)
            peer.shutdown(socket.SHUT_WR)
            answers = b""
            while chunk := peer.recv(65536):
                answers += chunk
        for line in answers.splitlines():
            value = json.loads(line)
            assert value.get("error", {}).get("code") != "internal", (seed, value)
    done = programs.ssgm("queue", "--json", "--scheduler", f"{host}:{port}")
    assert done.returncode == 0, (seed, daemon.log.read_text())
    assert daemon.terminate() == 0
    assert "Traceback" not in daemon.log.read_text()
