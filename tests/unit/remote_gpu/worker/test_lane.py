"""A lane in memory: any input is answered with a result or a code."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_gpu.client import Local
from remote_gpu.client.transport.segment import SharedMemory
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import (
    HEADER,
    MAGIC,
    META_BYTES_MAX,
    NO_REPLY,
    SHARED,
    VERSION,
    BufferLike,
    FrameLimits,
    Meta,
    pack,
)
from remote_gpu.worker import lane
from remote_gpu.worker.arguments import Arguments, Signature
from remote_gpu.worker.lane import LaneServer, Runner
from remote_gpu.worker.memory.memory import Area
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.memory.segments import shared_lane
from remote_gpu.worker.operation import Context, CpuOperation, Limits, Outcome
from remote_gpu.worker.registry import Registry, load_registry

LIMIT_BYTES = 1 << 20


class Ends:
    """Both ends of a connection in memory: all that is sent, then all that is answered."""

    def __init__(self) -> None:
        self.to_server, self.to_client = bytearray(), bytearray()

    def client(self) -> Channel:
        return Channel(_End(self.to_client, self.to_server), FrameLimits())

    def serve(self, **context: Any) -> Quota:
        """Run a lane over everything sent so far; returns its quota."""
        quota = Quota(LIMIT_BYTES)
        runner = Runner(REGISTRY, Context(quota=quota, **context))
        LaneServer(_End(self.to_server, self.to_client), runner, quota).serve()
        return quota


class _End:
    def __init__(self, source: bytearray, sink: bytearray) -> None:
        self._source, self._sink = source, sink

    def send(self, data: BufferLike, /) -> int:
        return self.sendmsg([data])

    def sendmsg(self, buffers: Iterable[BufferLike], /) -> int:
        data = b"".join(bytes(b) for b in buffers)
        self._sink += data
        return len(data)

    def recv_into(self, buffer: memoryview, nbytes: int = 0, /) -> int:
        part = self._source[: len(buffer)]
        buffer[: len(part)] = part
        del self._source[: len(part)]
        return len(part)


class Bad(CpuOperation):
    """An operation with every way of misbehaving that the lane must contain."""

    name, implementation = "bad", "none"
    limits = Limits(inputs_max=1, input_bytes_max=10)
    signature = Signature()

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        how = args.get("how")
        if how == "raise":
            raise KeyError("lost")
        if how == "memory":
            raise MemoryError
        if how == "refuse":
            raise OpFailed(OpCode.EINVAL, "no")
        if how == "not json":
            return {"x": object()}, []
        if how == "nan":
            return {"x": float("nan")}, []
        return {}, [memoryview(b"abcdef")[::2]]  # not contiguous


REGISTRY = load_registry(["noop", "burn"])
REGISTRY.add(Bad())


def answers(ends: Ends) -> list[Meta]:
    channel = ends.client()
    found: list[Meta] = []
    while (received := channel.receive()) is not None:
        header, meta = received
        payload = bytearray(header.payload_bytes)
        channel.receive_payload([memoryview(payload)])
        found.append(meta | {"payload": bytes(payload), "call": header.call})
    return found


args = st.dictionaries(
    st.sampled_from(["size", "buffer", "offset", "how", "ms", "x"]),
    st.none()
    | st.integers(-2, 2000)
    | st.floats(-1, 2)
    | st.text(max_size=5)
    | st.sampled_from(["raise", "memory", "nan", "not json", "refuse"]),
    max_size=3,
)
EARLY = "noop bad nonsense sync operations buffer.new buffer.read buffer.write buffer.free"
calls = st.tuples(
    st.sampled_from([*EARLY.split(), ""]),
    args,
    st.lists(st.binary(max_size=2000), max_size=3),
    st.booleans(),
)


@settings(max_examples=60)
@given(st.lists(calls, max_size=12))
def test_calls_are_answered_in_order(made: list[tuple[str, Meta, list[bytes], bool]]) -> None:
    ends = Ends()
    client = ends.client()
    for number, (name, arguments, buffers, reply) in enumerate(made):
        meta = {"op": name, "args": arguments, "in": [len(b) for b in buffers]}
        client.send(meta, buffers, call=number, flags=0 if reply else NO_REPLY)
    client.send({"op": "sync"}, call=999)
    client.send({"op": "noop", "in": [3]}, [b"end"], call=1000)
    quota = ends.serve()
    found = answers(ends)
    wanted = [n for n, (*_, reply) in enumerate(made) if reply]
    assert [answer["call"] for answer in found] == [*wanted, 999, 1000]
    assert all("ran" in answer or answer["error"]["code"] in set(OpCode) for answer in found)
    assert found[-1]["payload"] == b"end"  # payloads were drained, whatever became of their calls
    assert quota.used_bytes == 0


@given(st.binary(max_size=300))
def test_malformed_frames_end_the_lane(data: bytes) -> None:
    ends = Ends()
    ends.to_server += data
    assert ends.serve().used_bytes == 0


@given(
    st.dictionaries(
        st.sampled_from(["op", "args", "in", "x"]),
        st.none()
        | st.integers()
        | st.just("noop")
        | st.lists(st.integers() | st.none(), max_size=3)
        | st.lists(st.dictionaries(st.just("buffer"), st.integers() | st.text(), max_size=1)),
    )
)
def test_any_meta_is_answered_or_ends_the_lane(meta: Meta) -> None:
    ends = Ends()
    ends.client().send(meta)
    ends.serve()
    assert len(answers(ends)) == 1


ALL = """noop burn bad sync operations operations.describe buffer.new buffer.read buffer.write
buffer.free content.put graph.put graph.run graph.free session.new session.free resource.register
resource.release segment.new ?"""
COMMANDS = st.sampled_from(ALL.split())
VALUES: st.SearchStrategy[object] = (
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.integers(-(2**70), 2**70)
    | st.floats(0, 1)
    | st.just("sha256:" + "0" * 64)
    | st.text(max_size=3)
    | st.just([[]])
    | st.just({"source": ""})
)
WORDS = st.sampled_from(
    ["size", "buffer", "offset", "graph", "content", "iterations", "session", "type", "how"]
)
FRAMES = st.tuples(
    COMMANDS,
    st.dictionaries(WORDS, VALUES, max_size=3),
    st.lists(st.integers(0, 400), max_size=3),
    st.sampled_from([0, 0, NO_REPLY, SHARED, 0x80]),
    st.booleans(),
)


@settings(max_examples=80)
@given(st.lists(FRAMES, max_size=8))
def test_any_batch_is_answered_frame_by_frame_or_ends_the_lane(
    frames: list[tuple[str, Meta, list[int], int, bool]],
) -> None:
    """Known commands with any arguments, payloads, flags: the lane counts and forgets nothing."""
    ends = Ends()
    wanted = 0
    for name, args, sizes, flags, resident in frames:
        inputs: list[int | dict[str, int]] = [*sizes, {"buffer": 1}] if resident else list(sizes)
        meta = {"op": name, "args": args, "in": inputs}
        ends.client().send(meta, [bytes(size) for size in sizes], flags=flags)
        wanted += not flags & NO_REPLY
    quota = ends.serve()
    assert quota.used_bytes == 0, "all of a lane's memory is back at its end"
    found = answers(ends)
    broken = [one for one in found if one.get("error", {}).get("code") == "EPROTO"]
    assert len(found) == wanted or (broken and len(found) <= wanted + 1)
    assert all("ran" in one or one["error"]["message"] for one in found)


def step(**step: object) -> dict[str, object]:
    graph = {"source": "", "buffers": [], "steps": [step]}
    return {"op": "graph.put", "args": {"graph": graph}}


def nested(levels: int) -> list[object]:
    return [nested(levels - 1)] if levels else []


@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({"op": "noop", "args": {"x": nested(200)}}, ""),
        (step(kernel="k", **{"global": [1], "local": [1]}, args=[[[], 1]]), "EINVAL"),
        (step(kernel="k", **{"global": [1], "local": [1]}, args=[[{}, 1]]), "EINVAL"),
        ({"op": "noop", "in": [0] * 65}, "E2BIG"),
        ({"op": "no such name" * 100}, "ENOENT"),
        ({"op": "noop", "args": {"x": "y" * (META_BYTES_MAX - 30)}}, "E2BIG"),  # in the answer
        ({"op": "burn", "args": {"ms": 10**400}}, "EINVAL"),
        ({"op": "burn", "args": {"ms": -(10**400)}}, "EINVAL"),
        ({"op": "bad", "args": {"how": "raise"}}, "EIO"),
        ({"op": "bad", "args": {"how": "memory"}}, "ENOMEM"),
        ({"op": "bad", "args": {"how": "refuse"}}, "EINVAL"),
        ({"op": "bad", "args": {"how": "not json"}}, "EIO"),
        ({"op": "bad", "args": {"how": "nan"}}, "EIO"),
        ({"op": "bad"}, "EIO"),
        ({"op": "bad", "in": [11]}, "E2BIG"),
        ({"op": "bad", "in": [0, 0]}, "EINVAL"),
    ],
)
def test_unusual_calls_fail_alone(meta: Meta, code: str) -> None:
    ends = Ends()
    sizes = [size for size in meta.get("in", ()) if size]
    ends.client().send(meta, [bytes(size) for size in sizes])
    ends.client().send({"op": "noop"})
    ends.serve()
    odd, good = answers(ends)
    assert odd.get("error", {"code": ""})["code"] == code
    assert good["ran"] == "none"


def test_too_large_results_are_an_error_of_their_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane, "RESULT_BYTES_MAX", 2)
    ends = Ends()
    for data, flags in ((b"abc", 0), (b"abc", NO_REPLY), (b"ab", 0)):
        ends.client().send({"op": "noop", "in": [len(data)]}, [data], flags=flags)
    ends.serve()
    large, small = answers(ends)
    assert large["error"]["code"] == "E2BIG"
    assert "read it in parts" in large["error"]["message"]
    assert small["payload"] == b"ab"


@pytest.mark.parametrize("put", [False, True])
def test_a_meta_at_the_depth_limit_is_answered(put: bool) -> None:
    """One level more in the answer must not be one too many."""
    for levels in range(930, 1000):
        deep = "[" * levels + "]" * levels
        text = f'{{"op": "noop", "args": {{"x": {deep}}}}}'
        if put:
            call = f'{{"op": "noop", "args": {{"x": {deep}}}, "in": [], "out": []}}'
            graph = f'{{"source": "", "buffers": [], "steps": [{call}]}}'
            text = f'{{"op": "graph.put", "args": {{"graph": {graph}}}}}'
        ends, body = Ends(), text.encode()
        ends.to_server += HEADER.pack(MAGIC, VERSION, 0, 0, len(body), 0) + body
        ends.serve()
        assert ends.to_client, "no answer"


@settings(max_examples=25)
@given(st.binary(max_size=40), st.integers(0, 1 << 22), st.integers(1, 3))
def test_any_bytes_on_the_bell_affect_their_own_lane_only(
    rings: bytes, size: int, times: int
) -> None:
    ours, theirs = socket.socketpair()
    quota = Quota(1 << 23)
    server = LaneServer(theirs, Runner(REGISTRY, Context(quota=quota)), quota, shared_lane(theirs))
    thread = threading.Thread(target=server.serve)
    thread.start()
    with ours, theirs:
        ours.settimeout(60)
        memory = SharedMemory(ours, 1)
        for _ in range(times):
            meta = {"op": "noop", "in": [size]}
            ours.sendall(pack(meta, flags=SHARED | NO_REPLY, payload_bytes=size))
        memory._bell.send(rings or b"F")
        memory.close()
        ours.shutdown(socket.SHUT_WR)
        thread.join()
    assert quota.used_bytes == 0


def test_the_registry_lists_known_names_in_errors() -> None:
    with pytest.raises(OpFailed, match="ENOTSUP"):
        REGISTRY.find("burn", "cuda")
    with pytest.raises(OpFailed, match="noop"):
        REGISTRY.find("nonsense", "cpu")
    assert "installed are aes_cbc, arrays" in load_registry(["nonsense"]).failures["nonsense"]


def test_an_operation_with_a_missing_library_is_enotsup() -> None:
    registry = load_registry(["noop"])
    registry.failures["onnx"] = "No module named 'onnxruntime'"
    with pytest.raises(OpFailed, match=r"ENOTSUP: .* cannot be loaded here: No module"):
        registry.find("onnx", "cpu")
    with pytest.raises(OpFailed, match="ENOENT: no operation 'onx'; this device has noop"):
        registry.find("onx", "cpu")


def test_an_operation_that_cannot_prepare_is_removed() -> None:
    class Broken(Bad):
        name = "broken"

        def prepare(self, context: Context) -> None:
            raise OSError("no model")

    registry = Registry()
    registry.add(Broken())
    registry.add(Bad())
    registry.prepare(Context())
    assert registry.names("cpu") == ("bad",)
    assert "no model" in registry.failures["broken by none"]


def test_a_quota_is_thread_safe() -> None:
    quota = Quota(1000)
    taken: list[int] = []
    codes: list[str] = []

    def work() -> None:
        for _ in range(200):
            try:
                with quota.held(400):
                    taken.append(quota.used_bytes)
            except OpFailed as failed:
                codes.append(failed.code)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert quota.used_bytes == 0
    assert max(taken) <= 1000
    assert set(codes) <= {OpCode.ENOMEM}


def test_cached_memory_is_freed_before_a_refusal() -> None:
    quota = Quota(1_000_000)
    first, second = Area(quota), Area(quota)
    for area in (first, second):
        assert area.take(400_000).nbytes == 400_000
    with pytest.raises(OpFailed, match="400000 bytes beside the 800000 in use"):
        quota.reserve(400_000)  # both are in use
    first.done()
    assert quota.used_bytes == 800_000
    with quota.held(600_000):  # the first is spare
        assert quota.used_bytes == 1_000_000
        with pytest.raises(OpFailed, match="ENOMEM"):
            first.take(100_000)
        second.done()
        assert first.take(100_000).nbytes == 100_000  # and now the second
    second.close()
    first.close()
    quota.reserve(1_000_000)


def test_results_can_stay_on_the_device() -> None:
    with Local() as device:
        first, second = device.buffer(4), device.buffer(8)
        first.write(b"abcd")
        result = device.op("noop", first, b"efg", out=[second, first])
        assert result.buffers == []
        assert bytes(second.read()) == b"abcd\0\0\0\0"
        assert bytes(first.read()) == b"efgd"
        device.post("noop", second, out=[second])
        device.sync()
        for wrong in ([first], [first, second]):
            device.post("noop", second, out=wrong)
            with pytest.raises(OpFailed, match="EINVAL"):
                device.sync()
        with pytest.raises(ValueError, match="not both"):
            device.op("noop", first, second, out=[first, bytearray(8)])


@pytest.mark.parametrize("keep", [None, 5, [1.5], [True], ["1"], [7]])
def test_results_are_kept_in_buffers_only(keep: object) -> None:
    ends = Ends()
    client = ends.client()
    client.send({"op": "noop", "in": [1], "keep": keep}, [memoryview(b"x")], call=1)
    client.send({"op": "sync"}, call=2)
    ends.serve()
    received = client.receive()
    assert received is not None
    assert received[1]["error"]["code"] == ("ENOENT" if keep == [7] else "EPROTO")
