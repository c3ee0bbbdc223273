"""The server of warm commands."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys

from tests.warm_commands import ROOT

#: A test process that is killed, as a worker that ran out of memory.
_KILLED = """\
import os
from tests import warm_commands
warm_commands.command("orchgpu")
print(warm_commands._started[0].pid, flush=True)
os.kill(os.getpid(), 9)
"""
_WITHIN_MS = 60_000


def test_it_ends_with_its_test_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _KILLED], cwd=ROOT, stdout=subprocess.PIPE, check=False
    )
    assert done.returncode == -signal.SIGKILL
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        server, ended = os.pidfd_open(int(done.stdout)), select.poll()
        ended.register(server, select.POLLIN)
        try:
            assert ended.poll(_WITHIN_MS)
        finally:
            signal.pidfd_send_signal(server, signal.SIGKILL)
            os.close(server)
