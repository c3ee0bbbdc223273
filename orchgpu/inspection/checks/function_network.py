"""Subnets and security groups of functions: they exist, in one VPC, where the hosts are. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from corekit.errors import AppError, ErrorCode
from orchgpu.inspection.model import Check, Finding, Inspected, Read, Subject, good, refused, wrong
from orchgpu.inspection.network import groups_of, subnets_of

_CORRECT = "correct vpc.SubnetIds and vpc.SecurityGroupIds of the definition"


def _networks(subject: Subject, read: Read) -> Iterator[Finding]:
    for inspected in subject.functions:
        if inspected.subnets:
            yield _inside(inspected, read)
        else:
            yield _outside(subject, inspected)


def _inside(inspected: Inspected, read: Read) -> Finding:
    where = inspected.where
    try:
        parts = [*subnets_of(inspected, read), *groups_of(inspected.groups, read)]
    except AppError as error:
        absent = error.code is ErrorCode.NOT_FOUND
        return wrong(where, error.message, _CORRECT) if absent else refused(error, where)
    vpcs = sorted({str(part["VpcId"]) for part in parts})
    if len(vpcs) > 1:
        message = f"its subnets and security groups are in several VPCs: {', '.join(vpcs)}"
        return wrong(where, message, _CORRECT)
    zones = sorted({str(part["AvailabilityZone"]) for part in parts if "AvailabilityZone" in part})
    return good(where, f"{vpcs[0]}, zones {', '.join(zones)}")


def _outside(subject: Subject, inspected: Inspected) -> Finding:
    private = [g.host for g in subject.gateways if g.address and ip_address(g.address).is_private]
    if not inspected.function.queued or subject.place.local or not private:
        return good(inspected.where, "in no VPC: it reaches public addresses")
    message = f"in no VPC, but hosts have private addresses: {', '.join(private)}"
    remedy = "name private subnets and a security group in the definition: vpc: {SubnetIds: …}"
    return wrong(inspected.where, message, remedy)


CHECK = Check(title="networks of functions", examine=_networks)
