"""The descriptor of a process, on Lambda's Python 3.11 too, which was built without the call."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from remote_gpu.client.transport.readiness import readable
from remote_gpu.forwarder.pidfd import pidfd_open


@pytest.mark.parametrize("built_in", [True, False])
def test_it_is_readable_when_the_process_has_ended(
    built_in: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not built_in:
        monkeypatch.delattr(os, "pidfd_open")
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        descriptor = pidfd_open(process.pid)
        try:
            assert readable((descriptor,), 0) == []
            process.communicate(b"\n")
            assert readable((descriptor,), 60) == [descriptor]
        finally:
            os.close(descriptor)


def test_an_unknown_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ProcessLookupError):
        pidfd_open(2**22 + 1)
