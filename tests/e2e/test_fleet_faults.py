"""`orchgpu up --fleet 0-3` under load: kills of fleet, starting host and `ssgmd`, an interruption.

Jobs have one attempt, so an attempt that counted would be a failed job.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchgpu.fleet.ports.processes import SETTINGS
from tests.e2e.live import until
from tests.e2e.test_demo import environment, finish, orchgpu, processes_naming, start
from tests.instance_metadata import InstanceMetadataServer, serving_metadata
from tests.integration.test_fleet import pid_of, records

__all__ = ["environment"]  # the fixture
pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]
FILES, HOSTS_MAX = 40, 3
WITHIN_S = 400.0
DEFINITION = """\
functions:
  aws:
  - lambda:
      name: slow
      memory: 256
      timeout: 60
      init_script: slow.py
      output: [{storage_provider: s3, path: slow-out}]
    gpu: {memory: 64, compute: 100, kinds: [cpu]}
    job:
      attempts: 1
      input: [{storage_provider: s3, path: slow-in}]
"""
SCRIPT = """\
#!/usr/bin/env python3
import os, pathlib, time
import remote_gpu.client as gpu

source = pathlib.Path(os.environ["INPUT_FILE_PATH"])
with gpu.connect() as device:
    time.sleep(3.0)
    echo = device.op("noop", source.read_bytes()).buffers[0]
pathlib.Path(os.environ["TMP_OUTPUT_DIR"], source.name).write_bytes(bytes(echo))
"""


class System:
    """A local system with a fleet."""

    def __init__(self, environment: dict[str, str], folder: Path) -> None:
        self.environment, self.folder = environment, folder
        self.home = Path(environment["ORCHGPU_HOME"])
        self.hosts = self.home / "state/fleet"
        self.seen: set[str] = set()
        self.most = 0  #: hosts at the same time
        self._over = threading.Event()

    def orchgpu(self, *arguments: str) -> str:
        status, out, err = orchgpu(self.environment, *arguments)
        assert status == 0, err
        return out

    def pid(self, program: str) -> int:
        system = json.loads((self.home / "system.json").read_text())
        (pid,) = [int(one["pid"]) for one in system["processes"] if one["name"] == program]
        return pid

    def kill(self, program: str) -> None:
        os.kill(self.pid(program), signal.SIGKILL)

    def watch(self) -> None:
        """Note the hosts, until the end."""
        while not self._over.wait(0.05):
            living = records(self.hosts)
            self.seen |= {file.stem for file in living}
            self.most = max(self.most, len(living))

    def busy(self) -> set[str]:
        found = json.loads(self.orchgpu("fleet", "status", "--json"))
        return {host["id"] for host in found["hosts"] if host["leases"]}

    def close(self) -> None:
        self._over.set()


@pytest.fixture
def system(environment: dict[str, str], tmp_path: Path) -> Iterator[System]:
    (tmp_path / "fdl.yaml").write_text(DEFINITION)
    (tmp_path / "slow.py").write_text(SCRIPT)
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / f"in/{number}.txt").write_text(f"file {number}")
    found = System(environment, tmp_path)
    found.orchgpu("up", "--fleet", f"0-{HOSTS_MAX}", "--detach", "--json")
    watching = threading.Thread(target=found.watch)
    watching.start()
    try:
        yield found
    finally:
        found.close()
        watching.join()
        finish(start(environment, "down"))
        home = environment["ORCHGPU_HOME"]
        until("everything gone", lambda: not processes_naming(home))


def kill_fleet_and_a_starting_host(system: System, endpoint: str) -> None:
    """The next fleet starts hosts that watch the instance metadata at this endpoint."""
    settings = system.hosts / SETTINGS
    before = settings.stat().st_ino
    starting = until("a host", lambda: next(filter(pid_of, records(system.hosts)), None))
    system.kill("fleet")
    pid = pid_of(starting)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until("a fleet again", lambda: settings.stat().st_ino != before)
    found = json.loads(settings.read_text())
    variable = f"AWS_EC2_METADATA_SERVICE_ENDPOINT={endpoint}"
    found["command"] = ["/usr/bin/env", variable, *found["command"], "--instance-metadata", "on"]
    settings.write_text(json.dumps(found))


def interrupt_a_busy_host(system: System, server: InstanceMetadataServer, first: set[str]) -> str:
    """Let the hosts that came later have a spot interruption; the name of one with a lease."""

    def later() -> str | None:
        return min(system.busy() - first, default=None)

    name = until("a busy host that watches the metadata", later, WITHIN_S)
    at = datetime.now(UTC) + timedelta(seconds=11)  # 10 s of them are reserved
    notice = {"action": "terminate", "time": f"{at:%Y-%m-%dT%H:%M:%SZ}"}
    server.items["spot/instance-action"] = json.dumps(notice)
    file = system.hosts / f"groups/local/{name}.json"
    until("the end of that host", lambda: file not in records(system.hosts), WITHIN_S)
    del server.items["spot/instance-action"]
    return name


def test_no_fault_of_a_fleet_costs_a_job_or_an_attempt(system: System) -> None:
    system.orchgpu("deploy", str(system.folder / "fdl.yaml"))
    files = str(system.folder / "in")
    running = start(system.environment, "run", "slow", files, "--wait", "--json")
    with serving_metadata() as (server, endpoint):
        kill_fleet_and_a_starting_host(system, endpoint)
        first = set(system.seen)
        interrupted = interrupt_a_busy_host(system, server, first)
        before = system.pid("scheduler")
        system.kill("scheduler")
        until("a scheduler again", lambda: system.pid("scheduler") != before)
        status, out, err = finish(running, WITHIN_S)
    assert status == 0, err
    jobs: list[dict[str, Any]] = json.loads(out)["jobs"]
    assert [job["state"] for job in jobs] == ["SUCCEEDED"] * FILES
    assert [len(job["outputs"]) for job in jobs] == [1] * FILES
    assert len({job["job_id"] for job in jobs}) == FILES
    log = (system.hosts / f"groups/local/{interrupted}.log").read_text()
    assert "spot interruption: terminate" in log
    assert 1 <= system.most <= HOSTS_MAX
    until("no host without demand", lambda: not records(system.hosts), WITHIN_S)
    system.orchgpu("down")
    assert not processes_naming(str(system.hosts))
