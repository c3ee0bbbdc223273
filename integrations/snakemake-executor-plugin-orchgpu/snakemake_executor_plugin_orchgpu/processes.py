"""Commands of this machine, each with all processes that it starts."""

from __future__ import annotations

import os
import signal
import subprocess


def started(command: str) -> subprocess.Popen[bytes]:
    """A shell with the command, in a session of its own."""
    return subprocess.Popen(command, shell=True, start_new_session=True)  # noqa: S602 - its own


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the command and all that it started to end; safe to repeat.

    The shell alone would leave its children to run, and write outputs, on their own.
    """
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
