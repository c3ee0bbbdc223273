"""The reply text of the classic `ssgm`, as the published orchGPU reads it (by position).

    SSGM_ERROR=0;JOB=<id>;RCUDA_DEVICE_COUNT=<n>;RCUDA_DEVICE_0=<host>@<port>:<gpu>;…

0 granted, 1 bad or impossible request, 2 busy. The port follows `@` and the GPU's index `:`, as
rCUDA's clients write it: the port that the host opened for this lease. A host that only
ssgm-monitor watches is named with rCUDA's own port.
"""

from __future__ import annotations

from enum import IntEnum

from gpu_scheduler.model import GrantedLease

#: Where an rCUDA server listens unless told otherwise (rCUDA User Guide, "RCUDA_DEVICE_n").
RCUDA_PORT = 8308


class SsgmError(IntEnum):
    """The first field of every classic reply."""

    GRANTED = 0
    BAD_REQUEST = 1  #: also: no known device could ever do it
    BUSY = 2


def refused(error: SsgmError) -> str:
    """The reply without a lease (also the reply of a good `-dealloc`: 0 and nothing else)."""
    return f"SSGM_ERROR={error.value};"


def granted(lease: GrantedLease) -> str:
    """The reply with a lease: its id is the job id that `-dealloc -j` takes.

    Devices are told in the order of hosts and of their numbers there, whatever made them fit best.
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
