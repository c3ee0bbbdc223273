"""The scheduler's address: reached from hosts and orchestrators, by TLS, with open ports. Pure."""

from __future__ import annotations

from orchgpu.inspection.model import (
    Finding,
    Refusal,
    Steps,
    Subject,
    good,
    not_known,
    unknown,
    warning,
    wrong,
)
from orchgpu.inspection.network import (
    groups_of,
    interface_at,
    is_private,
    permits,
    route_to,
    subnets_of,
    table_of,
    tables_of,
)


class SchedulerWay:
    """Functions do not call it; hosts and orchestrators, in the same VPC as a rule, do."""

    title = "way to the scheduler"

    def examine(self, subject: Subject) -> Steps[list[Finding]]:
        address, where = subject.scheduler_address, f"scheduler {subject.scheduler}"
        if not subject.scheduler:
            return [not_known("scheduler", "none is known", "name it: --scheduler ADDR:PORT")]
        if not address:
            message = "its name could not be resolved here"
            return [not_known(where, message, "run this inside the VPC")]
        if subject.place.local:
            return [good(where, "on this machine, as is the cloud")]
        if address.startswith("127."):
            message = "an address of this machine: no other machine reaches it"
            remedy = "set SSGMD_LISTEN to a private address, with keys and TLS"
            return [wrong(where, message, remedy)]
        findings = [] if subject.tls else [_clear(where)]
        try:
            findings += yield from _way(subject, where)
        except Refusal as refusal:
            findings.append(unknown(refusal, where))
        return findings


def _clear(where: str) -> Finding:
    message = "connected to without TLS: keys and secrets of leases are in clear text"
    remedy = "give ssgmd a certificate, and every program ORCHGPU_SCHEDULER_CA"
    return warning(where, message, remedy)


def _way(subject: Subject, where: str) -> Steps[list[Finding]]:
    address, port = subject.scheduler_address, int(subject.scheduler.rpartition(":")[2])
    inside = [one for one in subject.functions if one.subnets]
    subnets = (yield from subnets_of(inside[0])) if inside else []
    for subnet in subnets[:1]:
        tables = yield from tables_of(str(subnet["VpcId"]))
        table = table_of(tables, str(subnet["SubnetId"]))
        route = None if table is None else route_to(table, address)
        if route is None or route.leads_nowhere:
            message = f"{subnet['VpcId']} has no usable route to {address}"
            return [wrong(where, message, "add a route, or run ssgmd inside the VPC")]
    target = yield from interface_at(address)
    if isinstance(target, Refusal):
        raise target
    if target is None:
        outside = "it is at no network interface of this account"
        if is_private(address):
            return [good(where, f"{outside}: routes lead to another network")]
        return [warning(where, f"a public address; {outside}", "prefer one inside the VPC")]
    members = [str(group["GroupId"]) for group in target.get("Groups", ())]
    groups = yield from groups_of(members)
    opened = any(
        permits([rule], port, [], [str(p.get("GroupId")) for p in rule.get("UserIdGroupPairs", ())])
        or permits([rule], port, [address], ())
        for group in groups
        for rule in group.get("IpPermissions", ())
    )
    if not opened:
        message = f"no inbound rule of {', '.join(members)} allows TCP {port}"
        return [wrong(where, message, "allow it from the groups of hosts and orchestrators")]
    return [good(where, f"TCP {port} of {', '.join(members)} is open inside {target['VpcId']}")]


CHECK = SchedulerWay()
