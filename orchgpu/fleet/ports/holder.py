"""`python -m orchgpu.fleet.ports.holder`: one host of `ProcessFleet`, like a machine around gpud.

It waits for the delay, runs the command, and ends with it. It holds the lock of its record, by the
inherited descriptor, until its end. SIGTERM ends the command, as does the end of the lifeline: the
process that holds the lock of that file.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

from corekit.aio.process import guarded
from orchgpu.fleet.ports.processes import is_held

_LOOK_EVERY_S = 0.1
#: Longest orderly end of the command.
_END_S = 10.0


class _Stopped(BaseException):
    """SIGTERM has come."""


def main(arguments: list[str]) -> int:
    """Hold one host until its end."""
    record, descriptor, delay_s, lifeline, *command = arguments
    signal.signal(signal.SIGTERM, _stop)
    try:
        _write_pid(int(descriptor), Path(record))
        _wait(float(delay_s), lifeline)
        return _run(command, lifeline)
    except _Stopped:
        return 0
    finally:
        Path(record).unlink(missing_ok=True)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped


def _write_pid(descriptor: int, record: Path) -> None:
    """Add the process id to the record, in place: the lock is that of this very file."""
    text = json.dumps({**json.loads(record.read_text()), "pid": os.getpid()})
    os.pwrite(descriptor, text.encode(), 0)


def _wait(delay_s: float, lifeline: str) -> None:
    end_s = time.monotonic() + delay_s
    while (left_s := end_s - time.monotonic()) > 0:
        _check(lifeline)
        time.sleep(min(left_s, _LOOK_EVERY_S))


def _check(lifeline: str) -> None:
    if lifeline and not is_held(Path(lifeline)):
        raise _Stopped


def _run(command: list[str], lifeline: str) -> int:
    child = subprocess.Popen(guarded(command, signal.SIGTERM))
    try:
        while (status := child.poll()) is None:
            _check(lifeline)
            time.sleep(_LOOK_EVERY_S)
        return status
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child.terminate()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
