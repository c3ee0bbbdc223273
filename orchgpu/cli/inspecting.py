"""The subject of `doctor --aws`, and its findings."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_address
from fdl.model import Document, Function
from fdl.plan.groups import deployed as deployed_functions
from fdl.plan.placeholders import at_place
from fdl.plan.resources import DeployTarget
from gpu_scheduler.model import Health, HostState
from gpu_scheduler.protocol.answers import HostView
from orchgpu.cli.definition.target import declared_address, stack_of
from orchgpu.cloud_services import Address
from orchgpu.core.runs.workflow import Workflow
from orchgpu.deploy.files import read_document
from orchgpu.deploy.on_stack import in_network
from orchgpu.inspection.checks import installed
from orchgpu.inspection.model import (
    Finding,
    HostGateway,
    Inspected,
    Read,
    Subject,
    examined,
    refused,
)
from orchgpu.inspection.subject import BOTO3_FILE, declared, deployed
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.provider import provider

_VERSION = re.compile(r"^__version__ = ['\"]([0-9.]+)['\"]", re.MULTILINE)


def inspect(
    cloud: JobCloud,
    file: Path | None,
    names: tuple[str, ...],
    hosts: Sequence[HostView],
    orchestrator_role: str,
) -> Iterator[tuple[str, Finding]]:
    """The title of each check with its findings, as they come.

    `hosts`: of the scheduler, () when it does not answer.
    """
    document = None if file is None else read_document(file)
    address = Address() if document is None else declared_address(document)
    with provider().deploy_cloud(Address(), address) as target:
        place, read = target.cloud.place, target.read
        functions: list[Inspected] = []
        if document is not None and file is not None:
            if (stack := stack_of(target)) is not None:
                document = in_network(document, stack)
            functions += _declared(file, names, document, place, read)
        else:
            workflows = cloud.workflows()
            steps = {step.name: one for one in workflows for step in one.steps}
            for name in _functions_of(names, workflows) or cloud.served():
                try:
                    functions.append(deployed(cloud.function(name), read, steps.get(name)))
                except AppError as error:
                    yield "functions", refused(error, f"function {name}")
        up = [host for host in hosts if host.state is HostState.UP]
        devices = [view.device for host in up for view in host.devices]
        subject = Subject(
            place=place,
            caller=cloud.identity()[0].name,
            functions=tuple(functions),
            gateways=tuple(gateway_of(host.host, host.gateway) for host in up if host.gateway),
            devices=sum(one.health is Health.OK for one in devices) if hosts else None,
            orchestrator_role=orchestrator_role,
        )
        for check in installed().values():
            for finding in examined(check, subject, read):
                yield check.title, finding


def _functions_of(names: tuple[str, ...], workflows: Sequence[Workflow]) -> list[str]:
    """The functions, and the steps of the workflows, with these names, each once."""
    steps = {one.name: [step.name for step in one.steps] for one in workflows}
    return list(dict.fromkeys(one for name in names for one in steps.get(name, [name])))


def _declared(
    file: Path, names: tuple[str, ...], document: Document, place: DeployTarget, read: Read
) -> list[Inspected]:
    wanted = set(names)
    found = [
        at_place(f, place)
        for f in deployed_functions(document)
        if not names or wanted & {f.name, f.workflow}
    ]
    if missing := wanted - {
        name for function in found for name in (function.name, function.workflow)
    }:
        raise AppError(ErrorCode.NOT_FOUND, f"{file} has no function {', '.join(sorted(missing))}")
    return [
        declared(function, place, shipped_boto3(function, file.parent), read) for function in found
    ]


def shipped_boto3(function: Function, folder: Path) -> str:
    """The version of the boto3 in `extra_payload`; "" = there is none."""
    if function.function.extra_payload is None:
        return ""
    file = folder / function.function.extra_payload / BOTO3_FILE
    try:
        found = _VERSION.search(file.read_text())
    except OSError:
        return ""
    return found[1] if found is not None else "0"


def gateway_of(host: str, gateway: str) -> HostGateway:
    """The gateway of a host, with the IPv4 address that its name has here, "" for none."""
    name, port = parse_address(gateway)
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        found = []
    return HostGateway(host=host, address=str(found[0][4][0]) if found else "", port=int(port))
