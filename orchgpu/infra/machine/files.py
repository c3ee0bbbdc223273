"""The files of a machine: settings of its programs, rules, logs. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from orchgpu.infra.machine.model import HOST, File, Identity, Machine, System

FOLDER = "/etc/orchgpu"
CA = f"{FOLDER}/ca.pem"
OFFERS = f"{FOLDER}/offers.yaml"
LOGS = "/var/log/orchgpu"
AGENT = "/opt/aws/amazon-cloudwatch-agent/etc/orchgpu.json"
_UNITS = "/etc/systemd/system"
_SOCKET, _HTTP, _GATEWAY, _CONSOLE = 4700, 4780, 4711, 4790
#: Programs of a scheduler's machine, in the order of their starts; another one needs its unit in
#: infra/systemd, its settings in `_environments`, and a role in the template.
SCHEDULER_PROGRAMS = ("ssgmd", "orchgpu", "orchgpu-collect", "orchgpu-web", "orchgpu-fleet")
HOST_PROGRAM = "gpud"
#: Seconds of gpud's drain: as long as a spot interruption leaves.
_DRAIN_S = 120


def programs(machine: Machine) -> tuple[str, ...]:
    """The units that a machine starts."""
    if machine.kind == HOST:
        return (HOST_PROGRAM,)
    return (*SCHEDULER_PROGRAMS, *((HOST_PROGRAM,) if machine.gpud else ()))


def of_scheduler(
    machine: Machine, me: Identity, address: str, system: System, sts: str
) -> Iterator[File]:
    """Of a machine that schedules. `address`: its own among the schedulers'; `sts`: endpoint."""
    roles = "\n".join(f'[[role]]\narn = "{arn}"' for arn in machine.host_roles)
    rules = f'server = "{machine.stack}"\nsts = ["{sts}"]\n{roles}\n'
    yield File(path=CA, text=system.ca)
    yield File(path=f"{FOLDER}/roles.toml", text=rules)
    environments = _environments(machine, address, system)
    for program, variables in environments.items():
        yield _environment(program, machine, variables)
    if machine.gpud:
        yield from of_host(machine, me, "", "")


def _environments(machine: Machine, address: str, system: System) -> dict[str, dict[str, str]]:
    secret = f"secretsmanager:{machine.secret}"
    client = {
        "ORCHGPU_SCHEDULER": machine.endpoints(_SOCKET),
        "ORCHGPU_SCHEDULER_CA": CA,
        "ORCHGPU_METRICS": "",
    }
    return {
        "ssgmd": {
            "SSGMD_LISTEN": f"0.0.0.0:{_SOCKET}",
            "SSGMD_HTTP": f"0.0.0.0:{_HTTP}",
            "SSGMD_ADVERTISE": f"{address}:{_SOCKET}",
            "SSGMD_ADVERTISE_HTTP": f"{address}:{_HTTP}",
            "SSGMD_LOG": f"dynamodb://{machine.table}/main?region={machine.region}",
            "SSGMD_STANDBY": "yes",
            "SSGMD_MASTER_KEY": f"{secret}#master",
            "SSGMD_KEYS": f"{secret}#keys",
            "SSGMD_JOIN_IAM": f"{FOLDER}/roles.toml",
            "SSGMD_CAPACITY": OFFERS,
            "SSGMD_TLS_CERT": f"{FOLDER}/ssgmd.pem",
            "SSGMD_TLS_KEY": f"{FOLDER}/ssgmd.key",
        },
        "orchgpu": {**client, "ORCHGPU_SCHEDULER_KEY": system.orchestrator},
        "orchgpu-web": {
            **client,
            "ORCHGPU_SCHEDULER_KEY": system.console,
            "ORCHGPU_WEB_LISTEN": f"127.0.0.1:{_CONSOLE}",
            "ORCHGPU_WEB_TLS": "",
            "ORCHGPU_HISTORY": "/var/lib/orchgpu-collect/history.sqlite",
        },
        "orchgpu-collect": {
            "ORCHGPU_SCHEDULER_HTTP": machine.endpoints(_HTTP),
            "ORCHGPU_SCHEDULER_CA": CA,
            "ORCHGPU_SCHEDULER_KEY": system.collect,
            "ORCHGPU_COLLECT_LIMITS": "",
        },
        "orchgpu-fleet": {
            "ORCHGPU_SCHEDULER": machine.endpoints(_SOCKET),
            "ORCHGPU_SCHEDULER_CA": CA,
            "ORCHGPU_SCHEDULER_KEY": system.fleet,
            "ORCHGPU_FLEET_OFFERS": OFFERS,
            "ORCHGPU_FLEET_PROVIDER": "auto-scaling",
        },
    }


def of_host(machine: Machine, me: Identity, group: str, authority: str) -> Iterator[File]:
    """Of a GPU host. `group`: that it is of; `authority`: "" where the file is there already."""
    if authority:
        yield File(path=CA, text=authority)
    reached = me.public if machine.public and me.public else me.private
    fleet = f"--ephemeral --join-iam {machine.stack} --drain-s {_DRAIN_S}"
    variables = {
        "GPUD_HOST_ID": me.instance,
        "GPUD_SCHEDULER": machine.endpoints(_SOCKET),
        "GPUD_LISTEN": f"0.0.0.0:{_GATEWAY}",
        "GPUD_ADVERTISE": f"{reached}:{_GATEWAY}",
        "GPUD_CPUS": "",
        "GPUD_MEMORY_MIB": "",
        "GPUD_DATA": "",
        "GPUD_MIDDLEWARES": "",
        "GPUD_TLS": f'"--tls-cert {FOLDER}/gpud.pem --tls-key {FOLDER}/gpud.key"',
        "GPUD_FLEET": f'"{fleet}"',
        "GPUD_METRICS": "",
        "ORCHGPU_SCHEDULER_CA": CA,
    }
    yield _environment(HOST_PROGRAM, machine, variables)
    if group and machine.hook:
        completes = (
            "[Service]\nExecStopPost=-/usr/bin/aws autoscaling complete-lifecycle-action"
            f" --region {machine.region} --auto-scaling-group-name {group}"
            f" --lifecycle-hook-name {machine.hook} --instance-id {me.instance}"
            " --lifecycle-action-result CONTINUE\n"
        )
        yield File(path=f"{_UNITS}/{HOST_PROGRAM}.service.d/lifecycle.conf", text=completes)


def _environment(program: str, machine: Machine, variables: Mapping[str, str]) -> File:
    ambient = {"AWS_DEFAULT_REGION": machine.region, "ORCHGPU_TIME_SCALE": "1"}
    lines = [f"{name}={value}" for name, value in {**variables, **ambient}.items()]
    # systemd reads it before the program gets its user
    return File(path=f"{FOLDER}/{program}.env", text="\n".join(lines) + "\n", mode=0o600)


def of_logs(machine: Machine, me: Identity, names: tuple[str, ...]) -> Iterator[File]:
    """Logs in files, and CloudWatch's agent that follows them."""
    for name in names:
        text = f"[Service]\nStandardOutput=append:{LOGS}/{name}.log\nStandardError=inherit\n"
        yield File(path=f"{_UNITS}/{name}.service.d/logs.conf", text=text)
    rotation = "daily\n  size 20M\n  rotate 2\n  copytruncate\n  missingok"
    yield File(path="/etc/logrotate.d/orchgpu", text=f"{LOGS}/*.log {{\n  {rotation}\n}}\n")
    followed = [
        {
            "file_path": path,
            "log_group_name": machine.logs,
            "log_stream_name": f"{me.instance}/{name}",
        }
        for name, path in (
            *((name, f"{LOGS}/{name}.log") for name in names),
            ("start", "/var/log/cloud-init-output.log"),
        )
    ]
    config = {"logs": {"logs_collected": {"files": {"collect_list": followed}}}}
    yield File(path=AGENT, text=json.dumps(config, indent=1) + "\n")
