"""All devices of a lease: `connect()` opens them, a sequence that also acts as its first device."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import overload

from remote_gpu.client.affinity import Affinity, Load
from remote_gpu.client.device import Device, DeviceBuffer, Lane, OpResult
from remote_gpu.client.graph import Graph, GraphResult
from remote_gpu.client.transport.session import Session
from remote_gpu.client.uncaught import end_in_own_line
from remote_gpu.wire.connection import (
    CONNECTION_VARIABLE,
    SESSION_VARIABLE,
    Access,
    DeviceInfo,
    parse_access,
)
from remote_gpu.wire.errors import OpCode, OpFailed, Refusal, Refused, RemoteError, WireError
from remote_gpu.wire.frames import BufferLike, Out

#: Without a runner: the longest run of a Lambda function, plus 30 s.
DEFAULT_CAP_S = 930.0
#: Of a lease on one host: with more devices, all of its 16 lanes there are left to them.
REPORTED_DEVICES_MAX = 8


class Devices(Sequence[Lane], Device):
    """`devices[1]` is the lease's second device; `devices.op(…)` calls the first. Thread-safe.

    Each device has its own lane, opened on first use: their calls do not wait for each other. Only
    `devices.run(…)` chooses its device, among those of the kind and model of the first
    (`remote_gpu.client.affinity`): name one, `devices[0].run(…)`, for a run on that.
    """

    def __init__(self, access: Access, on_close: Callable[[], None] | None = None) -> None:
        """Opens the first lane. Raises Refused."""
        self._access = access
        self._on_close = on_close
        self._lock = threading.Lock()
        self._first = Lane.open(access)
        self._lanes = {0: self._first}
        self.info = self._first.info  #: of the first device
        first = (self.info.kind, self.info.model)
        alike = [n for n, one in enumerate(self.infos) if (one.kind, one.model) == first]
        self._affinity = Affinity(alike)
        self._loads = HostLoads(access, alike)

    def __len__(self) -> int:
        return len(self._access.devices)

    @overload
    def __getitem__(self, index: int) -> Lane: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Lane]: ...

    def __getitem__(self, index: int | slice) -> Lane | Sequence[Lane]:
        """One device or several. Raises IndexError, and Refused when a lane cannot be opened."""
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        with self._lock:
            if number not in self._lanes:
                self._lanes[number] = Lane.open(self._access, number)
            return self._lanes[number]

    @property
    def infos(self) -> tuple[DeviceInfo, ...]:
        """The devices of the lease, without opening lanes."""
        return tuple(info for _, info in self._access.devices)

    def op(self, name: str, /, *buffers: BufferLike, out: Out = None, **args: object) -> OpResult:
        """See `Device.op`."""
        return self._first.op(name, *buffers, out=out, **args)

    def run(self, graph: Graph, /, *, iterations: int = 1, **inputs: BufferLike) -> GraphResult:
        """See `Device.run`; on the device of the lease that is the best for this graph now."""
        if len(self._loads.devices) == 1:
            return self._first.run(graph, iterations=iterations, **inputs)
        while True:
            number = self._begin(graph)
            new = not self[number].has(graph)
            try:
                return self[number].run(graph, iterations=iterations, **inputs)
            except OpFailed as error:
                if error.code != OpCode.ENOMEM or not new or not self._refuse(number, graph):
                    raise
            finally:
                with self._lock:
                    self._affinity.end(number)

    def _begin(self, graph: Graph) -> int:
        loads = self._loads.read()
        with self._lock:
            loaded = [number for number, lane in self._lanes.items() if lane.has(graph)]
            return self._affinity.begin(graph.spec.id, loaded, loads)

    def _refuse(self, number: int, graph: Graph) -> bool:
        with self._lock:
            return self._affinity.refuse(number, graph.spec.id)

    def post(
        self, name: str, /, *buffers: BufferLike, out: Sequence[DeviceBuffer] = (), **args: object
    ) -> None:
        """See `Device.post`."""
        self._first.post(name, *buffers, out=out, **args)

    def close(self) -> None:
        """End all lanes, and the session if `connect` opened it. Safe to repeat."""
        with self._lock:
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()
        self._loads.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()


class HostLoads:
    """The use of the devices by other leases, read over one lane to each host, beside those of the
    runs. Thread-safe."""

    def __init__(self, access: Access, devices: Sequence[int]) -> None:
        """`devices`: the numbers of those to report."""
        self.devices = devices
        self._access = access
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}  # by host
        self._silent: set[str] = set()  #: hosts of an earlier version, or without a lane left
        self._closed = False

    def read(self) -> dict[int, Load]:
        """The load of each device whose host reports it. Raises Refused, OpFailed."""
        numbers: dict[str, dict[str, int]] = {}  # by host, then by index there
        for number in self.devices:
            host, info = self._access.devices[number]
            numbers.setdefault(host.host, {})[str(info.index)] = number
        return {
            known[index]: load
            for host, known in numbers.items()
            if len(known) <= REPORTED_DEVICES_MAX
            for index, load in self._read(host, min(known.values())).items()
            if index in known
        }

    def close(self) -> None:
        """End the lanes. Safe to repeat."""
        with self._lock:
            self._closed = True
            lanes = list(self._lanes.values())
        for lane in lanes:
            lane.close()

    def _read(self, host: str, number: int) -> dict[str, Load]:
        if host in self._silent:
            return {}
        try:
            found = self._lane(host, number).op("device.loads").values.get("devices")
        except RemoteError as error:
            if error.code not in (OpCode.ENOENT, Refusal.BUSY):
                raise
            self._silent.add(host)
            return {}
        if not isinstance(found, Mapping):
            return {}
        return {str(index): Load(bool(free), slowdown) for index, (free, slowdown) in found.items()}

    def _lane(self, host: str, number: int) -> Lane:
        with self._lock:
            if self._closed:
                raise Refused(Refusal.ENDED, "the device was closed")
            if host not in self._lanes:
                self._lanes[host] = Lane.open(self._access, number)
            return self._lanes[host]


def connect(environ: Mapping[str, str] | None = None, *, cap_s: float = DEFAULT_CAP_S) -> Devices:
    """The devices of the lease that the environment names; used as one, they are the first.

    With a runner (`ORCHGPU_SESSION`) their lanes are on the runner's session. Without one
    (`ORCHGPU_CONNECTION`) this opens a session of at most `cap_s` seconds, which closing the
    devices ends. The traceback of an uncaught device error ends at the program's own line. Raises
    Refused: NOT_INSTALLED when the environment names no lease.
    """
    end_in_own_line()
    variables = os.environ if environ is None else environ
    if text := variables.get(SESSION_VARIABLE):
        try:
            return Devices(parse_access(text))
        except WireError as error:
            raise Refused(Refusal.PROTOCOL, f"{SESSION_VARIABLE}: {error}") from None
    if text := variables.get(CONNECTION_VARIABLE):
        session = Session.open(text, cap_s)
        try:
            return Devices(session.view(), on_close=session.close)
        except BaseException:
            session.close()
            raise
    raise Refused(
        Refusal.NOT_INSTALLED,
        f"neither {SESSION_VARIABLE} nor {CONNECTION_VARIABLE} is set: this program has no lease;"
        " Local() runs the same operations on its own CPU",
    )
