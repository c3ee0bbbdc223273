"""The quotas of an account that a stack's GPU hosts need. Pure.

EC2's quotas of running instances count vCPUs by family of types, on demand and spot apart; a new
account has 0 for types with a GPU (EC2 user guide, "Amazon EC2 instance type quotas").
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from corekit.values import Value

#: Families of instance types → the quotas' codes: on demand, spot.
_CODES = {
    ("g", "gr", "vt"): ("L-DB2E81BA", "L-3819A6DF"),
    ("p",): ("L-417A185B", "L-7212CCBC"),
}
_NAMES = {
    "L-DB2E81BA": "vCPUs of running on-demand G and VT instances",
    "L-3819A6DF": "vCPUs of spot G and VT instances",
    "L-417A185B": "vCPUs of running on-demand P instances",
    "L-7212CCBC": "vCPUs of spot P2, P3 and P4 instances",
    "L-B99A9384": "concurrent executions of Lambda",
}
_SIZES = {"medium": 1, "large": 2, "xlarge": 4, "metal": 96}
#: A new account has 10: too few for functions of others beside those that hold a device.
_LAMBDA_LEAST = 100


class Quota(Value):
    """A quota, and the least value with which the stack can use its GPU hosts."""

    service: str  #: as Service Quotas names it
    code: str
    needed: float

    @property
    def name(self) -> str:
        return _NAMES[self.code]


def vcpus(instance_type: str) -> int:
    """Of an instance type by its size; exotic types may have other numbers."""
    size = instance_type.partition(".")[2]
    times = re.fullmatch(r"(\d+)xlarge", size)
    return 4 * int(times[1]) if times else _SIZES.get(size, 4)


def needed(parameters: Mapping[str, str]) -> Iterator[Quota]:
    """The quotas for the most hosts that the parameters allow."""
    zones = 2 if parameters["Machines"] == "two" else 1
    hosts = int(parameters["GpuMax"]) * zones
    on_demand = int(parameters["OnDemandPercent"])
    if hosts == 0:
        return
    by_code: dict[str, float] = {}
    for kind in (parameters["GpuType"], parameters["GpuTypeElse"]):
        family = re.match(r"[a-z]+", kind)
        codes = next((c for f, c in _CODES.items() if family and family[0] in f), None)
        if codes is None:
            continue
        for code, part in zip(codes, (on_demand, 100 - on_demand), strict=True):
            if part:
                by_code[code] = max(by_code.get(code, 0), hosts * vcpus(kind))
    for code, value in by_code.items():
        yield Quota(service="ec2", code=code, needed=value)
    yield Quota(service="lambda", code="L-B99A9384", needed=max(_LAMBDA_LEAST, hosts))
