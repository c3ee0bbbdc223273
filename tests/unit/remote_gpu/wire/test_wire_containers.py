"""Messages about the container of a run."""

from __future__ import annotations

import pytest

from remote_gpu.wire.containers import (
    MESSAGE_BYTES_MAX,
    Ended,
    Start,
    decoded,
    encoded,
    ended_of,
)
from remote_gpu.wire.errors import WireError


def test_a_start_keeps_its_values_and_drops_unknown_ones() -> None:
    start = Start(workdir="/w", variables={"A": "ä\n"})
    message = decoded(encoded({"start": start.fields()}))
    assert Start.of(message["start"]) == start
    assert Start.of({"workdir": "/w", "variables": {}, "later": 1}) == Start(
        workdir="/w", variables={}
    )


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"workdir": 1}, {"workdir": "/"}, {"workdir": "/", "variables": {"A": 1}}],
)
def test_a_start_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(WireError):
        Start.of(value)


def test_messages_are_objects_within_a_size() -> None:
    for data in (b"", b"[]", b"{", b"\xff"):
        with pytest.raises(WireError):
            decoded(data)
    with pytest.raises(WireError, match="over"):
        encoded({"a": "x" * MESSAGE_BYTES_MAX})


def test_the_end_is_decoded() -> None:
    assert ended_of({"status": 3}) == Ended(status=3)
    assert ended_of({"error": "no"}) == Ended(error="no")
    assert ended_of({"status": 137, "out_of_memory": True}) == Ended(status=137, out_of_memory=True)
    with pytest.raises(WireError):
        ended_of({"status": "3"})
