"""The packets of a worker that lives on after its lease."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

from corekit.aio.supervise import Nursery
from remote_gpu.host.workers.worker import Worker
from remote_gpu.worker import control

WAIT_S = 3600.0  #: a wait for the end of the process would outlast the test


def test_the_answer_of_a_worker_that_lives_on_is_enough() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def run() -> int | None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        async with Nursery("test") as nursery:
            worker = Worker(process.pid, os.pidfd_open(process.pid), ours, WAIT_S, nursery)
            control.send(theirs, {"released": {"memory_bytes": 7}})
            kept = await worker.release(WAIT_S, WAIT_S)
            worker.kill()
            theirs.close()
            await worker.gone
        return kept

    assert asyncio.run(asyncio.wait_for(run(), 60)) == 7
    process.communicate()


def test_a_packet_that_was_read_just_before_the_loop_reads_it_ends_no_worker() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)

    async def run() -> tuple[float, int | None]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        async with Nursery("test") as nursery:
            worker = Worker(process.pid, os.pidfd_open(process.pid), ours, WAIT_S, nursery)
            control.send(theirs, {"loaded": 1.5})
            asyncio.get_running_loop().call_soon(worker.drain)  # runs before the socket's reader
            await asyncio.sleep(0)
            await asyncio.sleep(0)  # now the reader has run
            loaded_s = worker.loaded_s
            control.send(theirs, {"released": {"memory_bytes": 7}})
            kept = await worker.release(WAIT_S, WAIT_S)
            worker.kill()
            theirs.close()
            await worker.gone
        return loaded_s, kept

    assert asyncio.run(asyncio.wait_for(run(), 60)) == (1.5, 7)
    process.communicate()
