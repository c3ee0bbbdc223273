"""Ways from functions in a VPC to the hosts' gateways: routes, egress and ingress rules. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from orchgpu.inspection.model import (
    Check,
    Finding,
    HostGateway,
    Inspected,
    Read,
    Subject,
    good,
    unknown,
    wrong,
)
from orchgpu.inspection.network import groups_of, in_vpc, network_of, permits


def _gateways(subject: Subject, read: Read) -> Iterator[Finding]:
    inside = [f for f in subject.functions if f.subnets and f.function.queued]
    if inside and not subject.gateways:
        remedy = "name the scheduler (--scheduler), and start hosts"
        yield unknown("hosts", "no gateway is known", remedy)
    for inspected in inside:
        for gateway in subject.gateways:
            where = f"{inspected.where} → {gateway.host}"
            if not gateway.address:
                remedy = "give gpud an IP address: --advertise"
                yield unknown(where, "its name could not be resolved here", remedy)
            elif not gateway.address.startswith("127."):
                faults = list(_faults(inspected, gateway, read))
                yield from (wrong(where, message, remedy) for message, remedy in faults)
                if not faults:
                    yield good(where, f"routes and rules allow {gateway.address}:{gateway.port}")
            elif subject.place.local:
                yield good(where, "on this machine, as are functions")
            else:
                message = f"it advertises {gateway.address}, an address of its own machine"
                yield wrong(where, message, "set GPUD_ADVERTISE to one that functions reach")


def _faults(inspected: Inspected, gateway: HostGateway, read: Read) -> Iterator[tuple[str, str]]:
    address, port, own = gateway.address, gateway.port, inspected.groups
    network = network_of(inspected, read)
    for name, _, route in network.routes(address):
        if route is None:
            yield f"{name} has no usable route to {address}", "add one: peering, gateway, VPN"
    named = {"addresses.private-ip-address": address}
    found = in_vpc(read, "DescribeNetworkInterfaces", "NetworkInterfaces", network.vpc, **named)
    members = [str(group["GroupId"]) for one in found for group in one.get("Groups", ())]
    out = [rule for group in network.groups for rule in group.get("IpPermissionsEgress", ())]
    if not permits(out, port, [IPv4Network(address)], members):
        message = f"no outbound rule of {', '.join(own)} allows TCP {address}:{port}"
        yield message, _command("egress", own[0], port, f"IpRanges=[{{CidrIp={address}/32}}]")
    into = [rule for group in groups_of(members, read) for rule in group.get("IpPermissions", ())]
    if members and not permits(into, port, network.ranges, own):
        message = f"no inbound rule of {', '.join(members)} allows TCP {port} from the function"
        peer = f"UserIdGroupPairs=[{{GroupId={own[0]}}}]"
        yield message, _command("ingress", members[0], port, peer)


def _command(way: str, group: str, port: int, peer: str) -> str:
    rule = f"IpProtocol=tcp,FromPort={port},ToPort={port},{peer}"
    return f"aws ec2 authorize-security-group-{way} --group-id {group} --ip-permissions '{rule}'"


CHECK = Check(title="ways to the gateways", examine=_gateways)
