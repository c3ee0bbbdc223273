"""Ways from functions in a VPC to the hosts' gateways: routes, egress and ingress rules. Pure."""

from __future__ import annotations

from orchgpu.inspection.model import (
    Answer,
    Finding,
    Gateway,
    Inspected,
    Refusal,
    Steps,
    Subject,
    good,
    not_known,
    unknown,
    wrong,
)
from orchgpu.inspection.network import (
    first_and_last,
    groups_of,
    interface_at,
    permits,
    route_to,
    subnets_of,
    table_of,
    tables_of,
    unless_absent,
)


class Gateways:
    """Each function that gets devices, to each host that is up."""

    title = "ways to the gateways"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        inside = [one for one in subject.functions if one.subnets and one.function.queued]
        if inside and not subject.gateways:
            remedy = "name the scheduler (--scheduler), and start hosts"
            return [not_known("hosts", "no gateway is known", remedy)]
        for inspected in inside:
            for gateway in subject.gateways:
                where = f"function {inspected.name} → {gateway.host}"
                if subject.place.local and gateway.address.startswith("127."):
                    findings.append(good(where, "on this machine, as are functions"))
                    continue
                try:
                    findings += yield from _way(where, inspected, gateway)
                except Refusal as refusal:
                    findings += unless_absent(refusal, where)
        return findings


def _way(where: str, inspected: Inspected, gateway: Gateway) -> Steps[list[Finding]]:
    if not gateway.address:
        message = f"{gateway.name} could not be resolved here"
        return [not_known(where, message, "give gpud an IP address: --advertise")]
    if gateway.address.startswith("127."):
        message = f"{gateway.host} advertises {gateway.address}, an address of its own machine"
        return [wrong(where, message, "set GPUD_ADVERTISE to an address that functions reach")]
    subnets = yield from subnets_of(inspected)
    groups = yield from groups_of(inspected.groups)
    vpc = str(subnets[0]["VpcId"])
    blocked = yield from _blocked_routes(subnets, vpc, gateway)
    findings = [wrong(where, message, _route_remedy(gateway)) for message in blocked]
    target = yield from interface_at(gateway.address, [vpc])
    members = _groups(target)
    if not _leaves(groups, gateway, members):
        named = ", ".join(inspected.groups)
        message = f"no outbound rule of {named} allows TCP {gateway.address}:{gateway.port}"
        remedy = _rule_command("egress", inspected.groups[0], gateway, f"{gateway.address}/32")
        findings.append(wrong(where, message, remedy))
    if isinstance(target, Refusal):
        findings.append(unknown(target, where))
    elif target is not None:
        findings += yield from _entry(where, inspected, gateway, subnets, members)
    end = "a host outside the VPC" if target is None else f"{gateway.address}:{gateway.port}"
    return findings or [good(where, f"routes and rules lead to {end}")]


def _leaves(groups: list[Answer], gateway: Gateway, members: list[str]) -> bool:
    return any(
        permits(group.get("IpPermissionsEgress", ()), gateway.port, [gateway.address], members)
        for group in groups
    )


def _groups(target: Answer | Refusal | None) -> list[str]:
    """The security groups of a network interface."""
    if target is None or isinstance(target, Refusal):
        return []
    return [str(group["GroupId"]) for group in target.get("Groups", ())]


def _blocked_routes(subnets: list[Answer], vpc: str, gateway: Gateway) -> Steps[list[str]]:
    tables = yield from tables_of(vpc)
    blocked: list[str] = []
    for subnet in subnets:
        name = str(subnet["SubnetId"])
        table = table_of(tables, name)
        route = None if table is None else route_to(table, gateway.address)
        if route is None:
            blocked.append(f"{name} has no route to {gateway.address}")
        elif route.leads_nowhere:
            kind = f"{route.kind} {route.target}"
            blocked.append(f"the route of {name} to {gateway.address} ({kind}) cannot carry it")
    return blocked


def _entry(
    where: str,
    inspected: Inspected,
    gateway: Gateway,
    subnets: list[Answer],
    members: list[str],
) -> Steps[list[Finding]]:
    """The inbound rules of the host's groups."""
    groups = yield from groups_of(members)
    sources = [address for subnet in subnets for address in first_and_last(subnet)]
    for group in groups:
        rules = group.get("IpPermissions", ())
        if permits(rules, gateway.port, sources, inspected.groups):
            return []
    message = (
        f"no inbound rule of {', '.join(members)} allows TCP {gateway.port} from the function's"
        " group or subnets"
    )
    remedy = _rule_command("ingress", members[0], gateway, inspected.groups[0])
    return [wrong(where, message, remedy)]


def _route_remedy(gateway: Gateway) -> str:
    return (
        f"add a route to {gateway.address} (peering, transit gateway, VPN) to the subnet's table;"
        " an internet gateway serves no function"
    )


def _rule_command(way: str, group: str, gateway: Gateway, peer: str) -> str:
    """The command that adds the missing rule."""
    port = gateway.port
    by_group = peer.startswith("sg-")
    other = (
        f"UserIdGroupPairs=[{{GroupId={peer}}}]" if by_group else f"IpRanges=[{{CidrIp={peer}}}]"
    )
    rule = f"IpProtocol=tcp,FromPort={port},ToPort={port},{other}"
    return f"aws ec2 authorize-security-group-{way} --group-id {group} --ip-permissions '{rule}'"


CHECK = Gateways()
