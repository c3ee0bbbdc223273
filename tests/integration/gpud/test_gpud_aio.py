"""Several devices of one lease, and the same client for asyncio."""

from __future__ import annotations

import asyncio

import pytest

from remote_gpu.client import Device, Local, Operations, OpFailed, Refused, Session, aio, connect


@pytest.fixture
def pair(shared_gpud, nothing_left):
    """A session whose lease has the host's device twice, as its connection says."""
    install = shared_gpud.install()
    connection = shared_gpud.connection(install)
    connection["hosts"][0]["devices"] *= 2

    with Session.open(connection, 60) as session:
        yield session


def test_devices_are_a_sequence_and_their_first_device(pair) -> None:
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
async def test_the_same_calls_to_be_awaited(pair) -> None:
    async with await aio.connect(pair.environment()) as devices:
        assert len(devices) == 2
        assert devices[0] is devices
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
async def test_a_cancelled_call_is_dropped_and_a_close_ends_what_runs(pair) -> None:
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
    async with aio.local() as device:
        assert bytes((await device.op("noop", b"abc")).buffers[0]) == b"abc"
    with Local() as same:
        assert [one.op("noop").values for one in same] == [{}]
        assert same[0] is same[-1] is same
        assert same.infos == (same.info,)
        with pytest.raises(IndexError):
            same[1]
