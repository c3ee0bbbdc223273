"""`python3 -m remote_gpu.forwarder ENV_JSON COMMAND…`: a program with the lease of an envelope.

For foreign functions (`completion: object`): their script unpacks the envelope and runs its program
by this command; the program may be an unmodified client of another middleware. The session ends
with the program, and the program with the session: when the lease ends, its process group gets
SIGTERM, then SIGKILL. The exit status is the program's, 128 + n for signal n; 8 when the lease
could not be claimed, or ended before the program.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from remote_gpu.client import Refused, Session
from remote_gpu.client.transport.readiness import readable
from remote_gpu.forwarder import client_variables
from remote_gpu.forwarder.pidfd import pidfd_open
from remote_gpu.wire.errors import WireError

#: Lambda's longest run; the lease's own length is shorter.
_CAP_S = 900.0
_USAGE_STATUS = 2
#: As in `corekit.errors`: unreachable.
_REFUSED_STATUS = 8
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_GRACE_S = 5.0  #: from SIGTERM to SIGKILL


def main(arguments: list[str]) -> int:
    """Run the command; returns the exit status."""
    if len(arguments) < 2:
        return _fail("usage: python3 -m remote_gpu.forwarder ENV_JSON COMMAND…", _USAGE_STATUS)
    try:
        given = json.loads(Path(arguments[0]).read_bytes())
        lost, noticed = os.pipe()  # for the life of this process
        session = Session.open(given["connection"], _CAP_S, on_lost=lambda _why: os.close(noticed))
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _fail(
            f"{arguments[0]} is not a valid env.json of an envelope: {error!r}", _USAGE_STATUS
        )
    except Refused as refused:
        return _fail(f"the lease could not be claimed: {refused}", _REFUSED_STATUS)
    try:
        return _run(session, given, arguments[1:], lost)
    except WireError as error:
        return _fail(str(error), _USAGE_STATUS)
    except OSError as error:
        return _fail(f"{arguments[1]} cannot be started: {error}", _USAGE_STATUS)
    finally:
        session.close()


def _run(session: Session, given: dict[str, object], command: list[str], lost: int) -> int:
    variables = given.get("variables")
    with (
        tempfile.TemporaryDirectory() as folder,
        client_variables(
            session.view(),
            str(given.get("middleware", "")),
            variables if isinstance(variables, dict) else {},
            Path(folder),
        ) as of_client,
    ):
        environment = {**os.environ, **session.environment(), **of_client}
        with (
            _signals_to_group() as group,
            subprocess.Popen(command, env=environment, process_group=0) as program,
        ):
            group.append(program.pid)
            ended_first = _run_to_end(program.pid, lost)
    if not ended_first:
        return _fail(f"the program was ended with its lease: {session.lost}", _REFUSED_STATUS)
    return program.returncode if program.returncode >= 0 else 128 - program.returncode


def _run_to_end(pid: int, lost: int) -> bool:
    """Wait for the end of the program or lease, then end the group; True if the program was first.

    The program is not reaped before: its number names the group.
    """
    pidfd = pidfd_open(pid)
    try:
        ended_first = pidfd in readable((pidfd, lost))
        _signal_group(pid, signal.SIGTERM)
        readable((pidfd,), _GRACE_S)
        _signal_group(pid, signal.SIGKILL)
    finally:
        os.close(pidfd)
    return ended_first


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


@contextlib.contextmanager
def _signals_to_group() -> Iterator[list[int]]:
    """Pass signals that end a command on to the program's group.

    Append the group's number to the list once it exists; before, a signal ends this process.
    """
    group: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        del frame
        if not group:
            raise SystemExit(128 + number)
        _signal_group(group[0], number)

    before = {number: signal.signal(number, handler) for number in _ENDING}
    try:
        yield group
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _fail(text: str, status: int) -> int:
    sys.stderr.write(f"remote_gpu.forwarder: {text}\n")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
