"""`pocl`: PoCL-Remote, whole OpenCL devices over TCP; MIT.

    POCL_DEVICES=remote   POCL_REMOTE0_PARAMETERS=127.0.0.1:40001/0

The number after `/` is the device as the server numbers it: pocld serves every device of every
OpenCL platform that it finds, and a tenant may name any of them. A host therefore offers this
middleware only where it has one OpenCL device in total. The client gets the port for commands and
takes the next one for bulk data; a third, for other pocld's, is not forwarded. The function's image
holds a PoCL (5.0 or later) with the remote driver; its own variables name it (`OCL_ICD_VENDORS`).

Carries unmodified OpenCL programs of 1.2 to 3.0; each command of a queue waits for the one before
it. A client may make its server connect to any address (`ConnectPeer`): a firewall limits what the
host reaches. Several hosts: no, because servers would connect to each other at addresses of the
function.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpu_scheduler.model import DeviceKind, GrantedLease, Share
from gpu_scheduler.monitor.names import opencl_name
from remote_gpu.middleware.base import (
    Middleware,
    ServerCommand,
    ServerLease,
    Summary,
    VisibleDevices,
    addresses,
    device_variables,
)
from remote_gpu.wire.variables import ADDRESS, ClientRules

_PLATFORM = opencl_name("Portable Computing Language", 0)[:-1]


class Pocl(Middleware):
    """One pocld per lease."""

    name = "pocl"
    one_host = True
    server_ports = 3  #: commands, bulk data, other servers
    loaders = ("OCL_ICD_VENDORS",)
    client = ClientRules(
        variables={
            "POCL_DEVICES": r"remote(?: remote){0,63}",
            r"POCL_REMOTE\d{1,2}_PARAMETERS": rf"{ADDRESS}/\d{{1,2}}",
        },
        ports=2,  # a client that reached the third one would be taken for a server
    )
    summary = Summary(
        programs="OpenCL 1.2 to 3.0",
        image="`OCL_ICD_VENDORS` with PoCL's remote driver (5.0 or later)",
        server="`pocld` (three ports, of which the client reaches two)",
    )

    def variables(self, granted: GrantedLease) -> dict[str, str]:
        """One remote device per share."""
        found = addresses(granted)
        variables = {"POCL_DEVICES": " ".join(["remote"] * len(found))}
        for number, address in enumerate(found):
            parameters = f"127.0.0.1:{{{address.host}}}/{address.device}"
            variables[f"POCL_REMOTE{number}_PARAMETERS"] = parameters
        return variables

    def server_command(self, lease: ServerLease) -> ServerCommand | None:
        """pocld on 127.0.0.1, with its compiled kernels in the lease's folder.

        pocld accepts a client's next program without a delay (`…_RECONNECT`), and keeps the state
        of the last one until the lease ends. The CPU device of pocld is switched off where there is
        a card.
        """
        variables = {
            "POCLD_ALLOW_CLIENT_RECONNECT": "1",
            "POCL_CACHE_DIR": "{folder}",
            **device_variables(lease.shares),
        }
        if not any(_is_of_pocl(share) for share in lease.shares):
            variables["POCL_DEVICES"] = "none"
        return ServerCommand(
            arguments=("-a", "127.0.0.1", "-p", str(lease.port)),
            variables=variables,
            port=lease.port,
        )

    def refusal(self, devices: VisibleDevices, shares: Sequence[Share] = ()) -> str | None:
        """Refuses more than one device, and a lease of the CPU where the one device is a card."""
        if not devices.opencl_known:
            return (
                "the devices that pocld would show are unknown without the extra `orchgpu[opencl]`"
            )
        seen = devices.cuda + devices.opencl_cards + devices.opencl_cpus
        if seen > 1:
            return (
                f"pocld shows every OpenCL device of a host to every lease, and this host has"
                f" {seen} ({devices.cuda} of NVIDIA, {devices.opencl_cards} other cards,"
                f" {devices.opencl_cpus} CPUs); run gpud where one is visible (OCL_ICD_VENDORS, a"
                " container), or serve another middleware"
            )
        if seen > devices.opencl_cpus and any(share.kind is DeviceKind.CPU for share in shares):
            return "the lease is of this host's CPU, and pocld would show its card"
        return None


def _is_of_pocl(share: Share) -> bool:
    """True for a device that PoCL drives itself: the CPU, or one of its platform."""
    platform = share.device.rpartition("/")[2]
    return share.kind is DeviceKind.CPU or platform.startswith(_PLATFORM)


MIDDLEWARE = Pocl()
