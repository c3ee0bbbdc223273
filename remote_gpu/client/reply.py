"""From the reply of classic `ssgm -alloc` to a connection for our own plane.

The ports in it stand for the secret of a lease: whoever may connect is the lease's holder.
"""

from __future__ import annotations

import re

from remote_gpu.wire.errors import Refusal, Refused
from remote_gpu.wire.frames import Meta
from remote_gpu.wire.proof import port_key

_DEVICE = re.compile(r"(?P<host>.+)@(?P<port>[0-9]{1,5}):(?P<index>[0-9]{1,4})")


def connection_of(reply: str) -> Meta:
    """What `Session.open` and, as JSON in `ORCHGPU_CONNECTION`, `connect` take.

    Kinds, models and memory are not told by the reply. Raises Refused(PROTOCOL) for one without a
    lease.
    """
    fields = dict(field.split("=", 1) for field in reply.strip().split(";") if "=" in field)
    devices: dict[str, list[Meta]] = {}
    for number in range(int(fields.get("RCUDA_DEVICE_COUNT", "0"))):
        found = _DEVICE.fullmatch(fields.get(f"RCUDA_DEVICE_{number}", ""))
        if found is None:
            raise Refused(Refusal.PROTOCOL, f"the reply does not say where device {number} is")
        device = {"index": int(found["index"]), "kind": "", "model": "", "memory_mib": 0}
        devices.setdefault(f"{found['host']}:{found['port']}", []).append(device)
    lease = fields.get("JOB", "")
    if fields.get("SSGM_ERROR") != "0" or not lease or not devices:
        raise Refused(Refusal.NOT_INSTALLED, f"no device was lent: {reply.strip()[:200]}")
    secret = port_key(lease).hex()
    hosts = [
        {"host": place, "gateway": place, "secret": secret, "devices": told}
        for place, told in devices.items()
    ]
    return {"middleware": "builtin", "lease": lease, "fence": 0, "hosts": hosts}
