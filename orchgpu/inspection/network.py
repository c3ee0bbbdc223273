"""Subnets, routes and security groups of a function, as EC2 describes them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network

from corekit.values import Value
from orchgpu.inspection.model import Answer, Inspected, Read, ReadCall

_SUBNETS, _GROUPS = "Subnets", "SecurityGroups"


class Network(Value):
    """The network of one function."""

    vpc: str
    subnets: tuple[Answer, ...]
    groups: tuple[Answer, ...]
    tables: tuple[Answer, ...]  #: of routes, all those of the VPC

    @property
    def ranges(self) -> list[IPv4Network]:
        """The addresses from which the function calls."""
        return [IPv4Network(str(subnet["CidrBlock"])) for subnet in self.subnets]

    def routes(self, address: str) -> Iterator[tuple[str, Answer, Answer | None]]:
        """For each subnet its name, its route table, and the usable route to an address."""
        for subnet in self.subnets:
            name = str(subnet["SubnetId"])
            table = self._table(name)
            yield name, table, _route(table, IPv4Address(address))

    def _table(self, subnet: str) -> Answer:
        linked = [(link, table) for table in self.tables for link in table.get("Associations", ())]
        own = [table for link, table in linked if link.get("SubnetId") == subnet]
        return next(iter(own + [table for link, table in linked if link.get("Main")]), {})


def subnets_of(inspected: Inspected, read: Read) -> list[Answer]:
    return described(read, "DescribeSubnets", _SUBNETS, SubnetIds=list(inspected.subnets))


def groups_of(ids: Iterable[str], read: Read) -> list[Answer]:
    return described(read, "DescribeSecurityGroups", _GROUPS, GroupIds=list(ids))


def network_of(inspected: Inspected, read: Read) -> Network:
    """Raises AppError; NOT_FOUND where a subnet or a group does not exist."""
    subnets = subnets_of(inspected, read)
    groups = groups_of(inspected.groups, read)
    vpc = str(subnets[0]["VpcId"])
    tables = in_vpc(read, "DescribeRouteTables", "RouteTables", vpc)
    return Network(vpc=vpc, subnets=tuple(subnets), groups=tuple(groups), tables=tuple(tables))


def described(read: Read, operation: str, member: str, **arguments: object) -> list[Answer]:
    return list(read(ReadCall(service="ec2", operation=operation, arguments=arguments))[member])


def in_vpc(read: Read, operation: str, member: str, vpc: str, **more: str) -> list[Answer]:
    """The same for things of one VPC; `more` are further filters, with `_` for `-`."""
    named = {"vpc-id": vpc, **{name.replace("_", "-"): value for name, value in more.items()}}
    filters = [{"Name": name, "Values": [value]} for name, value in named.items()]
    return described(read, operation, member, Filters=filters)


def _route(table: Answer, address: IPv4Address) -> Answer | None:
    """The route with the longest prefix, unless it leads nowhere.

    An internet gateway carries nothing either: a function in a VPC has no public address.
    """
    matching = [
        (network.prefixlen, number, route)
        for number, route in enumerate(table.get("Routes", ()))
        if address in (network := _network(route.get("DestinationCidrBlock")))
    ]
    route = max(matching, default=(0, 0, None))[2]
    if route is None or route.get("State", "active") != "active":
        return None
    return None if str(route.get("GatewayId", "")).startswith("igw-") else route


def _network(text: object) -> IPv4Network:
    """A range of IPv4; for a route of another kind one that has no host."""
    return IPv4Network(str(text) if text else "255.255.255.255/32")


def permits(
    rules: Iterable[Answer], port: int, ranges: Iterable[IPv4Network], groups: Iterable[str]
) -> bool:
    """Whether rules of a group allow TCP to or from all addresses, or one of the groups."""
    open_rules = [rule for rule in rules if _has_port(rule, port)]
    named = {
        pair.get("GroupId") for rule in open_rules for pair in rule.get("UserIdGroupPairs", ())
    }
    if named & set(groups):
        return True
    allowed = [_network(r.get("CidrIp")) for rule in open_rules for r in rule.get("IpRanges", ())]
    return all(any(wanted.subnet_of(given) for given in allowed) for wanted in ranges)


def _has_port(rule: Answer, port: int) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    tcp = rule.get("IpProtocol") in ("tcp", "6")
    return tcp and int(rule.get("FromPort", 0)) <= port <= int(rule.get("ToPort", 65535))
