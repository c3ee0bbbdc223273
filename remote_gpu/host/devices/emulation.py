"""Emulated devices of a host: the file of `gpud --emulate`, and the probe that publishes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from corekit.decode import decode
from corekit.errors import AppError, invalid
from corekit.ids import DeviceId, HostId
from corekit.units import parse_memory_mib
from gpu_scheduler.model import Device, Share, Usage
from gpu_scheduler.names import is_emulated
from remote_gpu.worker.emulation.devices import EmulatedDevice, Emulation
from remote_gpu.worker.emulation.operation import expanded


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedDevices:
    """The emulated devices of a host by id, in the order of the file."""

    emulation: Emulation = field(default_factory=lambda: Emulation(devices=()))
    by_id: Mapping[DeviceId, EmulatedDevice] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path | None, host: HostId) -> EmulatedDevices:
        """The devices of a YAML or JSON file; None: none. Raises INVALID naming file and entry."""
        if path is None:
            return cls()
        import yaml  # 20 ms that a host with real devices does not need

        try:
            value = yaml.safe_load(path.read_text())
        except (OSError, UnicodeDecodeError) as error:
            raise invalid(f"--emulate: cannot read {path}: {error}") from None
        except yaml.YAMLError as error:
            raise invalid(f"--emulate: {path} is not YAML or JSON: {error}") from None
        emulation = decode(Emulation, _with_sizes(value, str(path)), f"--emulate: {path}")
        if not emulation.devices:
            raise invalid(f"--emulate: {path} has no devices")
        return cls.of(emulation, host)

    @classmethod
    def of(cls, emulation: Emulation, host: HostId) -> EmulatedDevices:
        """The devices with their ids on a host."""
        by_id = {
            DeviceId(f"{host}/emulated{number}"): device
            for number, device in enumerate(expanded(emulation))
        }
        return cls(emulation=emulation, by_id=by_id)


def real_shares(shares: tuple[Share, ...]) -> tuple[Share, ...]:
    """The shares of devices that have a driver: a worker of emulated ones needs none."""
    return tuple(share for share in shares if not is_emulated(share.model))


def _with_sizes(value: object, path: str) -> object:
    """The content of the file with texts such as `1GiB` as MiB."""
    devices = value.get("devices") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(devices, list):
        raise invalid(f"--emulate: {path}: write `devices:` and a list below it")
    return value | {"devices": [_with_size(device, path) for device in devices]}


def _with_size(device: object, path: str) -> object:
    if not isinstance(device, dict) or not isinstance(device.get("memory_mib"), str):
        return device
    try:
        return device | {"memory_mib": parse_memory_mib(device["memory_mib"])}
    except AppError as error:
        raise invalid(f"--emulate: {path}: memory_mib: {error.message}") from None


class EmulatedProbe:
    """Publishes emulated devices, each labelled in its model and detail."""

    def __init__(
        self,
        devices: EmulatedDevices,
        used_mib: Callable[[DeviceId], int],
        running: Callable[[DeviceId], int],
    ) -> None:
        """`used_mib`: shares of the leases that use a device; `running`: calls on it."""
        self._devices = devices
        self._used_mib = used_mib
        self._running = running

    async def devices(self) -> tuple[Device, ...]:
        """All of them; their indices come from `HostProbe`."""
        return tuple(
            self._device(name, index, device)
            for index, (name, device) in enumerate(self._devices.by_id.items())
        )

    def _device(self, name: DeviceId, index: int, device: EmulatedDevice) -> Device:
        scale = self._devices.emulation.time_scale
        scaled = "" if scale == 1 else f", times × {scale:g}"
        return Device(
            id=name,
            index=index,
            kind=device.kind,
            model=device.published_model,
            memory_mib=device.memory_mib,
            driver=device.driver or "",
            runtime=device.runtime or "",
            detail=f"emulated: {device.slots} slot(s), stated times{scaled}; no real accelerator",
            operations=tuple(sorted(device.operations)),
        )

    async def usage(self) -> tuple[Usage, ...]:
        """Memory of the leases' shares, and the part of the slots with a running call."""
        found = []
        for name, device in self._devices.by_id.items():
            used_mib = self._used_mib(name)
            busy_pct = min(100, round(100 * self._running(name) / device.slots))
            found.append(Usage(device=name, memory_used_mib=used_mib, utilisation_pct=busy_pct))
        return tuple(found)

    async def close(self) -> None:
        """Do nothing: an emulated device has no driver."""
