"""Routes, security groups and addresses of a VPC, as EC2 describes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network

from corekit.values import Value
from orchgpu.inspection.model import (
    Answer,
    Call,
    Finding,
    Inspected,
    Reason,
    Refusal,
    Steps,
    attempted,
    unknown,
)

#: Keys of a route that name its target, with the words for people.
_TARGETS = {
    "GatewayId": "gateway",
    "NatGatewayId": "NAT gateway",
    "TransitGatewayId": "transit gateway",
    "VpcPeeringConnectionId": "peering connection",
    "NetworkInterfaceId": "network interface",
    "InstanceId": "instance",
    "LocalGatewayId": "local gateway",
    "CarrierGatewayId": "carrier gateway",
    "CoreNetworkArn": "core network",
}


class Route(Value):
    """The route that a packet takes."""

    kind: str  #: as in `_TARGETS`; "local" inside the VPC
    target: str
    table: str  #: id of the route table
    usable: bool  #: False: a black hole

    @property
    def leads_nowhere(self) -> bool:
        """True for an internet gateway: a function in a VPC never has a public address."""
        return not self.usable or self.target.startswith("igw-")


def described(operation: str, name: str, values: Iterable[str]) -> Call:
    """A Describe call of EC2 with one filter."""
    filters = [{"Name": name, "Values": sorted(set(values))}]
    return Call(service="ec2", operation=operation, arguments={"Filters": filters})


def subnets_of(inspected: Inspected) -> Steps[list[Answer]]:
    """The subnets of a function."""
    ids = {"SubnetIds": list(inspected.subnets)}
    answer = yield Call(service="ec2", operation="DescribeSubnets", arguments=ids)
    return list(answer["Subnets"])


def groups_of(ids: Iterable[str]) -> Steps[list[Answer]]:
    """Security groups by id."""
    arguments = {"GroupIds": list(ids)}
    answer = yield Call(service="ec2", operation="DescribeSecurityGroups", arguments=arguments)
    return list(answer["SecurityGroups"])


def tables_of(vpc: str) -> Steps[list[Answer]]:
    """The route tables of a VPC."""
    answer = yield described("DescribeRouteTables", "vpc-id", [vpc])
    return list(answer["RouteTables"])


def table_of(tables: Sequence[Answer], subnet: str) -> Answer | None:
    """The route table of a subnet: its own, else the main one of the VPC."""
    main: Answer | None = None
    for table in tables:
        for association in table.get("Associations", ()):
            if association.get("SubnetId") == subnet:
                return table
            if association.get("Main"):
                main = table
    return main


def route_to(table: Answer, address: str) -> Route | None:
    """The route to an address, the longest prefix first; None = there is none."""
    to = ip_address(address)
    matching = [
        (network.prefixlen, route)
        for route in table.get("Routes", ())
        if (network := _network(route.get("DestinationCidrBlock"))) is not None and to in network
    ]
    if not matching:
        return None
    _, chosen = max(matching, key=lambda pair: pair[0])
    usable = chosen.get("State", "active") == "active"
    for key, kind in _TARGETS.items():
        target = chosen.get(key)
        if target:
            word = "local" if target == "local" else kind
            return Route(
                kind=word, target=str(target), table=str(table["RouteTableId"]), usable=usable
            )
    return None


def _network(text: object) -> IPv4Network | None:
    try:
        found = ip_network(str(text))
    except ValueError:
        return None
    return found if isinstance(found, IPv4Network) else None


def permits(
    rules: Iterable[Answer], port: int, addresses: Iterable[str], groups: Iterable[str]
) -> bool:
    """True when the rules of a group allow TCP to or from all addresses, or one of the groups."""
    wanted, members = [ip_address(one) for one in addresses], list(groups)
    for rule in rules:
        if not _has_port(rule, port):
            continue
        if any(pair.get("GroupId") in members for pair in rule.get("UserIdGroupPairs", ())):
            return True
        ranges = [_network(one.get("CidrIp")) for one in rule.get("IpRanges", ())]
        if wanted and any(
            network is not None and all(one in network for one in wanted) for network in ranges
        ):
            return True
    return False


def _has_port(rule: Answer, port: int) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    tcp = rule.get("IpProtocol") in ("tcp", "6")
    return tcp and int(rule.get("FromPort", 0)) <= port <= int(rule.get("ToPort", 65535))


def prefix_lists(rules: Iterable[Answer], port: int) -> list[str]:
    """Ids of the prefix lists to which the rules allow TCP."""
    return [
        str(one["PrefixListId"])
        for rule in rules
        if _has_port(rule, port)
        for one in rule.get("PrefixListIds", ())
    ]


def first_and_last(subnet: Answer) -> list[str]:
    """The ends of a subnet's range: rules that allow both allow all of it, or nearly so."""
    network = ip_network(str(subnet["CidrBlock"]))
    return [str(network[0]), str(network[-1])]


def is_private(address: str) -> bool:
    """True for an address that no route over the internet reaches."""
    found = ip_address(address)
    return isinstance(found, IPv4Address) and found.is_private


def interface_at(address: str, vpcs: Iterable[str] = ()) -> Steps[Answer | Refusal | None]:
    """The network interface with that private address in this account; None = there is none."""
    filters = [{"Name": "addresses.private-ip-address", "Values": [address]}]
    if named := sorted(set(vpcs)):
        filters.append({"Name": "vpc-id", "Values": named})
    answer = yield from attempted(
        Call(
            service="ec2",
            operation="DescribeNetworkInterfaces",
            arguments={"Filters": filters},
        )
    )
    if isinstance(answer, Refusal):
        return answer
    return next(iter(answer["NetworkInterfaces"]), None)


def unless_absent(refusal: Refusal, where: str) -> list[Finding]:
    """The finding about a refusal; none for what does not exist: the check of networks has it."""
    return [] if refusal.reason is Reason.ABSENT else [unknown(refusal, where)]
