"""A socket connection hands in a limited number of requests and reads on as they are answered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from corekit.aio.admission import AdmissionLimits
from corekit.aio.clock import LoopClock
from gpu_scheduler.core import actions as do
from gpu_scheduler.core import events as on
from gpu_scheduler.daemon.access.authorizer import Authorizer
from gpu_scheduler.daemon.access.connection_admission import ConnectionAdmission
from gpu_scheduler.daemon.access.keys import KeyEntry, KeyRole, add_key
from gpu_scheduler.daemon.access.redaction import Redaction
from gpu_scheduler.daemon.access.secret import LeaseSecrets
from gpu_scheduler.daemon.endpoints.connections import ConnectionRegistry
from gpu_scheduler.daemon.endpoints.request_decoder import RequestDecoder
from gpu_scheduler.daemon.endpoints.socket_endpoint import UNDER_WAY_MAX, SocketConnection
from gpu_scheduler.daemon.metrics import Metrics
from gpu_scheduler.model import DeviceKind
from gpu_scheduler.protocol import answers, ops
from gpu_scheduler.protocol.codec import decode_line
from gpu_scheduler.protocol.pools import PoolView

HELLO = b'{"id":0,"op":"hello","role":"requester","session":"s","version":1}\n'


class Wire(asyncio.Transport):
    """A transport that records what a protocol does with it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.reads = True
        self.closed = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing is buffered."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True


class Room:
    """A journal with room."""

    has_room = True


class System:
    """One connection with the daemon's parts behind it; the core's place is taken by the test."""

    def __init__(self, folder: Path) -> None:
        self.submitted: list[on.Event] = []
        authorizer = Authorizer(
            folder / "keys.json", lambda _: None, lambda _: None, lambda _: None
        )
        metrics = Metrics()
        self.connections = ConnectionRegistry(
            LeaseSecrets(b"k" * 32), metrics, Redaction(authorizer)
        )
        decoder = RequestDecoder(LoopClock(), Room(), self.submitted.append, metrics, authorizer)
        self.admission = ConnectionAdmission(AdmissionLimits.of(1000, 1000), 60.0)
        self.connection = SocketConnection(
            decoder, self.connections, metrics, authorizer, self.admission
        )
        self.wire = Wire()
        self.connection.connection_made(self.wire)

    def answer(self, count: int) -> None:
        """Answer the oldest requests under way."""
        for event in self.submitted[:count]:
            assert isinstance(event, on.Asked)
            self.connections.reply(do.Reply(reply_to=event.reply_to, answer=answers.Done()))


@pytest.mark.asyncio
async def test_the_limit_of_requests_under_way_holds_within_one_chunk(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.connection.data_received(HELLO + b'{"id":1,"op":"beat"}\n' * 3 * UNDER_WAY_MAX)
    assert len(system.submitted) == UNDER_WAY_MAX
    assert not system.wire.reads


@pytest.mark.asyncio
async def test_waiting_requests_are_handed_in_when_half_of_the_others_are_answered(
    tmp_path: Path,
) -> None:
    system = System(tmp_path)
    system.connection.data_received(HELLO + b'{"id":1,"op":"beat"}\n' * 2 * UNDER_WAY_MAX)
    system.answer(UNDER_WAY_MAX // 2)
    await asyncio.sleep(0)
    assert len(system.submitted) == UNDER_WAY_MAX + UNDER_WAY_MAX // 2
    assert not system.wire.reads, "it is at its limit again"


@pytest.mark.asyncio
async def test_a_connection_is_read_again_once_nothing_waits(tmp_path: Path) -> None:
    system = System(tmp_path)
    system.connection.data_received(HELLO + b'{"id":1,"op":"beat"}\n' * UNDER_WAY_MAX)
    assert not system.wire.reads
    system.answer(UNDER_WAY_MAX)
    await asyncio.sleep(0)
    assert len(system.submitted) == UNDER_WAY_MAX + 1
    assert system.wire.reads


@pytest.mark.asyncio
async def test_a_report_of_a_newer_fleet_is_taken_without_what_is_unknown(tmp_path: Path) -> None:
    system = System(tmp_path)
    pool = b'{"name":"a","kind":"cpu","memory_mib":1,"max":2,"states":{},"start_s":9,"zone":"b"}'
    report = b'{"id":1,"op":"report_fleet","pools":[' + pool + b'],"region":"c"}\n'
    system.connection.data_received(HELLO + report)
    reported = [one.op for one in system.submitted if isinstance(one, on.Asked)]
    expected = PoolView(name="a", kind=DeviceKind.CPU, memory_mib=1, max=2, states={}, start_s=9.0)
    assert reported[-1:] == [ops.ReportFleet(pools=(expected,))]


@pytest.mark.asyncio
async def test_the_core_learns_which_floors_a_key_may_not_declare(tmp_path: Path) -> None:
    bound = KeyEntry(name="a", role=KeyRole.REQUESTER, sha256="0" * 64, tenant="lab")
    key = add_key(tmp_path / "keys.json", bound).encode()
    system = System(tmp_path)
    floors = b",".join(
        b'{"request":{"memory_mib":1,"workload":"w","tenant":"%b"},"workers_min":1}' % tenant
        for tenant in (b"lab", b"other")
    )
    hello = HELLO.replace(b'"session"', b'"key":"' + key + b'","session"')
    declared = b'{"id":1,"op":"keep_warm","floors":[' + floors + b"]}\n"
    system.connection.data_received(hello + declared)
    event = system.submitted[-1]
    assert isinstance(event, on.Asked)
    assert len(event.op.floors) == 2
    assert [*event.denied] == [1]


#: Each with half a character: in the envelope, a field, its name, an opaque part, behind the id.
HALVES = (
    b'{"id":7,"op":"\\ud800"}',
    b'{"id":7,"op":"withdraw","attempt":"\\ud800"}',
    b'{"op":"withdraw","attempt":"\\uDFFFx","id":7}',
    b'{"id":7,"op":"withdraw","\\ud800":1}',
    b'{"id": 7, "op": "finish", "holder": "j", "outcome": "FAILED", "block": {"a": ["\\udc00"]}}',
    b'{"id":7,"op":"hello","role":"requester","session":"\\ud800","version":1}',
    b'{"id":7,"op":"hello","role":"requester","key":"\\ud800","session":"s","version":1}',
)


@pytest.mark.asyncio
@pytest.mark.parametrize("line", HALVES)
@pytest.mark.parametrize("hello", [b"", HELLO], ids=["before its hello", "after it"])
async def test_half_a_character_is_invalid_and_the_connection_stays(
    tmp_path: Path, line: bytes, hello: bytes
) -> None:
    system = System(tmp_path)
    system.connection.data_received(hello + line + b"\n")
    await asyncio.sleep(0)
    answer = decode_line(system.wire.written.splitlines()[-1])
    assert (answer["id"], answer["error"]["code"]) == (7, "invalid")
    assert not system.wire.closed
    system.connection.data_received((b"" if hello else HELLO) + b'{"id":8,"op":"beat"}\n')
    assert any(isinstance(getattr(one, "op", None), ops.Beat) for one in system.submitted)


@pytest.mark.asyncio
async def test_a_malformed_frame_among_waiting_lines_ends_the_connection(tmp_path: Path) -> None:
    system = System(tmp_path)
    beats = b'{"id":1,"op":"beat"}\n' * UNDER_WAY_MAX
    system.connection.data_received(HELLO + beats + b"no JSON\n" + beats)
    assert not system.wire.closed
    system.answer(UNDER_WAY_MAX // 2)
    await asyncio.sleep(0)
    assert len(system.submitted) == UNDER_WAY_MAX + 1
    assert system.wire.closed


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "fields",
    [
        b'"role":"requester","session":"s","version":9',
        b'"role":"requester","version":1',
        b'"role":"host","host":"h","version":1',
        b'"role":"guest","session":"s","version":1',
    ],
)
async def test_a_refused_hello_leaves_a_connection_unauthenticated(
    tmp_path: Path, fields: bytes
) -> None:
    system = System(tmp_path)
    system.connection.data_received(b'{"id":0,"op":"hello",' + fields + b"}\n")
    assert not system.submitted
    assert system.admission.unauthenticated == 1
    system.connection.data_received(HELLO)
    assert len(system.submitted) == 1
    assert system.admission.unauthenticated == 0
