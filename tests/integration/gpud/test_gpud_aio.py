"""Several devices of one lease, and the same client for asyncio."""

from __future__ import annotations

import asyncio
import re
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from remote_gpu.client import (
    Device,
    Graph,
    Local,
    Operations,
    OpFailed,
    OpResult,
    Refused,
    RemoteError,
    Session,
    aio,
    connect,
)
from remote_gpu.client.transport.readiness import readable
from tests.integration.gpud.conftest import Gpud, socket_of, until

#: Of a device of any kind, and also what none takes.
Act = Callable[[Any], object]


@pytest.fixture
def pair(shared_gpud: Gpud) -> Iterator[Session]:
    """A session whose lease has the host's device twice, according to its connection."""
    install = shared_gpud.install()
    connection = shared_gpud.connection(install)
    connection["hosts"][0]["devices"] *= 2

    with Session.open(connection, 60) as session:
        yield session


def test_devices_are_a_sequence_and_their_first_device(pair: Session) -> None:
    with connect(pair.environment()) as devices:
        assert len(devices) == len(devices.infos) == 2
        assert devices.info == devices[0].info == devices[-2].info
        assert devices[1] is devices[-1] is not devices[0]
        assert [bytes(d.op("noop", b"x").buffers[0]) for d in devices] == [b"x", b"x"]
        assert list(devices[:]) == list(devices)
        with pytest.raises(IndexError):
            devices[2]
        buffer = devices.buffer(3)  # of the first one: another lane does not know it
        buffer.write(b"abc")
        assert bytes(devices[0].op("noop", buffer).buffers[0]) == b"abc"
        with pytest.raises(OpFailed, match="ENOENT"):
            devices[1].op("noop", buffer)
        devices[1].close()
        assert "noop" in devices.operations()
    with pytest.raises(Refused, match="ENDED"):
        devices.op("noop")


@pytest.mark.asyncio
async def test_the_same_calls_to_be_awaited(pair: Session) -> None:
    async with await aio.connect(pair.environment()) as devices:
        assert len(devices) == 2
        assert devices[0] is devices[-2] is not devices
        assert (devices.info, devices[1].info) == devices.infos
        one, other = await asyncio.gather(
            devices.op("noop", b"one"), devices[1].op("noop", b"other")
        )
        assert (bytes(one.buffers[0]), bytes(other.buffers[0])) == (b"one", b"other")
        buffer = await devices.buffer(4)
        await buffer.write(b"abcd")
        assert bytes((await devices.op("noop", buffer)).buffers[0]) == b"abcd"
        assert bytes(await buffer.read(1, 2)) == b"bc"
        await devices.post("noop", buffer)
        await devices.post("buffer.free", buffer=99)
        with pytest.raises(OpFailed, match="no buffer 99"):
            await devices.sync()
        await buffer.free()
        assert "noop" in await devices.operations()
        names = await devices.do(lambda d: [info.name for info in Operations(d).describe()])
        assert "noop" in names
        with pytest.raises(IndexError):
            devices[2]


@pytest.mark.asyncio
async def test_a_cancelled_call_is_dropped_and_a_close_ends_what_runs(pair: Session) -> None:
    devices = await aio.connect(pair.environment())
    task = asyncio.ensure_future(devices.op("burn", ms=50))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await devices.op("noop")).values == {}  # after the dropped one
    begun, loop = asyncio.Event(), asyncio.get_running_loop()

    def burn(device: Device) -> None:
        loop.call_soon_threadsafe(begun.set)
        device.op("burn", ms=60_000)

    running = asyncio.ensure_future(devices.do(burn))
    await begun.wait()
    await devices.close()
    with pytest.raises(Refused):
        await running
    with pytest.raises(Refused, match="was closed"):
        await devices.op("noop")
    await devices.close()


@pytest.mark.asyncio
async def test_a_local_device_to_be_awaited() -> None:
    async with aio.local() as devices:
        assert bytes((await devices.op("noop", b"abc")).buffers[0]) == b"abc"
        assert [(await devices[n].op("noop")).values for n in range(len(devices))] == [{}]
        with pytest.raises(IndexError):
            devices[1]
        assert devices.infos == (devices.info,) == (devices[-1].info,)
    with Local() as same:
        assert [one.op("noop").values for one in same] == [{}]
        assert same[0] is same[-1] is same
        assert same.infos == (same.info,)
        with pytest.raises(IndexError):
            same[1]


def squared(device: Device) -> bytes:
    graph = Graph()
    given, got = graph.input("x", 16), graph.output("y", 16)
    graph.op("sgemm", given, given, out=[got], m=2, n=2, k=2)
    return bytes(device.run(graph, x=array("f", [1, 2, 3, 4])).outputs["y"])


def after_a_posted_error(device: Device) -> list[object]:
    device.post("nonsense")
    device.post("noop", b"x")
    return [
        outcome(lambda _: device.op("noop"), device),
        outcome(Device.sync, device),
        outcome(Device.sync, device),
    ]


def registered(device: Device) -> bytes:
    with Operations(device) as operations:
        found = operations.resource("data", b"hello")
        return bytes(operations.run("noop", found).buffers[0])


#: What a script does with a device, right and wrong.
ACTS: tuple[Act, ...] = (
    lambda d: d.op("noop", array("f", [1, 2]), memoryview(b"abcdef")[::2], b""),
    lambda d: d.op("noop", object()),
    lambda d: d.op("noop", "text"),
    lambda d: d.op("noop", *[b"x"] * 17),
    lambda d: d.op("noop", x=(1, {"a": None, 2: 3.5})),
    lambda d: d.op("noop", x=object()),
    lambda d: d.op("noop", x=float("nan")),
    lambda d: d.op("noop", x="y" * 2_000_000),
    lambda d: d.op("nonsense" * 100),
    lambda d: d.op("noop", b"abcdef", out=[bytearray(9)]),
    lambda d: d.op("noop", b"abcdef", out=[bytearray(3)]),
    lambda d: d.op("noop", b"abcdef", out=[]),
    lambda d: d.op("noop", b"abcdef", out=[b"not to be written"]),
    lambda d: d.op("noop", b"abcdef", b"x", out=[d.buffer(6), bytearray(1)]),
    lambda d: d.op("noop", b"abcdef", out=[d.buffer(6)]),
    lambda d: d.op("sgemm", bytes(64), bytes(64), m=4, n=4, k=5),
    lambda d: d.op("sgemm", bytes(64), bytes(64), m=4, n=4, k=4, implementation="none"),
    lambda d: d.buffer(-1),
    lambda d: bytes(d.buffer(3).read()),
    lambda d: d.buffer(3).write(b"abcd"),
    lambda d: d.buffer(3).read(2, 2),
    lambda d: (len(d), len(d.infos), len(d[:]), d[0] in d, d.index(d[0]), d[-1].op("noop").values),
    squared,
    after_a_posted_error,
    registered,
)


def outcome(act: Act, device: Device) -> object:
    try:
        result = act(device)
    except RemoteError as error:
        return type(error), str(error.code), error.message
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    if isinstance(result, OpResult):
        return result.values, [bytes(view) for view in result.buffers], result.implementation
    return result


def heard(act: Act, device: Device) -> str:
    """Without the names of operations, of which a host may have fewer, and the size of a frame."""
    message = str(outcome(act, device)).partition("this device has")[0]
    return re.sub(r"\d{7} bytes of JSON", "", message)


@pytest.mark.drivers
def test_a_script_cannot_tell_a_lent_device_from_its_own_cpu(shared_gpud: Gpud) -> None:
    with (
        shared_gpud.open(shared_gpud.install()) as session,
        connect(session.environment()) as lent,
        Local() as own,
    ):
        names = {name for name in dir(lent) if not name.startswith("_")}
        assert names == {name for name in dir(own) if not name.startswith("_")}
        for number, act in enumerate(ACTS):
            assert heard(act, lent) == heard(act, own), number
    for device in (lent, own):
        with pytest.raises(Refused, match="ENDED: the device was closed"):
            device.op("noop")
        device.close()


def test_a_session_of_operations_ends_with_its_lane(shared_gpud: Gpud) -> None:
    with shared_gpud.lane() as device:
        operations = Operations(device)
        socket_of(device).sendall(b"no frame of ours, but as long as one's header")
        until(lambda: readable((device[0]._stream,), 0))  # the error
        with pytest.raises(Refused, match="EPROTO: not this protocol"):
            operations.run("noop")
        operations.close()  # in a `with` it would hide what is raised inside
