"""A guarded child becomes its command, waits while it is held, and never outlives its parent."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from corekit.aio.process import guarded

HELLO = ["sh", "-c", "echo hello"]


def test_a_guarded_child_becomes_its_command() -> None:
    done = subprocess.run(guarded(HELLO, signal.SIGTERM), capture_output=True, check=True)
    assert done.stdout == b"hello\n"


@pytest.mark.parametrize(("sent", "status", "output"), [(b"x", 0, b"hello\n"), (b"", 137, b"")])
def test_a_held_child_begins_with_the_first_byte_and_ends_without_one(
    sent: bytes, status: int, output: bytes
) -> None:
    line = guarded(HELLO, signal.SIGKILL, held=True)
    done = subprocess.run(line, input=sent, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (status, output)


def test_a_child_whose_parent_is_gone_does_not_begin() -> None:
    line = guarded(HELLO, signal.SIGTERM)
    line[line.index("-S") + 2] = "1"  # the pid of another process
    done = subprocess.run(line, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (128 + signal.SIGTERM, b"")


def test_a_child_ends_with_its_parent() -> None:
    """The parent is killed; the kernel ends the child, which closes the pipe that both hold."""
    program = """
import signal, subprocess
from corekit.aio.process import guarded
child = subprocess.Popen(guarded(["sh", "-c", "echo begun; exec sleep 3600"], signal.SIGTERM))
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"begun\n"
        parent.kill()
        assert parent.stdout.read() == b"", "the end of the pipe"
