"""Commands in processes that have their modules already: a start takes 0.05 s of a core, not 0.8.

A server beside the test process has imported what commands import; it forks for each command, with
the standard streams, the folder and the environment of its client. Starts of a fresh Python are
tests of their own (`test_demo`, `test_wheel`, `test_cli_output`).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = (
    "gpu_scheduler.client.cli",
    "orchgpu.adapters.aws.deploy.cloud",
    "orchgpu.cli.commands.definition.deploy",
    "orchgpu.cli.commands.definition.plan",
    "orchgpu.cli.commands.jobs.job",
    "orchgpu.cli.commands.jobs.jobs",
    "orchgpu.cli.commands.jobs.logs",
    "orchgpu.cli.commands.jobs.run",
    "orchgpu.cli.commands.jobs.wait",
    "orchgpu.cli.commands.objects.get",
)
#: Without site-packages and without importing anything of ours: it starts in 0.02 s.
_CLIENT = """\
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect("\\0" + sys.argv[1])
    what = json.dumps([sys.argv[2:], os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(what).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(what)
    command = int.from_bytes(server.recv(4), "big")
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, lambda number, _: os.kill(command, number))
    status = server.recv(1)
sys.exit(status[0] if status else "the command did not end")
"""


_started: list[subprocess.Popen[bytes]] = []


def command(module: str) -> Sequence[str]:
    """In place of `python -m module`."""
    address = f"orchgpu-{__name__}-{os.getpid()}"
    if not _started:
        _started.append(_server(address))
    return (sys.executable, "-I", "-S", "-c", _CLIENT, address, module)


def _server(address: str) -> subprocess.Popen[bytes]:
    """Clients may connect at once: it listens before it has imported anything.

    It ends with this process, also when that is killed.
    """
    this = os.pidfd_open(os.getpid())
    with socket.socket(socket.AF_UNIX) as listener, os.fdopen(this, "rb", 0):
        listener.bind(f"\0{address}")
        listener.listen(64)
        fds = (listener.fileno(), this)
        return subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, fds)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=fds,
        )


def end() -> None:
    """End the server, if one was started."""
    while _started:
        server = _started.pop()
        server.terminate()
        server.wait(20)


def _serve(listener: socket.socket, test_process: int) -> None:
    for module in MODULES:
        importlib.import_module(module)
    from contract.aws.clients import session_of
    from orchgpu.adapters.aws.commands import SERVICES

    session = session_of()
    for service in SERVICES:  # their descriptions are read once
        key = {"aws_access_key_id": "none", "aws_secret_access_key": "none"}
        session.client(service, region_name="us-east-1", **key).close()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    either = select.poll()
    either.register(listener, select.POLLIN)
    either.register(test_process, select.POLLIN)
    while test_process not in dict(either.poll()):
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(test_process)
            _attend(client)
            return
        client.close()


def _attend(client: socket.socket) -> None:
    """Perform one command in a child of this process, and send its exit status.

    The command gets the signals of its client, and is killed when that is gone.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(client, 4, 3)
    with client.makefile("rb") as stream:
        what = json.loads(stream.read(int.from_bytes(size, "big")))
    child = os.fork()
    if child == 0:
        client.close()
        _perform(streams, *what)
        return
    client.sendall(child.to_bytes(4, "big"))
    end_of_child, either = os.pidfd_open(child), select.poll()
    either.register(client, select.POLLIN)
    either.register(end_of_child, select.POLLIN)
    if end_of_child not in dict(either.poll()):
        os.kill(child, signal.SIGKILL)
    else:
        _, ended = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(ended)
        client.sendall(bytes([code if code >= 0 else 128 - code]))
    os._exit(0)


def _perform(
    streams: Sequence[int], words: Sequence[str], folder: str, environment: Mapping[str, str]
) -> None:
    """The command is the rest of this process."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    path = [one for one in environment.get("PYTHONPATH", "").split(":") if one not in sys.path]
    sys.argv, sys.path[:1] = list(words), [folder, *path]
    runpy.run_module(words[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
