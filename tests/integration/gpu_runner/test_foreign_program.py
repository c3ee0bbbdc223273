"""`python -m remote_gpu.forwarder`: a foreign program with the lease of its envelope."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SHOW = "import os, sys; print(os.environ['ORCHGPU_DEVICE_COUNT']); sys.exit(3)"


FORWARDER = (sys.executable, "-m", "remote_gpu.forwarder")


def forwarder(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*FORWARDER, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def envelope(gateway: Any, tmp_path: Path) -> Path:
    """The `env.json` of an envelope for our own client."""
    given = {"middleware": "builtin", "connection": gateway.connection(), "variables": {}}
    (tmp_path / "env.json").write_text(json.dumps(given))
    return tmp_path / "env.json"


def test_a_program_runs_with_the_envelopes_lease_and_its_status_is_returned(
    gateway: Any, envelope: Path
) -> None:
    done = forwarder(envelope, sys.executable, "-c", SHOW)
    assert (done.returncode, done.stdout) == (3, "1\n"), done.stderr
    assert gateway.heard == ["open", "close"]


@pytest.mark.parametrize(
    ("text", "said", "status"),
    [("{}", "is not a valid env.json of an envelope", 2), ("x", "env.json", 2)],
)
def test_an_invalid_envelope_is_reported(tmp_path: Path, text: str, said: str, status: int) -> None:
    (tmp_path / "env.json").write_text(text)
    done = forwarder(tmp_path / "env.json", "true")
    assert (done.returncode, said in done.stderr) == (status, True)


def test_a_refused_lease_is_reported(gateway: Any, envelope: Path) -> None:
    gateway.refuse = "NOT_INSTALLED"
    done = forwarder(envelope, "true")
    assert (done.returncode, "could not be claimed" in done.stderr) == (8, True)


#: As PoCL's client is: it connects again at once, for ever, whatever happens to its connections.
ENDLESS = """
import os, signal, socket, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
host, port = os.environ["POCL_REMOTE0_PARAMETERS"].removesuffix("/0").split(":")
os.fork()  # and it has a helper
sys.stdout.write("connecting\\n"); sys.stdout.flush()
count = 0
while True:
    try:
        with socket.create_connection((host, int(port)), 10) as stream:
            stream.recv(1)
    except OSError:
        pass
"""


def test_a_program_that_always_reconnects_ends_with_its_lease(gateway: Any, tmp_path: Path) -> None:
    variables = {"POCL_DEVICES": "remote", "POCL_REMOTE0_PARAMETERS": "127.0.0.1:{0}/0"}
    given = {
        "middleware": "pocl",
        "connection": gateway.connection(),
        "variables": variables,
    }
    (tmp_path / "env.json").write_text(json.dumps(given))
    command = [*FORWARDER, str(tmp_path / "env.json"), sys.executable, "-c", ENDLESS]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "connecting\n"
        gateway.lose("REVOKED")
        _, log = started.communicate(timeout=60)
    assert started.returncode == 8
    assert "the program was ended with its lease: ENDED: REVOKED" in log
    assert len(log.splitlines()) < 200  # no line for each of its attempts


def test_a_signal_reaches_the_program(gateway: Any, envelope: Path) -> None:
    wait = "import signal; print('here', flush=True); signal.pause()"
    command = [*FORWARDER, str(envelope), sys.executable, "-c", wait]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "here\n"
        os.kill(started.pid, signal.SIGTERM)
        assert started.wait(60) == 128 + signal.SIGTERM
    assert gateway.heard == ["open", "close"]
