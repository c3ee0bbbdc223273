"""gpud beside a worker that a tenant has taken over: it sends anything on its control socket.

The process is a real one that does nothing; the test speaks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from corekit.aio.supervise import Nursery
from remote_gpu.host.gateway.frames import Peer
from remote_gpu.host.workers.worker import Worker
from remote_gpu.isolation.policy import IsolationPolicy
from remote_gpu.isolation.sandboxes import Sandboxes
from remote_gpu.worker import control
from tests.unit.remote_gpu.host.host_parts import idle_worker

pytestmark = pytest.mark.asyncio


async def settle() -> None:
    """Until the event loop has read what was sent."""
    for _ in range(20):
        await asyncio.sleep(0)


async def hand_over(made: Worker, theirs: socket.socket) -> tuple[int, socket.socket]:
    """A lane that the worker takes: its number, and the client's end."""
    client, lane = socket.socketpair()
    with lane:
        handed = asyncio.ensure_future(made.lane(lane, 0, "cpu", b""))
        await asyncio.sleep(0)
        received = control.receive(theirs)
        assert received is not None
        meta, descriptor = received
        assert descriptor is not None
        os.close(descriptor)  # it serves no client, without reporting it
        control.send(theirs, {"lane_taken": {}})
        assert await handed
    return meta["lane"]["number"], client


_TWO_THREADS = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
input()
"""


def two_threads(pid: int) -> list[int]:
    """The threads of a process that starts a second one, its first one first."""
    while len(found := sorted(int(one.name) for one in Path(f"/proc/{pid}/task").iterdir())) < 2:
        pass
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root raises a priority again")
async def test_the_threads_of_a_load_have_the_lowest_priority_until_it_is_over() -> None:
    async with asyncio.timeout(30), idle_worker(code=_TWO_THREADS) as (made, theirs):
        threads = two_threads(made.pid)

        def priorities() -> list[int]:
            return [os.getpriority(os.PRIO_PROCESS, one) for one in threads]

        released = asyncio.ensure_future(made.release(60.0, 60.0))
        control.send(theirs, {"loading": {}})
        await settle()
        assert priorities() == [0, 19], "the first thread answers gpud"
        control.send(theirs, {"released": {"memory_bytes": 1}})
        assert await released == 1
        assert priorities() == [0, 0]


async def test_a_lane_reported_as_ended_is_cut() -> None:
    async with idle_worker() as (made, theirs):
        lanes = [await hand_over(made, theirs) for _ in range(3)]
        assert made.lanes == 3
        number, client = lanes[1]
        control.send(theirs, {"lane_ended": number})
        await settle()
        assert made.lanes == 2
        client.setblocking(False)
        assert client.recv(1) == b"", "the client sees the end, whatever process keeps the socket"
        with pytest.raises(BlockingIOError):
            lanes[0][1].recv(1, socket.MSG_DONTWAIT)
    for _, client in lanes:
        assert client.recv(1) == b"", "a dead worker's lanes are cut"
        client.close()


@pytest.mark.parametrize(
    "packet",
    [
        b"nonsense",
        b"\xff\xfe",
        b"[" * 9000,
        b"1",
        b"[]",
        b'"lane_taken"',
        b"null",
        b'{"lane_taken": {}}',
        b'{"lane_ended": {}}',
        b'{"lane_ended": 7}',
        b'{"lane_ended": null}',
        b'{"lane_ended": true}',
        b'{"ask": ["x"]}',
        b'{"released": {"memory_bytes": 7}}',  # nobody awaits it
        b'{"busy": {}}',
    ],
)
async def test_a_broken_protocol_is_logged_once_and_kills_the_worker(
    packet: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def slices(meta: object) -> None:
        raise KeyError(json.dumps(meta))

    async with idle_worker() as (made, theirs):
        made.on_turn = slices
        for _ in range(200):
            try:
                theirs.send(packet, socket.MSG_DONTWAIT)
            except BlockingIOError:
                await settle()
        await settle()
        theirs.close()
        await asyncio.wait_for(asyncio.shield(made.gone), 60)
    (line,) = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert line.message == "a worker broke the protocol and is killed"
    assert line.exc_info is None
    assert line.__dict__["pid"] == made.pid


async def test_a_lane_that_a_dead_worker_had_not_taken_stays_open() -> None:
    client, lane = socket.socketpair()
    with client, lane:
        async with idle_worker() as (made, theirs):
            handed = asyncio.ensure_future(made.lane(lane, 0, "cpu", b""))
            await settle()
            theirs.close()
            made.kill()
            assert not await handed
            assert made.lanes == 0
        lane.send(b"x")  # by the next worker
        assert client.recv(1) == b"x"


async def test_the_end_of_a_lane_that_was_not_taken_breaks_the_protocol() -> None:
    client, lane = socket.socketpair()
    with client, lane:
        async with idle_worker() as (made, theirs):
            handed = asyncio.ensure_future(made.lane(lane, 0, "cpu", b""))
            await settle()
            control.send(theirs, {"lane_ended": 1})
            await settle()
            theirs.close()
            await asyncio.wait_for(asyncio.shield(made.gone), 60)
            assert not await handed
            assert made.lanes == 0


async def test_an_empty_packet_keeps_the_worker_and_leaks_no_descriptor() -> None:
    async with idle_worker() as (made, theirs):
        passed, other_end = socket.socketpair()
        with other_end:
            with passed:
                socket.send_fds(theirs, [b""], [passed.fileno()])
            await settle()
            other_end.setblocking(False)
            assert other_end.recv(1) == b"", "gpud keeps nothing that it is sent"
        theirs.close()
        await asyncio.wait_for(asyncio.shield(made.gone), 60)


async def test_a_worker_that_closes_its_socket_is_killed() -> None:
    async with idle_worker() as (made, theirs):
        theirs.send(b"")
        await asyncio.wait_for(asyncio.shield(made.gone), 60)


async def test_no_close_waits_for_a_client_that_does_not_read() -> None:
    """The socket is the worker's as well: it may ask the kernel to let its last closer wait."""
    async with idle_worker() as (made, theirs):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            client = socket.create_connection(listener.getsockname())
            lane, _ = listener.accept()
        with client:
            with lane:
                handed = asyncio.ensure_future(made.lane(lane, 0, "cpu", b""))
                await asyncio.sleep(0)
                lane.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
                with contextlib.suppress(BlockingIOError):
                    while lane.send(bytes(1 << 16), socket.MSG_DONTWAIT):
                        pass
                received = control.receive(theirs)
                assert received is not None
                assert received[1] is not None
                os.close(received[1])
                control.send(theirs, {"lane_taken": {}})
                assert await handed
            rescue = threading.Timer(30, client.close)  # ends the wait for it
            rescue.start()
            control.send(theirs, {"lane_ended": 1})
            await settle()
            in_time = rescue.is_alive()
            rescue.cancel()
            rescue.join()
            assert in_time
            assert made.lanes == 0


async def test_a_client_with_the_workers_socket_does_not_delay_its_end(tmp_path: Path) -> None:
    """On the host's own machine a lane passes descriptors: the lease's shares would stay taken."""
    sandboxes = Sandboxes(IsolationPolicy(seccomp=True), tmp_path / "kept")
    sandbox = await sandboxes.make("t", 1, ("cpu",), None)
    start = control.WorkerStart(lease="l", tenant="t", memory_bytes=1, cap_s=60.0)
    async with Nursery("test") as nursery, idle_worker(nursery) as (made, _):
        made.start(start, sandbox)
        made.kill()
        await asyncio.wait_for(asyncio.shield(made.gone), 60)
    sandboxes.close()


async def test_a_welcome_does_not_wait_for_a_socket_made_blocking() -> None:
    client, lane = socket.socketpair()
    with client, lane:
        with contextlib.suppress(BlockingIOError):
            while lane.send(bytes(1 << 16), socket.MSG_DONTWAIT):
                pass
        with pytest.raises(BlockingIOError):
            Peer(lane).send_now({"welcome": {}})


async def released(made: Worker, theirs: socket.socket, *answers: object) -> int | None:
    """What gpud makes of these packets after it asked for a release."""
    asked = asyncio.ensure_future(made.release(60.0, 30.0))
    await settle()
    received = control.receive(theirs)
    assert received == ({"release": {"cap_s": 60.0}}, None)
    for answer in answers:
        theirs.send(json.dumps(answer).encode())
    await settle()
    return await asked


async def test_a_worker_keeps_its_models_when_it_releases_its_lease() -> None:
    async with idle_worker() as (made, theirs):
        number, client = await hand_over(made, theirs)
        with client:
            control.send(theirs, {"loaded": 1.5, "bytes": 9})
            answers = {"lane_ended": number}, {"released": {"memory_bytes": 7}}
            assert await released(made, theirs, *answers) == 7
            assert client.recv(1) == b"", "its lanes are cut"
        assert (made.loaded_s, made.loaded_bytes) == (1.5, 9)
        start = control.WorkerStart(lease="l", tenant="t", memory_bytes=1, cap_s=60.0)
        assert await made.restart(start)
        received = control.receive(theirs)
        assert received is not None
        assert received[0]["start"]["lease"] == "l"
        assert (made.loading_s, made.loaded_s, made.loaded_bytes) == (0.0, 1.5, 0)


@pytest.mark.parametrize(
    "answers",
    [
        ({"busy": {}}, {"busy": {}}),
        ({"tainted": {}}, {"released": {"memory_bytes": 7}}),
        ({"released": {"memory_bytes": 7}}, {"tainted": {}}),
        ({"released": {"memory_bytes": -1}},),
        ({"released": {"memory_bytes": True}},),
        ({"released": {}},),
        ({"loaded": -1.0}, {"released": {"memory_bytes": 7}}),
        ({"loaded": "x"}, {"released": {"memory_bytes": 7}}),
        ({"loaded": 1.0, "bytes": -1}, {"released": {"memory_bytes": 7}}),
        ({"released": {"memory_bytes": 7}}, {"released": {"memory_bytes": 7}}),
    ],
)
async def test_a_worker_that_lies_or_is_busy_keeps_nothing(answers: tuple[object, ...]) -> None:
    async with idle_worker() as (made, theirs):
        assert await released(made, theirs, *answers) is None


@pytest.mark.parametrize(
    ("busy", "needed", "kept"),
    [(False, True, 7), (True, False, 7), (True, True, None)],
)
async def test_a_worker_is_given_up_only_for_a_call_in_the_way(
    busy: bool, needed: bool, kept: int | None
) -> None:
    async with idle_worker() as (made, theirs):
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asked = asyncio.ensure_future(made.release(60.0, 3600.0, room))
        await settle()
        if needed:
            room.set_result(None)
        if busy:
            control.send(theirs, {"busy": {}})
        await settle()
        assert asked.done() is (kept is None), "without a call it ends when the machine runs it"
        if kept is not None:
            control.send(theirs, {"released": {"memory_bytes": kept}})
        assert await asked == kept


async def test_a_worker_with_open_lanes_keeps_nothing() -> None:
    async with idle_worker() as (made, theirs):
        _, client = await hand_over(made, theirs)
        with client:
            assert await released(made, theirs, {"released": {"memory_bytes": 7}}) is None


async def test_a_taint_cannot_be_taken_back() -> None:
    """The packet is in gpud's queue before the code runs; a later one changes nothing."""
    async with idle_worker() as (made, theirs):
        control.send(theirs, {"tainted": {}})
        await settle()
        assert await made.release(60.0, 30.0) is None
        with pytest.raises(BlockingIOError):
            theirs.recv(1, socket.MSG_DONTWAIT)  # it is not asked


async def test_a_silent_worker_and_a_dead_one_keep_nothing() -> None:
    async with idle_worker() as (made, theirs):
        assert await made.release(60.0, 0.01) is None
        asked = asyncio.ensure_future(made.release(60.0, 30.0))
        await settle()
        theirs.close()
        assert await asked is None
        await made.gone
        assert not await made.restart(
            control.WorkerStart(lease="l", tenant="t", memory_bytes=1, cap_s=60.0)
        )


async def test_the_packets_of_a_worker_are_read_at_once_when_they_are_needed() -> None:
    async with idle_worker() as (made, theirs):
        for seconds in (1.0, 2.0):
            control.send(theirs, {"loaded": seconds})
        made.drain()
        assert made.loading_s == 2.0


async def test_the_answer_of_a_worker_that_lives_on_is_enough() -> None:
    """A wait for the end of its process would outlast the test."""
    async with asyncio.timeout(60), Nursery("test") as nursery, idle_worker(nursery) as (made, to):
        control.send(to, {"released": {"memory_bytes": 7}})
        assert await made.release(3600.0, 3600.0) == 7


async def test_a_packet_that_was_read_just_before_the_loop_reads_it_ends_no_worker() -> None:
    async with asyncio.timeout(60), Nursery("test") as nursery, idle_worker(nursery) as (made, to):
        control.send(to, {"loaded": 1.5})
        asyncio.get_running_loop().call_soon(made.drain)  # runs before the socket's reader
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # now the reader has run
        assert made.loaded_s == 1.5
        control.send(to, {"released": {"memory_bytes": 7}})
        assert await made.release(3600.0, 3600.0) == 7
