"""A prompt socket receives like a socket: at once, late, and at the end of the stream."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from remote_gpu.client.transport.prompt import PromptSocket


@pytest.fixture
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[PromptSocket, socket.socket]]:
    """A socket that polls for the parameter's seconds, and its peer."""
    near, far = socket.socketpair()
    near.settimeout(None)
    with near, far:
        yield PromptSocket(near, getattr(request, "param", 0.001)), far


def test_available_data_is_read_at_once(ends: tuple[PromptSocket, socket.socket]) -> None:
    prompt, far = ends
    target = bytearray(8)
    far.sendall(b"answer")
    assert prompt.recv_into(target, 3) == 3
    assert prompt.recv_into(memoryview(target)[3:]) == 3
    assert target == b"answer\0\0"


@pytest.mark.parametrize("ends", [0.0, 0.001], indirect=True)
def test_late_answers_are_waited_for(ends: tuple[PromptSocket, socket.socket]) -> None:
    """Each is sent when its read begins; without time to poll the read sleeps."""
    prompt, far = ends
    reading = threading.Semaphore(0)

    def answer() -> None:
        for number in range(20):
            reading.acquire()
            far.sendall(bytes((number,)))

    thread = threading.Thread(target=answer)
    thread.start()
    target = bytearray(1)
    for number in range(20):
        reading.release()
        assert prompt.recv_into(target) == 1
        assert target[0] == number
    thread.join()


def test_the_end_of_the_stream_is_no_data(ends: tuple[PromptSocket, socket.socket]) -> None:
    prompt, far = ends
    far.close()
    assert prompt.recv_into(bytearray(1)) == 0
