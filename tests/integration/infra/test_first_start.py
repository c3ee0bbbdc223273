"""User data of the template, executed by machines with a root of their own, up to a joined host.

The scheduler's machine makes keys and authority, and serves; the GPU host's installs itself from
its bundle and joins by its role: the metadata service gives it credentials, STS evaluates them.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from orchgpu.infra import bundles
from orchgpu.infra.template import read_template
from tests import namespaces
from tests.first_start import (
    ACCOUNT,
    BUCKET,
    CLOUD_PORT,
    REGION,
    STACK,
    STS_PORT,
    own_root,
    user_data,
)
from tests.namespaces import Machine
from tests.wheelhouse import wheelhouse

NETWORK = "198.18.0.0/24"
WITHIN_S = 240


def why_not() -> str | None:
    missing = [tool for tool in ("systemd-sysusers", "openssl") if shutil.which(tool) is None]
    if missing:
        return f"a first start needs {', '.join(missing)}"
    if ".".join(platform.python_version_tuple()[:2]) != bundles.PYTHON:
        return f"the machines of a stack run Python {bundles.PYTHON}"
    return namespaces.why_not()


pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def built(folder: Path) -> dict[str, str]:
    """Bundles of both kinds of machine, from the distributions that are installed here."""
    wheels = folder / "wheels"
    wheels.mkdir()
    wheelhouse(wheels, "orchgpu[scheduler]")
    own = bundles.own_wheel(folder)
    keys = {}
    for parameter, extras in (("SchedulerBundle", "scheduler"), ("HostBundle", "")):
        found = bundles.build(own, platform.machine(), extras, wheels)
        found.file.rename(folder / f"{found.sha256}.tar")
        keys[parameter] = found.key(STACK)
    return keys


def ended(process: subprocess.Popen[Any], machine: Machine, log: Path) -> None:
    """User data that ended well."""
    status = process.wait(WITHIN_S)
    more = machine.command("bash", "-c", "tail -n 30 /var/log/orchgpu/*.log")
    logs = subprocess.run(more, capture_output=True, text=True, check=False).stdout
    assert status == 0, f"{log.read_text()[-3000:]}\n{logs[-6000:]}"


class World:
    """The machines, and the groups of processes that were started on them."""

    def __init__(self, folder: Path, machines: dict[str, Machine]) -> None:
        self.folder = folder
        self.machines = machines
        self._started: list[subprocess.Popen[Any]] = []

    def start(self, machine: str, *command: str, **environment: str) -> tuple[Any, Path]:
        """A program on a machine, with no other setting of AWS than these, and its log."""
        log = self.folder / f"{machine}-{len(self._started)}.log"
        ours = [name for name in os.environ if name.startswith("AWS_") and name not in environment]
        with log.open("wb") as opened:
            process = self.machines[machine].start(
                ("env", *(f"--unset={name}" for name in ours), *command),
                {"PYTHONPATH": str(Path.cwd()), **environment},
                stdout=opened,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process, log

    def close(self) -> None:
        """End every program: with its group, since user data leaves them running."""
        for process in reversed(self._started):
            for number, within_s in ((signal.SIGTERM, 20.0), (signal.SIGKILL, 20.0)):
                if members(process.pid):
                    os.killpg(process.pid, number)
                end = time.monotonic() + within_s
                while members(process.pid) and time.monotonic() < end:
                    process.poll()
                    time.sleep(0.05)
            process.wait()


def members(group: int) -> list[int]:
    """The processes of a group that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, number = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(number) == group and state != "Z":
            found.append(int(folder.name))
    return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        machines = stack.enter_context(namespaces.machines("cloud", "scheduler", "host"))
        found = World(tmp_path, machines)
        stack.callback(found.close)
        yield found


def awaited(file: Path, process: subprocess.Popen[Any], log: Path) -> Any:
    end = time.monotonic() + WITHIN_S
    while not file.exists():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.1)
    return json.loads(file.read_text())


@pytest.mark.soak  # 34 s of processor time: two installations from bundles
@pytest.mark.timeout(900)
def test_machines_set_themselves_up_and_a_host_joins_by_its_role(world: World) -> None:
    template, folder = read_template(), world.folder
    keys = built(folder)
    cloud, scheduler, host = (world.machines[name] for name in ("cloud", "scheduler", "host"))
    arguments = (str(folder), cloud.address, scheduler.address, NETWORK)
    service, log = world.start(
        "cloud", sys.executable, "-m", "tests.first_start", "cloud", *arguments
    )
    facts = awaited(folder / "facts.json", service, log)

    role = f"arn:aws:iam::{ACCOUNT}:role"
    values = {
        **template.values({**keys, "StateBucket": BUCKET, "Machines": "one"}, {}),
        "AWS::Region": REGION,
        "AWS::StackName": STACK,
        "HostRole.Arn": f"{role}/hosts",
        "SchedulerRole.Arn": f"{role}/schedulers",
        "AddressA": facts["interface"],
        "AddressA.PrimaryPrivateIpAddress": scheduler.address,
        **dict.fromkeys(("RouteOut", "RoutesA", "RoutesB", "Journal", "System", "Logs"), "made"),
        "Machines": "one",
    }
    endpoints = {"AWS_ENDPOINT_URL": f"http://{cloud.address}:{CLOUD_PORT}"}
    sts = {"AWS_ENDPOINT_URL_STS": f"http://127.0.0.1:{STS_PORT}"}
    own_root(scheduler, endpoints)
    own_root(host, {**endpoints, **sts})
    joins_as = f"arn:aws:sts::{ACCOUNT}:assumed-role/hosts/{facts['instances'][1]}"
    world.start("scheduler", sys.executable, "-m", "tests.first_start", "sts", joins_as)

    for name, resource in (("scheduler", "SchedulerTemplate"), ("host", "HostTemplate")):
        machine = world.machines[name]
        items = metadata(facts["instances"][name == "host"], facts["subnet"], machine.address)
        ready = folder / f"metadata-{name}.json"
        given = ("metadata", json.dumps(items), str(ready))
        awaited(ready, *world.start(name, sys.executable, "-m", "tests.first_start", *given))
        script = folder / f"{name}.sh"
        text = user_data(template, resource, values)
        # without another GPU host on the scheduler's machine
        script.write_text(text.replace('"gpud": true', '"gpud": false'))
        path = f"/mnt/bin:{os.environ['PATH']}"
        done, log = world.start(
            name, "bash", str(script), PATH=path, PYTHONPATH="", **endpoints, **sts
        )
        ended(done, machine, log)

    reported = f"{STACK} SchedulersA {facts['instances'][0]} SUCCESS\n"
    assert (folder / "signals").read_text() == reported
    hosts = scheduler_hosts(scheduler)
    assert [(one["host"], one["state"]) for one in hosts] == [(facts["instances"][1], "UP")]
    assert hosts[0]["gateway"] == f"{host.address}:4711"
    assert hosts[0]["ephemeral"] is True


def metadata(instance: str, subnet: str, address: str) -> dict[str, str]:
    """Items of an instance with a role."""
    credentials = {
        "Code": "Success",
        "AccessKeyId": "AKIDROLE",
        "SecretAccessKey": "secret",
        "Token": "a/token+with=signs",
        "Expiration": "2099-01-01T00:00:00Z",
    }
    mac = "02:00:00:00:00:01"
    return {
        "instance-id": instance,
        "local-ipv4": address,
        "mac": mac,
        f"network/interfaces/macs/{mac}/subnet-id": subnet,
        "iam/security-credentials/": "machine",
        "iam/security-credentials/machine": json.dumps(credentials),
    }


def scheduler_hosts(machine: Machine) -> Any:
    """What an operator of the scheduler's machine sees, by the key of the console's program."""
    script = (
        "set -a; . /etc/orchgpu/orchgpu-web.env; "
        "exec /opt/orchgpu/bin/ssgm hosts --scheduler $ORCHGPU_SCHEDULER --json"
    )
    command = machine.command("bash", "-c", script)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return found["hosts"] if isinstance(found, dict) else found
