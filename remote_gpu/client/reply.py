"""A connection of the built-in data plane from the reply of classic `ssgm -alloc`.

The lease's port replaces its secret: a client that can connect to it is the holder of the lease.
"""

from __future__ import annotations

import re

from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.frames import Meta
from remote_gpu.wire.proof import port_key

_DEVICE = re.compile(r"(?P<host>.+)@(?P<port>[0-9]{1,5}):(?P<index>[0-9]{1,4})")


def connection_of(reply: str) -> Meta:
    """The argument of `Session.open` and, as JSON in `ORCHGPU_CONNECTION`, of `connect`.

    The reply has no kinds, models and memory. Raises Refused: NOT_INSTALLED for one without a
    lease, PROTOCOL for one that is malformed.
    """
    fields = dict(field.split("=", 1) for field in reply.strip().split(";") if "=" in field)
    devices: dict[str, list[Meta]] = {}
    count = fields.get("RCUDA_DEVICE_COUNT", "0")
    if not count.isascii() or not count.isdigit():
        raise Refused(Refusal.PROTOCOL, f"RCUDA_DEVICE_COUNT is {count[:40]!r}, not an integer")
    for number in range(int(count)):
        found = _DEVICE.fullmatch(fields.get(f"RCUDA_DEVICE_{number}", ""))
        if found is None:
            raise Refused(Refusal.PROTOCOL, f"RCUDA_DEVICE_{number} is missing or malformed")
        device = {"index": int(found["index"]), "kind": "", "model": "", "memory_mib": 0}
        devices.setdefault(f"{found['host']}:{found['port']}", []).append(device)
    lease = fields.get("JOB", "")
    if fields.get("SSGM_ERROR") != "0" or not lease or not devices:
        raise Refused(Refusal.NOT_INSTALLED, f"the reply grants no lease: {reply.strip()[:200]}")
    secret = port_key(lease).hex()
    hosts = [
        {"host": place, "gateway": place, "secret": secret, "devices": found}
        for place, found in devices.items()
    ]
    return {"middleware": "builtin", "lease": lease, "fence": 0, "hosts": hosts}
