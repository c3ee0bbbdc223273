"""Network ACLs of functions' subnets, in the direction of gateways and S3. Pure."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from orchgpu.inspection.model import (
    Answer,
    Finding,
    Inspected,
    Refusal,
    Steps,
    Subject,
    good,
    wrong,
)
from orchgpu.inspection.network import described, unless_absent

#: Answers come back to these ports: https://docs.aws.amazon.com/vpc (ephemeral ports).
_EPHEMERAL = (1024, 65535)
_TCP = ("6", "-1")


class NetworkAcls:
    """An ACL keeps no state: requests and answers need a rule each."""

    title = "network ACLs"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        for inspected in subject.functions:
            if not inspected.subnets or not inspected.function.queued:
                continue
            where = f"function {inspected.name}"
            try:
                findings += yield from _of(subject, where, inspected)
            except Refusal as refusal:
                findings += unless_absent(refusal, where)
        return findings


def _of(subject: Subject, where: str, inspected: Inspected) -> Steps[list[Finding]]:
    ends = [(g.address, g.port) for g in subject.gateways if g.address]
    if not ends:
        return []
    answer = yield described("DescribeNetworkAcls", "association.subnet-id", inspected.subnets)
    findings: list[Finding] = []
    for acl in answer["NetworkAcls"]:
        for address, port in ends:
            out = _allows(acl, egress=True, address=address, ports=(port, port))
            back = _allows(acl, egress=False, address=address, ports=_EPHEMERAL)
            if out and back:
                continue
            side = f"outbound TCP {port} to" if not out else "inbound TCP 1024–65535 from"
            message = f"{acl['NetworkAclId']} denies {side} {address}"
            findings.append(wrong(where, message, "add an allow rule with a smaller number"))
    names = ", ".join(str(acl["NetworkAclId"]) for acl in answer["NetworkAcls"])
    return findings or [good(where, f"{names} allow what jobs need")]


def _allows(acl: Answer, *, egress: bool, address: str, ports: tuple[int, int]) -> bool:
    """The first rule, by number, that is about the address and one of the ports decides."""
    rules = [one for one in acl.get("Entries", ()) if bool(one.get("Egress")) is egress]
    for rule in sorted(rules, key=lambda one: int(one["RuleNumber"])):
        if str(rule.get("Protocol")) not in _TCP or not _has_address(rule, address):
            continue
        given = rule.get("PortRange")
        if given is None or (int(given["From"]) <= ports[1] and int(given["To"]) >= ports[0]):
            return str(rule["RuleAction"]) == "allow"
    return False


def _has_address(rule: Answer, address: str) -> bool:
    block = rule.get("CidrBlock")
    return block is not None and ip_address(address) in ip_network(str(block))


CHECK = NetworkAcls()
