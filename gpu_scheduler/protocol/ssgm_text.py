"""The reply text of the classic `ssgm`, as the published orchGPU reads it (by position).

    SSGM_ERROR=0;JOB=<id>;RCUDA_DEVICE_COUNT=<n>;RCUDA_DEVICE_0=<host>@<port>:<gpu>;…

0 granted, 1 bad or impossible request, 2 busy. As in rCUDA's clients, `@` precedes the port and `:`
the index of the GPU. The port is the one that the host opened for this lease. A host that is only
watched by ssgm-monitor has rCUDA's own port.
"""

from __future__ import annotations

from enum import IntEnum

from gpu_scheduler.model import GrantedLease

#: The default port of an rCUDA server (rCUDA User Guide, "RCUDA_DEVICE_n").
RCUDA_PORT = 8308


class SsgmError(IntEnum):
    """The first field of every classic reply."""

    GRANTED = 0
    BAD_REQUEST = 1  #: also: no known device could ever serve the request
    BUSY = 2


def refused(error: SsgmError) -> str:
    """The reply without a lease (also the reply to a successful `-dealloc`: only 0)."""
    return f"SSGM_ERROR={error.value};"


def granted(lease: GrantedLease) -> str:
    """The reply with a lease: its id is the job id that `-dealloc -j` takes.

    Devices are listed by host and by index on the host, not by fit.
    """
    shares = sorted(lease.lease.shares, key=lambda share: (share.host, share.index))
    fields = [
        f"SSGM_ERROR={SsgmError.GRANTED.value}",
        f"JOB={lease.lease.id}",
        f"RCUDA_DEVICE_COUNT={len(shares)}",
    ]
    for number, share in enumerate(shares):
        door = lease.lease.doors.get(share.host) or lease.gateways.get(share.host)
        place = _place(share.host, door)
        fields.append(f"RCUDA_DEVICE_{number}={place}:{share.index}")
    return ";".join(fields) + ";"


def _place(host: str, door: str | None) -> str:
    if not door:
        return f"{host}@{RCUDA_PORT}"
    address, _, port = door.rpartition(":")
    return f"{address}@{port}"
