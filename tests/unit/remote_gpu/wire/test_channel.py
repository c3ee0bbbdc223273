"""The channel reads ahead: whoever waits on its socket must ask what is already here."""

from __future__ import annotations

import socket

from remote_gpu.wire.channel import Channel
from remote_gpu.wire.frames import SESSION


def test_two_frames_of_one_segment_are_both_known_to_be_here() -> None:
    near, far = socket.socketpair()
    with near, far:
        Channel(far, SESSION).send({"beat": {}})
        Channel(far, SESSION).send({"give_back": {}})
        channel = Channel(near, SESSION)
        assert not channel.buffered
        first = channel.receive()
        assert first is not None
        assert "beat" in first[1]
        assert channel.buffered
        second = channel.receive()
        assert second is not None
        assert "give_back" in second[1]
        assert not channel.buffered
