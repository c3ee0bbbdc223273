"""Ways from functions in a VPC to S3, which the runner always needs. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchgpu.inspection.model import Check, Finding, Inspected, Read, Subject, good, wrong
from orchgpu.inspection.network import in_vpc, network_of

#: An address that only a default route has.
_ELSEWHERE = "192.0.2.1"


def _ways(subject: Subject, read: Read) -> Iterator[Finding]:
    for inspected in subject.functions:
        if inspected.subnets:
            yield from _way(subject.place.region, inspected, read)


def _way(region: str, inspected: Inspected, read: Read) -> Iterator[Finding]:
    """Each subnet needs a gateway endpoint in its route table, an interface endpoint, or NAT."""
    network, service = network_of(inspected, read), f"com.amazonaws.{region}.s3"
    listed = in_vpc(read, "DescribeVpcEndpoints", "VpcEndpoints", network.vpc, service_name=service)
    endpoints = [e for e in listed if str(e.get("State", "available")).lower() == "available"]
    tables = {table for endpoint in endpoints for table in endpoint.get("RouteTableIds", ())}
    if not any(endpoint.get("SubnetIds") for endpoint in endpoints):
        closed = [
            (name, str(table.get("RouteTableId", "TABLE")))
            for name, table, nat in network.routes(_ELSEWHERE)
            if nat is None and table.get("RouteTableId") not in tables
        ]
        for name, table in closed:
            remedy = (
                f"aws ec2 create-vpc-endpoint --vpc-id {network.vpc} --service-name {service}"
                f" --route-table-ids {table}"
            )
            message = f"{name} has no way to S3: no endpoint and no NAT"
            yield wrong(inspected.where, message, remedy)
        if closed:
            return
    yield good(inspected.where, "S3 is reached from all its subnets")


CHECK = Check(title="ways to S3", examine=_ways)
