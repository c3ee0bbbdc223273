"""Run as a script: `contained.py SOCKET GIVEN …` stands for the container of a run.

SOCKET is the descriptor of the host's socket, GIVEN that of the variables as JSON. It passes
SIGTERM on, ends with the container's exit status, and by SIGKILL when the container ran out of
memory; when it is killed, the host kills the container. Started with `python -I -S`: it finds its
own package by its path.
"""

import json
import os
import signal
import socket
import sys

#: The container was not started: a shell's status of a command that cannot be run.
NOT_STARTED_STATUS = 126


def main(descriptor: int, given: int) -> int:
    """Run the container to its end; returns its exit status."""
    from remote_gpu.wire import containers
    from remote_gpu.wire.errors import WireError

    with open(given, encoding="utf-8", errors="surrogateescape") as file:
        variables = json.load(file)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def pass_on(number: int, _: object) -> None:
        try:
            ours.send(containers.encoded({"signal": number}))
        except OSError:  # it has ended, or its host has
            return

    signal.signal(signal.SIGTERM, pass_on)
    try:
        with socket.socket(fileno=descriptor) as host, ours:
            with theirs:
                start = containers.Start(workdir=os.getcwd(), variables=variables)  # noqa: PTH109
                message = containers.encoded({"start": start.fields()})
                socket.send_fds(host, [message], [sys.stdout.fileno(), theirs.fileno()])
            answer = ours.recv(containers.MESSAGE_BYTES_MAX)
            ended = containers.ended_of(containers.decoded(answer))
    except (OSError, WireError) as error:
        return _not_started(str(error))
    if ended.error:
        return _not_started(ended.error)
    if ended.out_of_memory:
        os.kill(os.getpid(), signal.SIGKILL)
    return ended.status


def _not_started(why: str) -> int:
    sys.stderr.write(f"the container of the function: {why}\n")
    return NOT_STARTED_STATUS


if __name__ == "__main__":
    root = os.path.abspath(__file__)  # noqa: PTH100 - pathlib costs more than the rest
    for _ in range(4):
        root = os.path.dirname(root)  # noqa: PTH120
    sys.path.insert(0, root)
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
