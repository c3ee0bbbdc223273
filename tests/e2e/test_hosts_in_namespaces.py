"""Hosts that share neither network nor memory: what only seems to work on one machine fails here.

One scheduler, two hosts and a function, each in a namespace of its own, with keys, over a bridge.
The servers of other middlewares are stand-ins; their clients behave as the real ones do.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.namespaces import Machine, machines, why_not

STANDIN = Path(__file__).parents[1] / "integration/gpud/standin.py"
LEASE = Path(__file__).with_name("lease_in_namespace.py")
SCALE = {"ORCHGPU_TIME_SCALE": "0.2"}
WAIT_S = 60.0

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

#: Asks every server of the lease for its facts; as Lupine's client, it knows a list of them.
LIST_CLIENT = """
import json, os, socket, struct
facts = []
for address in os.environ["LUPINE_SERVER"].split(","):
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), 60) as stream, stream.makefile("rwb") as words:
        def hear():
            return words.read(struct.unpack("!I", words.read(4))[0])
        hear()
        words.write(struct.pack("!I", 5) + b"facts"); words.flush()
        facts.append(json.loads(hear()))
print(json.dumps([one["network"] for one in facts]))
"""

#: As Cricket's client: with a server that seems to be on its own machine it shares memory.
CAREFUL_CLIENT = """
import os, pathlib, socket, struct
host, port = os.environ["REMOTE_GPU_ADDRESS"].split(":")
shared = pathlib.Path("/dev/shm/cricket-buffer")
shared.write_bytes(b"by memory")
with socket.create_connection((host, int(port)), 60) as stream, stream.makefile("rwb") as words:
    def ask(body):
        words.write(struct.pack("!I", len(body)) + body); words.flush()
        return words.read(struct.unpack("!I", words.read(4))[0])
    words.read(struct.unpack("!I", words.read(4))[0])
    by_memory = b"local " + bytes(shared)
    is_local = stream.getsockname()[0] == stream.getpeername()[0]
    print(ask(by_memory if is_local else b"by wire").decode())
    print(ask(by_memory).decode())
"""

#: The built-in plane, from another machine: no socket of the host's, no shared memory.
OWN_CLIENT = """
import remote_gpu.client as gpu
with gpu.connect() as devices:
    for device in devices:
        print(bytes(device.op("noop", b"x" * 3_000_000).buffers[0]) == b"x" * 3_000_000)
"""


@dataclass
class System:
    """Programs in namespaces, ended together."""

    folder: Path
    machines: dict[str, Machine]
    keys: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[Any]] = field(default_factory=list)
    scheduler: str = ""

    def start(self, where: str, module: str, *arguments: str, key: str = "") -> dict[str, Any]:
        """Start a daemon and return what it says of itself once it is ready."""
        ready = self.folder / f"{where}.ready"
        with (self.folder / f"{where}.log").open("ab") as log:
            program = self.machines[where].start(
                [sys.executable, "-m", module, *arguments, "--ready-file", str(ready)],
                {**SCALE, "ORCHGPU_SCHEDULER_KEY": key},
                stderr=log,
            )
        self.started.append(program)
        deadline_s = time.monotonic() + WAIT_S
        while not ready.exists():
            log_text = (self.folder / f"{where}.log").read_text()[-3000:]
            assert program.poll() is None, f"{where} ended: {log_text}"
            assert time.monotonic() < deadline_s, f"{where} is not ready: {log_text}"
            time.sleep(0.02)
        told: dict[str, Any] = json.loads(ready.read_text())
        return told

    def make_key(self, name: str, *role: str) -> str:
        state = self.folder / "ssgmd"
        state.mkdir(mode=0o700, exist_ok=True)
        command = [sys.executable, "-m", "gpu_scheduler.daemon", "--state", str(state)]
        done = subprocess.run(
            [*command, "keys", "add", name, *role],
            capture_output=True,
            text=True,
            check=True,
            timeout=WAIT_S,
        )
        return done.stdout.split()[-1]

    def run_on_lease(self, middleware: str, hosts: int, program: str) -> str:
        """The output of a program in the function, on a lease of so many hosts."""
        envelope = self.folder / f"{middleware}.json"
        holder = self.machines["scheduler"].start(
            [sys.executable, str(LEASE), self.scheduler, middleware, str(hosts), str(envelope)],
            {**SCALE, "ORCHGPU_SCHEDULER_KEY": self.keys["orchestrator"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "granted\n"
            lent = self.machines["function"].start(
                [
                    sys.executable,
                    "-m",
                    "remote_gpu.forwarder",
                    str(envelope),
                    sys.executable,
                    "-c",
                    program,
                ],
                SCALE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            output: str
            output, log = lent.communicate(timeout=WAIT_S)
            assert lent.returncode == 0, log
            return output
        finally:
            holder.communicate(timeout=WAIT_S)

    def close(self) -> None:
        for program in reversed(self.started):
            program.terminate()
        for program in self.started:
            program.wait(WAIT_S)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("namespaces")
    servers = folder / "server"
    servers.write_text(f"#!{sys.executable} -S\n{STANDIN.read_text()}")
    servers.chmod(0o755)
    with machines("scheduler", "gpu-a", "gpu-b", "function") as made:
        system = System(folder, made)
        try:
            system.keys["orchestrator"] = system.make_key("orchestrator", "--role", "requester")
            hub = made["scheduler"].address
            for host in ("gpu-a", "gpu-b"):
                system.keys[host] = system.make_key(host, "--role", "host", "--host", host)
            ready = system.start(
                "scheduler",
                "gpu_scheduler.daemon",
                "--state",
                str(folder / "ssgmd"),
                "--listen",
                f"{hub}:0",
                "--http",
                f"{hub}:0",
            )
            system.scheduler = ready["socket"]
            for host in ("gpu-a", "gpu-b"):
                system.start(
                    host,
                    "remote_gpu.host",
                    "--host-id",
                    host,
                    "--scheduler",
                    system.scheduler,
                    "--listen",
                    f"{made[host].address}:0",
                    "--state",
                    str(folder / host),
                    "--no-nvml",
                    "--drain-s=0",
                    "--memory-mib",
                    "512",
                    "--operation",
                    "noop",
                    *(f"--middleware={name}={servers}" for name in ("lupine", "cricket")),
                    key=system.keys[host],
                )
            for host in ("gpu-a", "gpu-b"):
                made["function"].hide(folder / host)  # another machine has no file of a host
            yield system
        finally:
            system.close()


def test_each_address_of_a_client_leads_to_its_own_host(system: System) -> None:
    named = json.loads(system.run_on_lease("lupine", 2, LIST_CLIENT))
    assert len(named) == 2
    assert len(set(named)) == 2


def test_a_client_that_asks_whether_its_server_is_local_does_not_share_memory(
    system: System,
) -> None:
    by_wire, by_memory = system.run_on_lease("cricket", 1, CAREFUL_CLIENT).splitlines()
    assert by_wire == "by wire"
    assert by_memory == "no shared memory: No such file or directory"  # it would have failed


def test_the_built_in_data_plane_needs_no_network_of_the_host(system: System) -> None:
    assert system.run_on_lease("builtin", 2, OWN_CLIENT).split() == ["True", "True"]
