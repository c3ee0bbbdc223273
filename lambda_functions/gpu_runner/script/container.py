"""A step in the container of a run on a host: its start, from the runner's side.

The runner has no right to start containers. It asks its host (`remote_gpu.wire.containers`): first
to have the image ready; then this module runs in place of a script, as a process that stands for
the container. Its arguments are the descriptor of the host's socket, and that of the variables as
JSON. It passes SIGTERM on, ends with the container's exit status, and by SIGKILL when the container
ran out of memory; when it is killed, the host kills the container.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from remote_gpu.wire.containers import (
    MESSAGE_BYTES_MAX,
    Start,
    decoded,
    encoded,
    ended_of,
    start_message,
)
from remote_gpu.wire.errors import WireError

#: The container was not started: a shell's status of a command that cannot be run.
NOT_STARTED_STATUS = 126

#: Download an object, (bucket, key), to a file.
Download = Callable[[str, str], Path]


def command(descriptor: int) -> list[str]:
    """The command that stands for the container, but for the descriptor of its variables."""
    return [sys.executable, "-P", "-m", __name__, str(descriptor)]


def prepare(descriptor: int, limit_s: float, download: Download) -> None:
    """Have the host make the image ready, which may be a pull of minutes.

    Raises AttemptFailed(SCRIPT_ERROR) with the host's reason, also after `limit_s`.
    """
    given: list[int] = []
    try:
        with socket.socket(fileno=os.dup(descriptor)) as host:
            host.settimeout(max(0.1, limit_s))
            answer = _asked(host, given)
            if isinstance(needs := answer.get("needs"), dict):
                file = download(str(needs["bucket"]), str(needs["key"]))
                given.append(os.open(file, os.O_RDONLY | os.O_CLOEXEC))
                file.unlink()
                answer = _asked(host, given)
    except TimeoutError:
        _fail(f"it was not ready within {limit_s:.0f} s")
    except (OSError, WireError, KeyError) as error:
        _fail(f"its host does not answer: {error}")
    finally:
        for one in given:
            os.close(one)
    if answer:
        _fail(str(answer.get("error", answer)))


def _asked(host: socket.socket, given: list[int]) -> dict[str, object]:
    socket.send_fds(host, [encoded({"prepare": True})], given)
    return decoded(host.recv(MESSAGE_BYTES_MAX))


def _fail(why: str) -> NoReturn:
    raise AttemptFailed(Reason.SCRIPT_ERROR, f"the image of the function: {why}")


def main(descriptor: int, given: int) -> int:
    """Run the container to its end; returns its exit status."""
    with open(given, encoding="utf-8", errors="surrogateescape") as file:
        variables = json.load(file)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    signal.signal(signal.SIGTERM, lambda *_: _pass_on(ours))
    try:
        with socket.socket(fileno=descriptor) as host, ours:
            with theirs:
                start = start_message(Start(workdir=os.getcwd(), variables=variables))  # noqa: PTH109
                socket.send_fds(host, [start], [sys.stdout.fileno(), theirs.fileno()])
            ended = ended_of(decoded(ours.recv(MESSAGE_BYTES_MAX)))
    except (OSError, WireError) as error:
        return _not_started(str(error))
    if ended.error:
        return _not_started(ended.error)
    if ended.out_of_memory:
        os.kill(os.getpid(), signal.SIGKILL)
    return ended.status


def _pass_on(host: socket.socket) -> None:
    try:
        host.send(encoded({"signal": int(signal.SIGTERM)}))
    except OSError:  # it has ended, or the host has
        return


def _not_started(why: str) -> int:
    sys.stderr.write(f"the container of the function: {why}\n")
    return NOT_STARTED_STATUS


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
