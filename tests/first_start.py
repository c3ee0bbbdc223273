"""Machines of a stack in namespaces: a root of their own, and stand-ins for what is not ours.

`python -m tests.first_start cloud|metadata|sts …` are the services; `aws`, `dnf` and `systemctl`
the programs of Amazon Linux that a first start calls.
"""

from __future__ import annotations

import asyncio
import configparser
import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from orchgpu.infra.template import Template
from tests.moto_stacks import IMAGE
from tests.namespaces import Machine

ROOT = Path(__file__).resolve().parents[1]
ACCOUNT, REGION, STACK = "123456789012", "us-east-1", "orchgpu"
BUCKET = f"orchgpu-state-{ACCOUNT}-{REGION}"
CLOUD_PORT, STS_PORT = 5000, 5001
METADATA = "169.254.169.254"
#: Folders of a machine that are its own and empty; /etc and /opt have what this system has.
_EMPTY = ("/var/lib", "/var/log", "/run")
_PROGRAMS = ("aws", "dnf", "systemctl", "python3.11")


def own_root(machine: Machine, endpoints: Mapping[str, str]) -> None:
    """Give a machine a root of its own with the stand-ins; nothing of it is seen outside."""
    script = """set -eu
    mount -t tmpfs tmpfs /mnt
    cp -a /etc /mnt/etc && mount --bind /mnt/etc /etc
    mkdir /mnt/opt /mnt/bin
    for one in /opt/*; do [ -d "$one" ] && mkdir "/mnt$one" && mount --rbind "$one" "/mnt$one"; done
    mount --rbind /mnt/opt /opt
    """
    script += "".join(f"mount -t tmpfs tmpfs {folder}\n" for folder in _EMPTY)
    for program in _PROGRAMS:
        run = f"-m tests.first_start {program}" if program != "python3.11" else ""
        text = f'#!/bin/sh\\nPYTHONPATH={ROOT} exec {sys.executable} {run} "$@"\\n'
        if program == "python3.11":
            text = f'#!/bin/sh\\nexec {sys.executable} "$@"\\n'
        script += f"printf '{text}' > /mnt/bin/{program}; chmod 755 /mnt/bin/{program}\n"
    script += f"printf '%s' '{json.dumps(endpoints)}' > /mnt/endpoints.json\n"
    machine.must("bash", "-c", script)
    machine.must("ip", "addr", "add", f"{METADATA}/32", "dev", "lo")


def user_data(template: Template, resource: str, values: Mapping[str, Any]) -> str:
    """The user data of a launch template. `values`: of parameters, resources, attributes."""
    properties = template.content["Resources"][resource]["Properties"]
    data = properties["LaunchTemplateData"]["UserData"]["Fn::Base64"]
    return str(_Evaluation(template, values).value(data))


class _Evaluation:
    """Functions of CloudFormation, as far as user data has them."""

    def __init__(self, template: Template, values: Mapping[str, Any]) -> None:
        self._template = template
        self._values = values

    def value(self, one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        [(function, given)] = one.items()
        if function == "Ref":
            return self._values[given]
        if function == "Fn::GetAtt":
            return self._values[".".join(given)]
        if function == "Fn::If":
            return self.value(given[1] if self._holds(given[0]) else given[2])
        if function == "Fn::Join":
            return given[0].join(self.value(part) for part in given[1])
        assert function == "Fn::Sub", function
        text, own = given if isinstance(given, list) else (given, {})
        named = {name: self.value(inner) for name, inner in own.items()}
        return re.sub(
            r"\$\{([A-Za-z0-9:.]+)\}",
            lambda match: str(named[match[1]] if match[1] in named else self._values[match[1]]),
            text,
        )

    def _holds(self, condition: str) -> bool:
        left, right = self._template.content["Conditions"][condition]["Fn::Equals"]
        return bool(self.value(left) == right)


# --- services


def serve_cloud(folder: str, address: str, scheduler: str, network: str) -> None:
    """moto with what a stack has before its machines start; their facts go to `facts.json`."""
    import boto3
    from moto.server import ThreadedMotoServer

    signals_into(Path(folder, "signals"))
    server = ThreadedMotoServer(ip_address=address, port=CLOUD_PORT, verbose=False)
    server.start()
    where = Path(folder)
    arguments = {
        "endpoint_url": f"http://{address}:{CLOUD_PORT}",
        "region_name": REGION,
        "aws_access_key_id": "AKIDROLE",
        "aws_secret_access_key": "secret",
    }
    ec2 = boto3.client("ec2", **arguments)
    vpc = ec2.create_vpc(CidrBlock=network)["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=network)["Subnet"]["SubnetId"]
    own = ec2.create_network_interface(SubnetId=subnet, PrivateIpAddress=scheduler)
    made = ec2.run_instances(ImageId=IMAGE, SubnetId=subnet, MinCount=2, MaxCount=2)["Instances"]
    s3 = boto3.client("s3", **arguments)
    s3.create_bucket(Bucket=BUCKET)
    for bundle in where.glob("*.tar"):
        s3.upload_file(str(bundle), BUCKET, f"infra/{STACK}/{bundle.name}")
    boto3.client("secretsmanager", **arguments).create_secret(Name=f"{STACK}/system")
    table = boto3.client("dynamodb", **arguments)
    keys = {"log": "HASH", "item": "RANGE"}
    table.create_table(
        TableName=STACK,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": n, "AttributeType": "S"} for n in keys],
        KeySchema=[{"AttributeName": n, "KeyType": kind} for n, kind in keys.items()],
    )
    facts = {
        "subnet": subnet,
        "interface": own["NetworkInterface"]["NetworkInterfaceId"],
        "instances": [one["InstanceId"] for one in made],
    }
    (where / "facts.new").write_text(json.dumps(facts))
    (where / "facts.new").rename(where / "facts.json")
    threading.Event().wait()


def signals_into(file: Path) -> None:
    """Give moto the call that it lacks, with which a machine reports to CloudFormation."""
    from moto.cloudformation.responses import CloudFormationResponse
    from moto.core.responses import EmptyResult

    def signal_resource(self: Any) -> Any:
        names = ("StackName", "LogicalResourceId", "UniqueId", "Status")
        with file.open("a") as opened:
            opened.write(" ".join(self._get_param(name) for name in names) + "\n")
        return EmptyResult()

    CloudFormationResponse.signal_resource = signal_resource  # type: ignore[attr-defined]


def serve_metadata(items: str, ready: str) -> None:
    from tests.instance_metadata import serving_metadata

    with serving_metadata((METADATA, 80)) as (service, _):
        service.items = json.loads(items)
        Path(ready).write_text("true")
        threading.Event().wait()


def serve_sts(arn: str) -> None:
    from tests.sts import serving_sts

    async def serve() -> None:
        async with serving_sts(STS_PORT) as (sts, _):
            sts.arn = arn
            await asyncio.Event().wait()

    asyncio.run(serve())


# --- programs of Amazon Linux


def aws(arguments: list[str]) -> None:
    """`aws s3 cp --no-progress s3://BUCKET/KEY FILE`, the only command of user data."""
    import boto3

    assert arguments[:3] == ["s3", "cp", "--no-progress"], arguments
    bucket, _, key = arguments[3].removeprefix("s3://").partition("/")
    boto3.client("s3").download_file(bucket, key, arguments[4])


def dnf(arguments: list[str]) -> None:
    assert arguments[:3] == ["install", "--quiet", "--assumeyes"], arguments
    assert "python3.11" in arguments


def systemctl(arguments: list[str]) -> None:
    """Start the programs of units as systemd does: settings, folders, words of the command."""
    if arguments == ["daemon-reload"]:
        return
    assert arguments[:2] == ["enable", "--now"], arguments
    endpoints = json.loads(Path("/mnt/endpoints.json").read_text())
    for name in arguments[2:]:
        unit = configparser.ConfigParser(interpolation=None, delimiters="=", strict=False)
        unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
        unit.read(f"/etc/systemd/system/{name}.service")
        service = unit["Service"]
        settings = dict(
            line.split("=", 1) for line in Path(service["EnvironmentFile"]).read_text().splitlines()
        )
        settings = {key: value.strip('"') for key, value in settings.items()}
        state = Path("/var/lib", service["StateDirectory"])
        for folder in (state, Path("/run", service["RuntimeDirectory"])):
            folder.mkdir(mode=0o700, exist_ok=True)
        program = service["ExecStart"].replace("\\\n", " ").replace("%S", "/var/lib")
        log = unit_log(name)
        with log.open("ab") as opened:
            subprocess.Popen(
                list(_words(program.replace("%t", "/run"), settings)),
                cwd=state,
                env={**settings, **endpoints, "PATH": os.environ["PATH"], "HOME": "/root"},
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
            )


def unit_log(name: str) -> Path:
    """The file of a drop-in's StandardOutput."""
    text = Path(f"/etc/systemd/system/{name}.service.d/logs.conf").read_text()
    found = re.search(r"^StandardOutput=append:(.+)$", text, re.MULTILINE)
    assert found is not None
    return Path(found[1])


def _words(line: str, settings: Mapping[str, str]) -> list[str]:
    found: list[str] = []
    for word in shlex.split(line):
        if re.fullmatch(r"\$[A-Z_]+", word):
            found += shlex.split(settings[word[1:]])
        else:
            found.append(re.sub(r"\$\{([A-Z_]+)\}", lambda match: settings[match[1]], word))
    return found


def main(arguments: list[str]) -> None:
    name, *rest = arguments
    services: dict[str, Callable[..., None]] = {
        "cloud": serve_cloud,
        "metadata": serve_metadata,
        "sts": serve_sts,
    }
    if name in services:
        services[name](*rest)
        return
    {"aws": aws, "dnf": dnf, "systemctl": systemctl}[name](rest)


if __name__ == "__main__":
    main(sys.argv[1:])
