"""A prompt socket is a socket: what is sent arrives, however late, and an end is an end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from remote_gpu.client.transport.prompt import PromptSocket


@pytest.fixture
def ends() -> Iterator[tuple[PromptSocket, socket.socket]]:
    near, far = socket.socketpair()
    near.settimeout(None)
    with near, far:
        yield PromptSocket(near), far


def test_what_is_there_is_read_at_once(ends: tuple[PromptSocket, socket.socket]) -> None:
    prompt, far = ends
    target = bytearray(8)
    far.sendall(b"answer")
    assert prompt.recv_into(target, 3) == 3
    assert prompt.recv_into(memoryview(target)[3:]) == 3
    assert target == b"answer\0\0"


@pytest.mark.parametrize("asking_s", [0.0, 0.001])
def test_late_answers_are_waited_for(
    ends: tuple[PromptSocket, socket.socket], asking_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is sent when its reader begins; with no time to ask, its reader sleeps."""
    monkeypatch.setattr("remote_gpu.client.transport.prompt._POLL_S", asking_s)
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


def test_an_end_is_no_data(ends: tuple[PromptSocket, socket.socket]) -> None:
    prompt, far = ends
    far.close()
    assert prompt.recv_into(bytearray(1)) == 0
