"""Programs of a whole system, each on a machine (a network namespace) of its own, with keys."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.namespaces import Machine

LEASE = Path(__file__).with_name("lease_in_namespace.py")
SCALE = {"ORCHGPU_TIME_SCALE": "0.2"}
WAIT_S = 60.0

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
        addresses: dict[str, Any] = json.loads(ready.read_text())
        return addresses

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

    def start_scheduler(self) -> None:
        """The scheduler, with a key for an orchestrator."""
        self.keys["orchestrator"] = self.make_key("orchestrator", "--role", "requester")
        hub = self.machines["scheduler"].address
        state = ("--state", str(self.folder / "ssgmd"))
        doors = ("--listen", f"{hub}:0", "--http", f"{hub}:0")
        ready = self.start("scheduler", "gpu_scheduler.daemon", *state, *doors)
        self.scheduler = ready["socket"]

    def start_host(self, host: str, listen: str, *options: str) -> None:
        """A host of that name on the machine of that name, with a key."""
        self.start(
            host,
            "remote_gpu.host",
            *("--host-id", host, "--scheduler", self.scheduler, "--listen", listen),
            *("--state", str(self.folder / host), "--no-nvml", "--drain-s=0"),
            *("--memory-mib", "512", "--operation", "noop"),
            *options,
            key=self.make_key(host, "--role", "host", "--host", host),
        )

    def close(self) -> None:
        for program in reversed(self.started):
            program.terminate()
        for program in self.started:
            program.wait(WAIT_S)
