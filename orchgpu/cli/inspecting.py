"""The subject of `doctor --aws`, and its findings."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from corekit.errors import AppError, ErrorCode
from corekit.net.addresses import parse_address
from corekit.values import Value
from fdl.model import Document, Function
from fdl.plan.groups import deployed as deployed_functions
from fdl.plan.placeholders import at_place
from fdl.plan.resources import DeployTarget
from gpu_scheduler.client.access import find_access
from gpu_scheduler.model import Health, HostState
from gpu_scheduler.protocol.answers import HostView
from orchgpu.cli.definition.target import declared_address
from orchgpu.cloud_services import Address
from orchgpu.deploy.files import read_document
from orchgpu.inspection.model import (
    Fetch,
    Finding,
    Gateway,
    Inspected,
    Refusal,
    Subject,
    examined,
    performed,
    unknown,
)
from orchgpu.inspection.registry import checks
from orchgpu.inspection.subject import BOTO3_FILE, declared, deployed
from orchgpu.jobs.cloud import JobCloud
from orchgpu.jobs.provider import provider

_VERSION = re.compile(r"^__version__ = ['\"]([0-9.]+)['\"]", re.MULTILINE)


class Options(Value):
    """The parts of a command line that choose the subject."""

    file: Path | None
    names: tuple[str, ...]
    scheduler: str | None  #: its address, where one is known
    hosts: Sequence[HostView]  #: of the scheduler, () when it does not answer
    orchestrator_role: str


def inspect(options: Options, cloud: JobCloud) -> Iterator[tuple[str, Finding]]:
    """The title of each check with its findings, as they come."""
    # boto3 is slow to import, and only this needs it
    from orchgpu.adapters.aws.endpoints import ClientSettings, resolve
    from orchgpu.adapters.aws.inspection import Reader

    document = None if options.file is None else read_document(options.file)
    address = Address() if document is None else declared_address(document)
    with provider().deploy_cloud(Address(), address) as target:
        place = target.cloud.place

    def settings(service: str) -> ClientSettings:
        found = resolve(service)
        if found.local:
            return found  # the definition's region and profile are those of AWS
        return resolve(service, region=address.region, profile=address.profile)

    with closing(Reader(settings)) as reader:
        functions: list[Inspected] = []
        if document is not None and options.file is not None:
            functions += _declared(options, document, place, reader)
        else:
            for name in options.names or cloud.served():
                try:
                    functions.append(performed(deployed(cloud.function(name)), reader))
                except Refusal as refusal:
                    yield "functions", unknown(refusal, f"function {name}")
        subject = _subject(options, place, cloud, functions)
        for check in checks().values():
            for finding in examined(check, subject, reader):
                yield check.title, finding


def _declared(
    options: Options, document: Document, place: DeployTarget, fetch: Fetch
) -> list[Inspected]:
    """The functions of a definition, or those of them that are named."""
    found = [
        at_place(f, place)
        for f in deployed_functions(document)
        if f.name in options.names or not options.names
    ]
    if missing := set(options.names) - {function.name for function in found}:
        raise AppError(
            ErrorCode.NOT_FOUND, f"{options.file} has no function {', '.join(sorted(missing))}"
        )
    folder = Path() if options.file is None else options.file.parent
    return [
        performed(declared(function, place, shipped_boto3(function, folder)), fetch)
        for function in found
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


def _subject(
    options: Options, place: DeployTarget, cloud: JobCloud, functions: list[Inspected]
) -> Subject:
    up = [host for host in options.hosts if host.state is HostState.UP]
    devices = [view.device for host in up for view in host.devices]
    scheduler = options.scheduler or ""
    return Subject(
        place=place,
        caller=cloud.identity()[0].name,
        functions=tuple(functions),
        gateways=tuple(gateway_of(host.host, host.gateway) for host in up if host.gateway),
        devices=sum(one.health is Health.OK for one in devices) if options.hosts else None,
        scheduler=scheduler,
        scheduler_address=address_of(parse_address(scheduler)[0]) if scheduler else "",
        tls=find_access().ca is not None,
        orchestrator_role=options.orchestrator_role,
    )


def gateway_of(host: str, gateway: str) -> Gateway:
    """The gateway of a host, with the address that its name has here."""
    name, port = parse_address(gateway)
    return Gateway(host=host, name=name, address=address_of(name), port=int(port))


def address_of(name: str) -> str:
    """The IPv4 address of a name; "" where it has none here."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ""
    return str(found[0][4][0]) if found else ""
