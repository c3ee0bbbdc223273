"""The reply text of the classic `ssgm`, as the published orchGPU reads it (by position).

    SSGM_ERROR=0;JOB=<id>;RCUDA_DEVICE_COUNT=<n>;RCUDA_DEVICE_0=<host>@<port>:<gpu>;…

0 granted, 1 bad or impossible request, 2 busy. As in rCUDA's clients, `@` precedes the port and `:`
the index of the GPU. The port is the one that the host opened for this lease. A host that is only
watched by ssgm-monitor has rCUDA's own port.

The index is that of the server behind the port. A server that was started for the lease numbers the
lease's devices of its kind from 0; gpud itself, and a server of the whole host, number as the host.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum

from corekit.ids import HostId
from gpu_scheduler.model import DeviceKind, GrantedLease

#: The default port of an rCUDA server (rCUDA User Guide, "RCUDA_DEVICE_n").
RCUDA_PORT = 8308
#: The middleware that gpud is itself.
BUILTIN = "builtin"


class SsgmError(IntEnum):
    """The first field of every classic reply."""

    GRANTED = 0
    BAD_REQUEST = 1  #: also: no known device could ever serve the request
    BUSY = 2


def refused(error: SsgmError) -> str:
    """The reply without a lease (also the reply to a successful `-dealloc`: only 0)."""
    return f"SSGM_ERROR={error.value};"


def granted(lease: GrantedLease, middleware: str | None = None) -> str:
    """The reply with a lease: its id is the job id that `-dealloc -j` takes.

    Devices are listed by host and by index, not by fit. `middleware`: of the request.
    """
    own_server = middleware not in (None, BUILTIN)
    numbered = _numbered(lease, own_server=own_server)
    fields = [
        f"SSGM_ERROR={SsgmError.GRANTED.value}",
        f"JOB={lease.lease.id}",
        f"RCUDA_DEVICE_COUNT={len(numbered)}",
    ]
    for number, (host, index) in enumerate(numbered):
        place = _place(host, lease.lease.doors.get(host) or lease.gateways.get(host))
        fields.append(f"RCUDA_DEVICE_{number}={place}:{index}")
    return ";".join(fields) + ";"


def _numbered(lease: GrantedLease, *, own_server: bool) -> list[tuple[HostId, int]]:
    shares = lease.lease.shares
    if not own_server:
        return sorted((share.host, share.index) for share in shares)
    found: list[tuple[HostId, int]] = []
    counts: Counter[tuple[HostId, DeviceKind]] = Counter()
    for share in shares:  # in the order of the variables that show them to their server
        key = share.host, share.kind
        has_server = share.host in lease.lease.doors
        found.append((share.host, counts[key] if has_server else share.index))
        counts[key] += 1
    return sorted(found)


def _place(host: str, door: str | None) -> str:
    if not door:
        return f"{host}@{RCUDA_PORT}"
    address, _, port = door.rpartition(":")
    return f"{address}@{port}"
