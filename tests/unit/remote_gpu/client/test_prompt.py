"""A prompt socket receives like a socket: at once, late, and at the end of the stream."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from remote_gpu.client.transport.prompt import Forecast, PromptSocket


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


@pytest.mark.parametrize(
    ("waits_s", "window_s"),
    [
        ((), (0.0, 0.001)),
        ((0.0004,), (0.0, 0.001)),  # a short one is polled for at once
        ((0.003,), (0.002, 0.0013)),  # a longer one shortly before it is due
        ((0.02,), (0.019, 0.0014)),
        ((0.02, 0.0011), (0.0, 0.00121)),
        # as before the first one: the poll at the beginning fails, and its penalty grows
        ((0.031,), (0.0, 0.001)),
    ],
)
def test_the_next_answer_is_polled_for_by_the_waits_for_earlier_ones(
    waits_s: tuple[float, ...], window_s: tuple[float, float]
) -> None:
    forecast = Forecast(0.001)
    for wait_s in waits_s:
        forecast.came(wait_s)
    assert forecast.window_s() == pytest.approx(window_s)


def test_an_answer_that_came_early_moves_the_forecast_forward() -> None:
    forecast = Forecast(0.001)
    forecast.came(0.010)
    forecast.came_early(0.0099)
    assert forecast.window_s()[0] == 0.009
    forecast.came_early(0.004)
    assert forecast.window_s()[0] == 0.003


def test_answers_of_a_known_length_arrive_early_or_late(
    ends: tuple[PromptSocket, socket.socket],
) -> None:
    """Sent during the sleep, during the poll or after it: none is lost or out of order."""
    prompt, far = ends
    pauses_s = [0.002] * 6 + [0.0, 0.006, 0.001, 0.003] * 4
    reading = threading.Semaphore(0)

    def answer() -> None:
        for number, pause_s in enumerate(pauses_s):
            far.recv(1)
            reading.acquire(timeout=pause_s)
            far.sendall(bytes((number, number)))

    thread = threading.Thread(target=answer)
    thread.start()
    target = bytearray(1)
    for number in range(len(pauses_s)):
        assert prompt.send(b"?") == 1
        for _ in range(2):
            assert prompt.recv_into(target) == 1
            assert target[0] == number
    thread.join()
