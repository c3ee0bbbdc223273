"""Subnets and security groups of functions: they exist, in one VPC, with free addresses. Pure."""

from __future__ import annotations

from orchgpu.inspection.model import (
    Answer,
    Finding,
    Inspected,
    Reason,
    Refusal,
    Steps,
    Subject,
    good,
    unknown,
    warning,
    wrong,
)
from orchgpu.inspection.network import groups_of, is_private, subnets_of

#: A function uses few addresses, but none is left for it in a full subnet.
_FREE_MIN = 8
_CORRECT = "correct vpc.SubnetIds and vpc.SecurityGroupIds of the definition"


class FunctionNetwork:
    """The network of each function in a VPC."""

    title = "networks of functions"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        for inspected in subject.functions:
            where = f"function {inspected.name}"
            if not inspected.subnets:
                findings += _outside(subject, inspected)
                continue
            try:
                subnets = yield from subnets_of(inspected)
                groups = yield from groups_of(inspected.groups)
            except Refusal as refusal:
                findings.append(_refused(where, refusal))
                continue
            findings += _of(where, subnets, groups)
        return findings


def _outside(subject: Subject, inspected: Inspected) -> list[Finding]:
    where = f"function {inspected.name}"
    private = [one.host for one in subject.gateways if one.address and is_private(one.address)]
    if not inspected.function.queued or subject.place.local or not private:
        return [good(where, "in no VPC: it reaches public addresses")]
    message = f"in no VPC, but hosts have private addresses: {', '.join(private)}"
    remedy = "name private subnets and a security group in the definition: vpc: {SubnetIds: …}"
    return [wrong(where, message, remedy)]


def _refused(where: str, refusal: Refusal) -> Finding:
    if refusal.reason is Reason.ABSENT:
        return wrong(where, refusal.message, _CORRECT)
    return unknown(refusal, where)


def _of(where: str, subnets: list[Answer], groups: list[Answer]) -> list[Finding]:
    vpcs = sorted({str(one["VpcId"]) for one in (*subnets, *groups)})
    if len(vpcs) > 1:
        message = f"its subnets and security groups are in several VPCs: {', '.join(vpcs)}"
        return [wrong(where, message, _CORRECT)]
    full = [
        str(one["SubnetId"])
        for one in subnets
        if int(one.get("AvailableIpAddressCount", _FREE_MIN)) < _FREE_MIN
    ]
    zones = sorted({str(one["AvailabilityZone"]) for one in subnets})
    findings = [
        wrong(where, f"hardly a free address is left in {name}", "choose a larger subnet")
        for name in full
    ]
    if len(zones) < 2:
        message = f"all its subnets are in {zones[0]}: it stops when that zone does"
        findings.append(warning(where, message, "name a subnet of a second zone"))
    return findings or [good(where, f"{vpcs[0]}, zones {', '.join(zones)}")]


CHECK = FunctionNetwork()
