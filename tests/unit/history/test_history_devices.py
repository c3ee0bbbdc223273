"""Devices that are there, as the events of hosts and devices show them."""

from __future__ import annotations

from corekit.ids import DeviceId, HostId
from gpu_scheduler.model import Health, HostState
from gpu_scheduler.protocol.watch import DeviceChanged, HostChanged
from orchgpu.history.consumer import Devices
from orchgpu.history.store import Presence


def host(state: HostState | None) -> HostChanged:
    return HostChanged(host=HostId("h"), state=state)


def device(health: Health | None, id_: str = "h/0") -> DeviceChanged:
    return DeviceChanged(host=HostId("h"), device=DeviceId(id_), health=health)


def presence(at_s: float, *, present: bool, removed: bool = False) -> Presence:
    return Presence(device="h/0", host="h", present=present, at_s=at_s, removed=removed)


def test_a_device_is_there_until_its_host_is_lost_or_it_is_removed() -> None:
    devices = Devices()
    assert devices.changed(host(HostState.UP), 1.0) == []
    assert devices.changed(device(Health.OK), 2.0) == [presence(2.0, present=True)]
    assert devices.changed(device(Health.SUSPECT), 3.0) == [presence(3.0, present=True)]
    assert devices.changed(host(HostState.STALE), 4.0) == [presence(4.0, present=True)]
    assert devices.changed(host(HostState.LOST), 5.0) == [presence(5.0, present=False)]
    assert devices.changed(host(HostState.UP), 6.0) == [presence(6.0, present=True)]
    assert devices.inventory(7.0) == [presence(7.0, present=True)]
    gone = presence(8.0, present=False, removed=True)
    assert devices.changed(device(None), 8.0) == [gone]
    assert devices.inventory(9.0) == []


def test_the_devices_of_the_history_are_known_after_a_restart() -> None:
    devices = Devices()
    devices.restore([presence(1.0, present=False)])
    assert devices.inventory(2.0) == [presence(2.0, present=False)]
    assert devices.changed(host(HostState.UP), 3.0) == [presence(3.0, present=True)]
    devices.clear()
    assert devices.inventory(4.0) == []
