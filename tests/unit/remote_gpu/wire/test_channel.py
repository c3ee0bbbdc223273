"""The read-ahead of a channel, which a select on its socket does not show."""

from __future__ import annotations

import socket

from remote_gpu.wire.channel import Channel
from remote_gpu.wire.frames import SESSION


def buffered(channel: Channel) -> bool:
    """Read anew: it changes between two lines."""
    return channel.buffered


def test_a_frame_read_ahead_is_reported_as_buffered() -> None:
    near, far = socket.socketpair()
    with near, far:
        Channel(far, SESSION).send({"beat": {}})
        Channel(far, SESSION).send({"give_back": {}})
        channel = Channel(near, SESSION)
        assert not buffered(channel)
        first = channel.receive()
        assert first is not None
        assert "beat" in first[1]
        assert buffered(channel)
        second = channel.receive()
        assert second is not None
        assert "give_back" in second[1]
        assert not buffered(channel)
