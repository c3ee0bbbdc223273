"""Ways from functions in a VPC to AWS's services: endpoints, NAT and DNS. Pure."""

from __future__ import annotations

from contract.secrets.stores import call_of
from orchgpu.inspection.model import (
    Answer,
    Call,
    Finding,
    Inspected,
    Refusal,
    Steps,
    Subject,
    good,
    warning,
    wrong,
)
from orchgpu.inspection.network import (
    described,
    groups_of,
    permits,
    prefix_lists,
    route_to,
    subnets_of,
    table_of,
    tables_of,
    unless_absent,
)

#: An address that only a default route has.
_ELSEWHERE = "192.0.2.1"
#: Services that the runner does not call; an orchestrator, or a script, in the same subnets does.
_OTHERS = ("sqs", "sts", "lambda", "logs")
_HTTPS = 443


class AwsEndpoints:
    """The runner needs S3, and the stores of its function's secrets; nothing else of AWS."""

    title = "ways to S3 and other services"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        for inspected in subject.functions:
            if not inspected.subnets:
                continue
            where = f"function {inspected.name}"
            try:
                findings += yield from _of(subject, where, inspected)
            except Refusal as refusal:
                findings += unless_absent(refusal, where)
        return findings


def _of(subject: Subject, where: str, inspected: Inspected) -> Steps[list[Finding]]:
    subnets = yield from subnets_of(inspected)
    groups = yield from groups_of(inspected.groups)
    vpc = str(subnets[0]["VpcId"])
    tables = yield from tables_of(vpc)
    answer = yield described("DescribeVpcEndpoints", "vpc-id", [vpc])
    endpoints = [e for e in answer["VpcEndpoints"] if _state(e) == "available"]
    findings: list[Finding] = []
    for subnet in subnets:
        findings += _s3(subject, where, subnet, tables, endpoints, groups)
    stores = [call_of(one).service for one in inspected.function.references if one.stored]
    findings += _others(subject, where, subnets, tables, endpoints, stores)
    findings += yield from _dns(where, vpc, endpoints)
    return findings or [good(where, "S3 is reached from all its subnets")]


def _state(endpoint: Answer) -> str:
    return str(endpoint.get("State", "available")).lower()


def _s3(
    subject: Subject,
    where: str,
    subnet: Answer,
    tables: list[Answer],
    endpoints: list[Answer],
    groups: list[Answer],
) -> list[Finding]:
    name, region = str(subnet["SubnetId"]), subject.place.region
    table = table_of(tables, name)
    service = f"com.amazonaws.{region}.s3"
    own = [e for e in endpoints if str(e["ServiceName"]).endswith(service)]
    by_gateway = any(
        table is not None and table["RouteTableId"] in e.get("RouteTableIds", ()) for e in own
    )
    by_interface = any(name in e.get("SubnetIds", ()) or e.get("SubnetIds") for e in own)
    if not (by_gateway or by_interface or _nat(table)):
        remedy = (
            f"aws ec2 create-vpc-endpoint --vpc-id {subnet['VpcId']} --service-name {service}"
            f" --route-table-ids {table['RouteTableId'] if table else 'TABLE'}"
        )
        return [wrong(where, f"{name} has no way to S3: no endpoint and no NAT", remedy)]
    if not _may_leave(groups):
        ids = ", ".join(str(group["GroupId"]) for group in groups)
        message = f"no outbound rule of {ids} allows HTTPS to S3"
        return [wrong(where, message, "allow TCP 443 to S3's prefix list, or to 0.0.0.0/0")]
    return []


def _may_leave(groups: list[Answer]) -> bool:
    """A rule for everything, or for a prefix list: S3's, by which a gateway endpoint is named."""
    return any(
        permits(rules, _HTTPS, ["0.0.0.0", "255.255.255.255"], ()) or prefix_lists(rules, _HTTPS)
        for rules in (group.get("IpPermissionsEgress", ()) for group in groups)
    )


def _nat(table: Answer | None) -> bool:
    """A default route that functions can use; that to an internet gateway is not one."""
    route = None if table is None else route_to(table, _ELSEWHERE)
    return route is not None and not route.leads_nowhere


def _others(
    subject: Subject,
    where: str,
    subnets: list[Answer],
    tables: list[Answer],
    endpoints: list[Answer],
    stores: list[str],
) -> list[Finding]:
    """`stores`: services that keep the function's secrets, which the runner calls."""
    names = {str(e["ServiceName"]).rpartition(".")[2] for e in endpoints}
    if all(_nat(table_of(tables, str(subnet["SubnetId"]))) for subnet in subnets):
        return []
    region = subject.place.region
    closed = [name for name in dict.fromkeys(stores) if name not in names]
    if closed:
        services = ", ".join(f"com.amazonaws.{region}.{name}" for name in closed)
        message = f"no way to {', '.join(closed)}, where its secrets are"
        return [wrong(where, message, f"make an interface endpoint {services}, or a NAT gateway")]
    missing = [name for name in _OTHERS if name not in names]
    if not missing:
        return []
    message = (
        f"no way to {', '.join(missing)}: the runner needs none of them, but a script that calls"
        " them, or an orchestrator in these subnets, does"
    )
    remedy = f"only if needed: interface endpoints com.amazonaws.{region}.NAME, or a NAT gateway"
    return [warning(where, message, remedy)]


def _dns(where: str, vpc: str, endpoints: list[Answer]) -> Steps[list[Finding]]:
    attributes = {
        "enableDnsSupport": "EnableDnsSupport",
        "enableDnsHostnames": "EnableDnsHostnames",
    }
    off: list[str] = []
    for name, key in attributes.items():
        arguments = {"VpcId": vpc, "Attribute": name}
        answer = yield Call(service="ec2", operation="DescribeVpcAttribute", arguments=arguments)
        if not answer.get(key, {}).get("Value", True):
            off.append(name)
    interfaces = [e for e in endpoints if e.get("VpcEndpointType") == "Interface"]
    private = any(e.get("PrivateDnsEnabled") for e in interfaces)
    needed = [name for name in off if name == "enableDnsSupport" or private]
    return [
        wrong(
            where,
            f"{name} of {vpc} is off: names of AWS's services are not resolved",
            f"aws ec2 modify-vpc-attribute --vpc-id {vpc} --{_option(name)} Value=true",
        )
        for name in needed
    ]


def _option(name: str) -> str:
    return {"enableDnsSupport": "enable-dns-support"}.get(name, "enable-dns-hostnames")


CHECK = AwsEndpoints()
