"""Service quotas that stop hosts and functions in a VPC. Pure."""

from __future__ import annotations

from orchgpu.inspection.model import (
    Call,
    Finding,
    Refusal,
    Steps,
    Subject,
    attempted,
    good,
    not_known,
    unknown,
    warning,
)

#: (service code, name of the quota, least value, effect of less)
_QUOTAS = (
    (
        "ec2",
        "Running On-Demand G and VT instances",
        4.0,
        "instances with NVIDIA T4, A10G, L4 or L40S cannot be started on demand",
    ),
    ("ec2", "Running On-Demand P instances", 8.0, "P instances cannot be started on demand"),
    (
        "ec2",
        "All G and VT Spot Instance Requests",
        4.0,
        "G and VT instances cannot be started as spot instances",
    ),
    (
        "lambda",
        "Elastic network interfaces per VPC",
        50.0,
        "functions in a VPC fail to start when their subnets and groups need more interfaces",
    ),
)


class Quotas:
    """The quotas in force, found by name."""

    title = "service quotas"

    def examine(self, _subject: Subject) -> Steps[list[Finding]]:
        findings: list[Finding] = []
        for service in dict.fromkeys(quota[0] for quota in _QUOTAS):
            call = Call(
                service="service-quotas",
                operation="ListServiceQuotas",
                arguments={"ServiceCode": service},
            )
            answer = yield from attempted(call)
            if isinstance(answer, Refusal):
                findings.append(unknown(answer, f"quotas of {service}"))
                continue
            named = {str(quota["QuotaName"]): quota for quota in answer["Quotas"]}
            findings += [
                _finding(name, least, effect, named.get(name))
                for owner, name, least, effect in _QUOTAS
                if owner == service
            ]
        return findings


def _finding(name: str, least: float, effect: str, quota: object) -> Finding:
    where = f"quota {name!r}"
    if not isinstance(quota, dict):
        return not_known(where, "not listed: its default is in force", "look at Service Quotas")
    value = float(quota["Value"])
    if value >= least:
        return good(where, f"{value:g}")
    request = (
        f"aws service-quotas request-service-quota-increase --service-code"
        f" {quota['ServiceCode']} --quota-code {quota['QuotaCode']} --desired-value {least:g}"
    )
    return warning(where, f"{value:g}: {effect}", request)


CHECK = Quotas()
