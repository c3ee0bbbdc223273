"""The client of a leased device; imports little of the standard library and nothing else.

    session = Session.open(connection, cap_s=120.0)      # the runner claims the attempt
    environment |= session.environment()                 # the user's program …
    device = connect()                                   # … opens a lane on it;
                                                         # device[1] is the lease's second device
    result = device.op("sgemm", a, b, m=64, n=64, k=64)  # values and buffers
    session.give_back(); session.close()

`Local()` has the interface of a device without a lease; `remote_gpu.client.aio` is the client for
asyncio.
"""

from remote_gpu.client.device import Device, DeviceBuffer, Lane, OpResult
from remote_gpu.client.devices import Devices, connect
from remote_gpu.client.graph import Graph, GraphResult
from remote_gpu.client.host_data import HostData
from remote_gpu.client.local import Local
from remote_gpu.client.resources import Hint, OperationInfo, Operations, Regions, Resource
from remote_gpu.client.transport.session import Session
from remote_gpu.wire.errors import OpCode, OpFailed, Refusal, Refused, RemoteError

__all__ = [
    "Device",
    "DeviceBuffer",
    "Devices",
    "Graph",
    "GraphResult",
    "Hint",
    "HostData",
    "Lane",
    "Local",
    "OpCode",
    "OpFailed",
    "OpResult",
    "OperationInfo",
    "Operations",
    "Refusal",
    "Refused",
    "Regions",
    "RemoteError",
    "Resource",
    "Session",
    "connect",
]
