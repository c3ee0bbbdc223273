"""The protocol of gpud, the spawner and the workers over SOCK_SEQPACKET sockets.

One packet is one JSON object, with at most one file descriptor. Blocking; local. Packets of a
worker are not trusted: it may run foreign code.

    gpud → spawner   {"fork": number} + the worker's end of its control socket
    spawner → gpud   {"indexing": {data, sequences, part}}, part from 0 to 1, before:
                     {"ready": {operations, failures, resident}}, once;
                     {"forked": pid, "number": of the request} + pidfd,
                     or {"failed": why, "number": …}
    gpud → worker    {"start": Start}, first, and again after `released`, for the next lease;
                     {"lane": {"number": n, "device": index, "kind": …, "key": hex}}
                     + its socket; with a key it continues in TLS, bound by that key;
                     {"cap_s": seconds from now}, a new hard limit of its lease;
                     {"turn": [device, ticket, until_s | null, width]}: a token, due at a moment
                     of the monotonic clock; {"due": [device, until_s | null]}: a new moment;
                     {"release": {"cap_s": seconds}}: its lease is over, its lanes are shut down;
                     {"load": {"device", "kind", "used": [[operation, arguments], …]}}: load for
                     a coming lease, before "release";
                     {"batch": device}, with the socket of a lane to the batch process, if any;
                     {"loads": [number, [[device, free, slowdown], …]]}: the answer to "load"
    gpud → batch process (a worker)   lanes with "lease"; {"leave": lease}: end its calls
    batch process → gpud   {"used": [device, lease, seconds]} of the device;
                     {"left": lease}: nothing is computed for it any more
    worker → gpud    {"ask": [device, ticket]}: a token wanted, {"done": [device, ticket]}:
                     returned;
                     {"join": device}: a lane to the batch process of that device wanted;
                     {"load": number}: the use of its devices by other leases wanted;
                     {"lane_taken": {}} for each lane, in their order; {"lane_ended": number};
                     {"loaded": seconds}: spent loading for this lease so far;
                     {"tainted": {}}, before the first kernel or program of a caller;
                     {"fault": [device, reason]}: that card failed or hangs;
                     {"loading": {}}: its other threads load for a coming lease;
                     {"released": {"memory_bytes": n, "used": [[operation, arguments], …]}}: it
                     keeps its models, which these calls used, and nothing else of the lease;
                     {"busy": {}} before that: a call still runs
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from remote_gpu.wire.frames import Meta
from remote_gpu.worker.arguments import Arguments

#: Of one packet between gpud and a worker.
PACKET_BYTES_MAX = 1 << 14
#: A spawner's ready message lists operations and warm keys.
READY_BYTES_MAX = 1 << 17
_PR_SET_PDEATHSIG = 1
#: Allowed in a worker's environment: its NVIDIA devices and its part of them.
VARIABLES = frozenset(
    (
        "CUDA_DEVICE_ORDER",
        "CUDA_VISIBLE_DEVICES",
        "CUDA_MPS_PIPE_DIRECTORY",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStart:
    """The first message to a worker: its lease."""

    lease: str
    tenant: str
    memory_bytes: int  #: the quota
    cap_s: float  #: seconds until the kernel ends the process, even without gpud
    devices: Mapping[str, str] = field(default_factory=dict)  #: index → id, of its devices
    variables: Mapping[str, str] = field(default_factory=dict)  #: for drivers; of `VARIABLES`
    kinds: tuple[str, ...] = ()  #: of its devices
    warm: bool = False  #: the worker may serve a later lease of its tenant
    sandbox: Arguments = field(default_factory=dict)  #: fields of `isolation.apply.Sandbox`
    joins: bool = False  #: calls that may be joined go to the batch process of their device
    batch_wait_ms: float | None = None  #: of a batch process; None: the host's option
    batch_items_max: int | None = None  #: of a batch process
    #: Index → memory that a context takes of that NVIDIA card.
    context_bytes: Mapping[str, int] = field(default_factory=dict)
    pinned_bytes: int = 0  #: of host memory that its payloads may have beside the quota
    #: Name → path below the sandbox's `data`, and digest, of its declared data sets.
    data: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def host_bytes(self) -> int:
        """Memory of the host that its lanes may have."""
        return self.memory_bytes + self.pinned_bytes


def send(stream: socket.socket, meta: Arguments, descriptor: int | None = None) -> None:
    """Send one packet. Raises OSError when the other side has gone."""
    body = json.dumps(meta, separators=(",", ":")).encode()
    if descriptor is None:
        stream.send(body)
    else:
        socket.send_fds(stream, [body], [descriptor])


def receive(
    stream: socket.socket, bytes_max: int = PACKET_BYTES_MAX
) -> tuple[Meta, int | None] | None:
    """The next packet and its descriptor; None when the other side has gone.

    Raises ValueError for a packet that is not JSON, which only a worker with foreign code sends. An
    empty packet counts as the end, unless it carries a descriptor.
    """
    size = array.array("i").itemsize
    body, ancillary, _, _ = stream.recvmsg(bytes_max, socket.CMSG_LEN(size))
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % size])
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not body and not descriptors:
        return None
    try:
        return json.loads(body), descriptors[0] if descriptors else None
    except (ValueError, RecursionError) as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise ValueError(f"the packet is not JSON: {error}") from None


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends; exit at once if it has ended.

    `parent`: its pid in this process namespace; 0 for a parent in another one.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        os._exit(1)
