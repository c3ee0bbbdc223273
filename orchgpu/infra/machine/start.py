"""The order of a machine's first start."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TypeVar

from corekit.aio.files import replace_file
from corekit.decode import decode_json_known, encode, encode_json
from corekit.errors import AppError, ErrorCode
from gpu_scheduler.daemon.access.keys import KeyEntry, digest
from gpu_scheduler.protocol.keys import KeyRole, new_key
from orchgpu.infra.deployment import read_prices
from orchgpu.infra.machine import certificates, files
from orchgpu.infra.machine.model import HOST, File, Identity, Interface, Machine, System
from orchgpu.infra.machine.offers import offers_text
from orchgpu.infra.machine.ports import MachineCloud
from orchgpu.infra.template import FILES

#: A scheduler that is replaced gives its address back when its machine is gone.
ADDRESS_S_MAX = 600.0
#: The first scheduler publishes its authority; hosts may start before it.
AUTHORITY_S_MAX = 900.0
READY_S_MAX = 180.0
POLL_S = 3.0
_AGENT_CONTROL = "/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
#: Users of the secret's keys, with their rights.
_KEYS = {
    "orchestrator": KeyRole.REQUESTER,
    "console": KeyRole.OPERATOR,
    "collect": KeyRole.OPERATOR,
    "fleet": KeyRole.OPERATOR,
    "operator": KeyRole.OPERATOR,
}

T = TypeVar("T")
Log = Callable[[str], None]


def start(machine: Machine, cloud: MachineCloud, sts: str, log: Log) -> None:
    """Set the machine up and wait until its programs serve. Raises AppError.

    `sts`: the endpoint to which schedulers send the requests of hosts that join.
    """
    me = cloud.identity()
    if machine.kind == HOST:
        _host(machine, cloud, me, log)
        return
    interface = _own_interface(machine, cloud, me)
    resource = machine.interfaces[interface.id]
    try:
        _scheduler(machine, cloud, me, interface, sts, log)
    except BaseException:
        _signal(machine, cloud, resource, me, log, success=False)
        raise
    _signal(machine, cloud, resource, me, log, success=True)


def _signal(
    machine: Machine, cloud: MachineCloud, resource: str, me: Identity, log: Log, *, success: bool
) -> None:
    """A stack that waits for the machine continues; one that does not refuses the report."""
    try:
        cloud.signal(machine.stack, resource, me.instance, success=success)
    except AppError as error:
        log(f"CloudFormation takes no report of {resource}: {error.message}")


def _host(machine: Machine, cloud: MachineCloud, me: Identity, log: Log) -> None:
    log("waits for the certificate of the scheduler's authority")
    body = _until(
        AUTHORITY_S_MAX,
        lambda: cloud.read_object(machine.state_bucket, machine.authority_key),
        (ErrorCode.NOT_FOUND, ErrorCode.DENIED),
    )
    group = cloud.group_of(me.instance)
    found = files.of_host(machine, me, group, body.decode())
    _serve(machine, me, (*found, *_gateway(me)), log)


def _scheduler(
    machine: Machine,
    cloud: MachineCloud,
    me: Identity,
    interface: Interface,
    sts: str,
    log: Log,
) -> None:
    if interface.instance != me.instance:
        log(f"takes the address {interface.address}")
        _until(
            ADDRESS_S_MAX, lambda: cloud.attach(interface.id, me.instance), (ErrorCode.CONFLICT,)
        )
    system = _system(machine, cloud, log)
    addresses = (interface.address, me.private, "127.0.0.1")
    pem, key = certificates.signed(system.ca, system.ca_key, "ssgmd", addresses)
    own = (
        File(path=files.OFFERS, text=offers_text(machine, read_prices())),
        File(path=f"{files.FOLDER}/ssgmd.pem", text=pem),
        File(path=f"{files.FOLDER}/ssgmd.key", text=key, mode=0o640, group="ssgmd"),
        *(_gateway(me) if machine.gpud else ()),
    )
    found = files.of_scheduler(machine, me, interface.address, system, sts)
    cloud.put_object(machine.state_bucket, machine.authority_key, system.ca.encode())
    _serve(machine, me, (*found, *own), log)


def _own_interface(machine: Machine, cloud: MachineCloud, me: Identity) -> Interface:
    """The interface of this machine's subnet: each scheduler has another one."""
    for one in cloud.interfaces(list(machine.interfaces)):
        if one.subnet == me.subnet:
            return one
    text = f"none of {', '.join(machine.interfaces)} is in {me.subnet}, where this machine is"
    raise AppError(ErrorCode.INVALID, text)


def _system(machine: Machine, cloud: MachineCloud, log: Log) -> System:
    """The stack's secret; an empty one is filled, once among all machines."""
    content = cloud.read_secret(machine.secret)
    if content is None:
        log("makes the keys and the certificate authority of this system")
        cloud.fill_secret(machine.secret, encode_json(new_system(machine.stack)).decode())
        content = cloud.read_secret(machine.secret)
    if content is None:
        raise AppError(ErrorCode.UNAVAILABLE, f"the secret {machine.secret} stays empty")
    return decode_json_known(System, content.encode(), f"the secret {machine.secret}")[0]


def new_system(name: str) -> System:
    """New keys, and a new authority."""
    keys = {user: new_key(user) for user in _KEYS}
    entries = [
        encode(KeyEntry(name=user, role=_KEYS[user], sha256=digest(key), made="first start"))
        for user, key in keys.items()
    ]
    ca, ca_key = certificates.authority(f"{name}-ca")
    return System(
        master=secrets.token_hex(32),
        keys={"ssgmd_keys": 1, "keys": entries},
        ca=ca,
        ca_key=ca_key,
        **keys,
    )


def _gateway(me: Identity) -> tuple[File, File]:
    pem, key = certificates.own(me.instance)
    own = File(path=f"{files.FOLDER}/gpud.key", text=key, mode=0o640, group="gpud")
    return File(path=f"{files.FOLDER}/gpud.pem", text=pem), own


def _serve(machine: Machine, me: Identity, found: Iterable[File], log: Log) -> None:
    """Write the files, start the programs, and wait until each of them serves."""
    names = files.programs(machine)
    units = FILES / "systemd"
    shutil.copyfile(units / "orchgpu.sysusers", _parent("/etc/sysusers.d/orchgpu.conf"))
    _run("systemd-sysusers")
    for file in (*found, *files.of_logs(machine, me, names)):
        _write(file)
    Path(files.LOGS).mkdir(exist_ok=True, parents=True)
    for name in names:
        shutil.copyfile(units / f"{name}.service", _parent(f"/etc/systemd/system/{name}.service"))
    _run("systemctl", "daemon-reload")
    _run("systemctl", "enable", "--now", *names)
    if Path(_AGENT_CONTROL).exists():
        _run(_AGENT_CONTROL, "-a", "fetch-config", "-m", "ec2", "-s", "-c", f"file:{files.AGENT}")
    for name in names:
        log(f"waits for {name}")
        _until(READY_S_MAX, partial(_check_ready, name), (ErrorCode.UNAVAILABLE,))


def _check_ready(name: str) -> None:
    if not Path(f"/run/{name}/ready.json").exists():
        text = f"{name} does not serve; its log is {files.LOGS}/{name}.log"
        raise AppError(ErrorCode.UNAVAILABLE, text)


def _write(file: File) -> None:
    path = _parent(file.path)
    replace_file(path, file.text.encode(), mode=file.mode)
    path.chmod(file.mode)
    if file.group:
        shutil.chown(path, group=file.group)


def _parent(path: str) -> Path:
    found = Path(path)
    found.parent.mkdir(parents=True, exist_ok=True)
    return found


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        text = f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()}"
        raise AppError(ErrorCode.INTERNAL, text)


def _until(limit_s: float, attempt: Callable[[], T], codes: tuple[ErrorCode, ...]) -> T:
    """The result of an attempt that is repeated while it raises one of these codes."""
    end = time.monotonic() + limit_s
    while True:
        try:
            return attempt()
        except AppError as error:
            if error.code not in codes or time.monotonic() > end:
                raise
        time.sleep(POLL_S)
