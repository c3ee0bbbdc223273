"""The loads of devices from hosts of this version, of an earlier one, and with many devices."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from remote_gpu.client.affinity import Load
from remote_gpu.client.device import Lane
from remote_gpu.client.devices import REPORTED_DEVICES_MAX, HostLoads
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.connection import Access, DeviceInfo, HostAccess
from remote_gpu.wire.errors import Refused
from remote_gpu.wire.frames import FrameLimits
from remote_gpu.worker.lane import LaneServer, Runner
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.operation import Context
from remote_gpu.worker.registry import Registry
from remote_gpu.worker.turns import Loads


class Host:
    """The lanes of one worker, without a network."""

    def __init__(self, stack: contextlib.ExitStack, *, knows_loads: bool = True) -> None:
        self._stack = stack
        self.opened: list[int] = []
        loads = Loads(lambda meta: loads.answered(meta["load"], [[4, False, 2.5], [9, True, 1.0]]))
        self._runner = Runner(Registry(), Context(loads=loads))
        if not knows_loads:
            del self._runner._commands["device.loads"]

    def open(self, access: Access, index: int = 0) -> Lane:
        self.opened.append(index)
        ours, theirs = socket.socketpair()
        self._stack.enter_context(theirs)
        thread = threading.Thread(target=LaneServer(theirs, self._runner, Quota()).serve)
        thread.start()
        self._stack.callback(thread.join)
        return Lane(ours, Channel(ours, FrameLimits()), access.devices[index][1])


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as found:
        yield found


def access(*indices: int) -> Access:
    devices = tuple(DeviceInfo(index, "cpu", "m", 1) for index in indices)
    host = HostAccess("h", "127.0.0.1:1", "0" * 64, devices)
    return Access("l", 1, (host,), "0" * 32)


def test_loads_are_read_over_one_lane(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(stack)
    monkeypatch.setattr(Lane, "open", host.open)
    loads = HostLoads(access(3, 4), [0, 1])
    stack.callback(loads.close)
    for _ in range(2):
        assert loads.read() == {1: Load(free=False, slowdown=2.5)}
    assert host.opened == [0]
    loads.close()
    with pytest.raises(Refused, match="closed"):
        loads.read()


def test_a_host_of_an_earlier_version_is_asked_once(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(stack, knows_loads=False)
    monkeypatch.setattr(Lane, "open", host.open)
    loads = HostLoads(access(3, 4), [0, 1])
    stack.callback(loads.close)
    assert loads.read() == {}
    loads.close()
    assert loads.read() == {}, "without a lane"


def test_the_lanes_of_many_devices_are_left_to_them(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(stack)
    monkeypatch.setattr(Lane, "open", host.open)
    many = range(REPORTED_DEVICES_MAX + 1)
    assert HostLoads(access(*many), many).read() == {}
    assert host.opened == []
