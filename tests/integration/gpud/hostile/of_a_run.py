"""What the user's code of a run tries: `attempts.py`, with targets that it finds itself."""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

attempts: Any = importlib.import_module("attempts")  # beside this file


def connect_to(address: tuple[str, int]) -> str:
    with socket.create_connection((address[0], address[1]), 2):
        return "connected"


def udp(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stream:
        return stream.sendto(b"x", ("127.0.0.1", port))


def multipath(_: object) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262):  # IPPROTO_MPTCP
        return "made"


def fast_open(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as stream:
        return stream.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", port))


def main() -> None:
    for one in (connect_to, udp, multipath, fast_open):
        attempts.ATTEMPTS[one.__name__] = one
    asked = json.load(sys.stdin)
    private = Path(os.environ["HOME"]).parents[1] / "private"
    shell = os.getppid()
    runner = int(attempts.read(f"/proc/{shell}/stat").rpartition(")")[2].split()[1])
    asked["on"] |= {
        "runner": runner,
        "runner_environ": f"/proc/{runner}/environ",
        "private": str(private),
        "credentials": str(private / "credentials.json"),
        "config": str(private / "config"),
        "package": os.environ["LAMBDA_TASK_ROOT"],
    }
    sys.stdout.write(json.dumps(attempts.run(asked["what"], asked["on"])))


if __name__ == "__main__":
    main()
