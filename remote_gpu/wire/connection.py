"""The access to a lease: the `connection` of an envelope, and the variables of a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from remote_gpu.wire.errors import WireError
from remote_gpu.wire.frames import int_field, text_field

#: JSON of a `connection`: for a program without a runner, whose `connect()` opens the session.
CONNECTION_VARIABLE = "ORCHGPU_CONNECTION"
#: JSON of a session's `Access`: for a program whose runner holds the session.
SESSION_VARIABLE = "ORCHGPU_SESSION"
#: The number of the lease's devices; for people and scripts.
COUNT_VARIABLE = "ORCHGPU_DEVICE_COUNT"
_HOSTS_MAX = 64  #: of one lease (a request asks for at most 64 devices)
_KEY_HEX = 64
#: <sys/un.h>: 108 with the zero at the end.
UNIX_PATH_BYTES_MAX = 107


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One leased device."""

    index: int  #: on its host
    kind: str
    model: str
    memory_mib: int  #: of the lease


@dataclass(frozen=True, slots=True)
class HostAccess:
    """The address of one host of a lease, with the key for it."""

    host: str
    gateway: str  #: "address:port"
    secret: str  #: hex; of the lease (sessions) or of one session's lanes
    devices: tuple[DeviceInfo, ...]
    unix: str = ""  #: path of the gateway's socket for programs of its own machine

    @property
    def address(self) -> tuple[str, int]:
        """For `socket.create_connection`."""
        name, _, port = self.gateway.rpartition(":")
        return name.strip("[]"), int(port)


@dataclass(frozen=True, slots=True)
class Access:
    """A lease with the access to its hosts; `session` is set in a session's view."""

    lease: str
    fence: int
    hosts: tuple[HostAccess, ...]
    session: str = ""

    @property
    def devices(self) -> tuple[tuple[HostAccess, DeviceInfo], ...]:
        """All devices in the order of the lease."""
        return tuple((host, device) for host in self.hosts for device in host.devices)

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def parse_access(value: object) -> Access:
    """Decode a `connection` (object or its JSON). Raises WireError naming the invalid field."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise WireError("the connection is not JSON") from None
    if not isinstance(value, Mapping):
        raise WireError("the connection must be an object")
    hosts = value.get("hosts")
    if not isinstance(hosts, list | tuple) or not 1 <= len(hosts) <= _HOSTS_MAX:
        raise WireError(f"the connection must list 1…{_HOSTS_MAX} hosts")
    return Access(
        lease=text_field(value, "lease", 128),
        fence=int_field(value, "fence"),
        hosts=tuple(_host(host) for host in hosts),
        session=text_field(value, "session", 32) if "session" in value else "",
    )


def _host(value: object) -> HostAccess:
    if not isinstance(value, Mapping):
        raise WireError("a host of the connection must be an object")
    gateway = text_field(value, "gateway")
    name, _, port = gateway.rpartition(":")
    if not name or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise WireError(f"gateway {gateway!r} is not address:port")
    secret = text_field(value, "secret", _KEY_HEX)
    if len(secret) != _KEY_HEX or set(secret) - set("0123456789abcdef"):
        raise WireError(f"the secret for {gateway} must be {_KEY_HEX} lower-case hex digits")
    devices = value.get("devices", [])
    if not isinstance(devices, list | tuple):
        raise WireError("'devices' of a host must be a list")
    return HostAccess(
        host=text_field(value, "host", 128),
        gateway=gateway,
        secret=secret,
        devices=tuple(_device(device) for device in devices),
        unix=text_field(value, "unix", UNIX_PATH_BYTES_MAX) if "unix" in value else "",
    )


def _device(value: object) -> DeviceInfo:
    if not isinstance(value, Mapping):
        raise WireError("a device of the connection must be an object")
    return DeviceInfo(
        index=int_field(value, "index", 1023),
        kind=text_field(value, "kind", 32),
        model=text_field(value, "model"),
        memory_mib=int_field(value, "memory_mib"),
    )
