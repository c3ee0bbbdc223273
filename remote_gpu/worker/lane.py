"""What one lane can do, and the loop that serves it from a blocking socket.

Besides the operations of the registry a lane has `buffer.new|write|read|free`, `content.put`,
`graph.put|run|free`, `session.new|free`, `resource.register|release`, `operations`,
`operations.describe` and `sync`. Inputs are received into an area that is reused from
call to call (no page faults, counted in the quota); those of `buffer.write` and, where host and
device share memory, of `graph.run` are received straight into place. With `keep` in a call its
results are not sent: they go to resident buffers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from remote_gpu.wire.channel import Channel, Stream
from remote_gpu.wire.errors import OpCode, OpFailed, WireError
from remote_gpu.wire.frames import (
    NO_REPLY,
    Header,
    Limits,
    Meta,
    flat_views,
    int_field,
    numbered,
    pack,
    text_field,
)
from remote_gpu.wire.segment import SEGMENT_COMMAND
from remote_gpu.worker.arguments import Arguments
from remote_gpu.worker.graphs import Graphs
from remote_gpu.worker.memory.memory import Area, Buffers
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.memory.segments import SharedLane
from remote_gpu.worker.operation import Context, Outcome
from remote_gpu.worker.registry import Registry, load_registry, wanted_implementation
from remote_gpu.worker.store.resources import Sessions

#: One input: bytes, the handle of a resident buffer, or the content of a registered resource.
Input: TypeAlias = "memoryview | int | str"
#: values, buffers (flat byte views), implementation
Ran: TypeAlias = "tuple[Meta, list[memoryview], str]"

#: Before the quota is asked a frame is only limited by what can be drained in seconds.
LANE_LIMITS = Limits(payload_bytes_max=1 << 36)
#: What a client takes in one answer.
RESULT_BYTES_MAX = Limits().payload_bytes_max
_IN_PARTS = f"{RESULT_BYTES_MAX} go back at once: keep them in a buffer and read it in parts"


class Runner:
    """The commands of one lane. Not thread-safe; a lane has one thread."""

    def __init__(self, registry: Registry, context: Context) -> None:
        self._registry = registry
        self._context = context
        self._buffers = Buffers(context.quota)
        self._commands: dict[str, Callable[[Arguments], Outcome]] = {
            "buffer.new": self._buffers.new,
            "buffer.read": self._buffers.read,
            "buffer.free": self._buffers.free,
            "operations": self._operations,
            "operations.describe": self._described,
            "sync": _nothing,
        }
        self._sessions = Sessions(context.resources, context.contents, context.quota)
        self._commands |= {
            "session.new": self._sessions.new,
            "session.free": self._sessions.free,
            "resource.register": self._sessions.register,
            "resource.release": self._sessions.release,
        }
        self._graphs = Graphs(context, registry)
        self._commands_with_inputs: dict[str, Callable[..., Outcome]] = {
            "buffer.write": self._buffers.write,
            "graph.run": self._graphs.run,
            "content.put": self._graphs.content,
        }
        self._commands |= {"graph.put": self._graphs.put, "graph.free": self._graphs.free}

    def run(self, name: str, args: Arguments, inputs: Sequence[Input]) -> Ran:
        """Run one command. Raises OpFailed only; whatever else is raised inside is EIO."""
        try:
            if (command := self._commands.get(name)) is not None:
                values, results = command(args)
                return values, results, ""
            views: list[memoryview] = []
            if inputs:
                views = [i if isinstance(i, memoryview) else self._resident(i) for i in inputs]
            if (with_inputs := self._commands_with_inputs.get(name)) is not None:
                values, results = with_inputs(args, views)
                return values, results, self._graphs.implementation
            wanted = wanted_implementation(args) if args else None
            operation = self._registry.find(name, self._context.kind, wanted)
            operation.limits.check(name, [view.nbytes for view in views])
            with self._context.turn_of(operation):
                values, results = operation.run(self._context, args, views)
            return values, flat_views(results) if results else [], operation.implementation
        except OpFailed:
            raise
        except MemoryError:
            raise OpFailed(OpCode.ENOMEM, f"{name}: the process has no more memory") from None
        except Exception as error:
            raise OpFailed(OpCode.EIO, f"{name}: {type(error).__name__}: {error}") from error

    def keep(self, results: Sequence[memoryview], handles: Sequence[int]) -> None:
        """Copy results to the beginning of resident buffers. Raises OpFailed: EINVAL, ENOENT."""
        if len(results) != len(handles):
            message = f"{len(results)} results cannot be kept in {len(handles)} buffers"
            raise OpFailed(OpCode.EINVAL, message)
        for result, handle in zip(results, handles, strict=True):
            place = self._buffers.view(handle)
            if result.nbytes > place.nbytes:
                message = f"a result of {result.nbytes} bytes, a buffer of {place.nbytes}"
                raise OpFailed(OpCode.EINVAL, message)
            place[: result.nbytes] = result

    def places(self, name: str, args: Arguments, sizes: Sequence[int]) -> list[memoryview] | None:
        """Where the device itself wants the inputs of a command; None: anywhere.

        `buffer.write` fills a part of a resident buffer, a graph's run its inputs. Raises OpFailed.
        """
        if name == "buffer.write" and len(sizes) == 1:
            return [self._buffers.part(args, sizes[0])]
        return self._graphs.places(args, sizes) if name == "graph.run" else None

    def close(self) -> None:
        """Free every resident buffer, graph and session."""
        self._graphs.close()
        self._sessions.close()
        self._buffers.close()

    def _operations(self, args: Arguments) -> Outcome:
        del args
        return {"operations": list(self._registry.names(self._context.kind))}, []

    def _described(self, args: Arguments) -> Outcome:
        del args
        return {"operations": self._registry.described(self._context.kind)}, []

    def _resident(self, which: int | str) -> memoryview:
        if isinstance(which, int):
            return self._buffers.view(which)
        return self._context.resources.data(which)


def _nothing(args: Arguments) -> Outcome:
    del args  # all before it is done
    return {}, []


def local_runner(data: Mapping[str, Path | str]) -> Runner:
    """For `remote_gpu.client.Local`: this process's CPU, all operations, no quota."""
    return Runner(load_registry(), Context(data={name: Path(at) for name, at in data.items()}))


class LaneServer:
    """Serves one lane until its peer closes it or breaks the protocol."""

    def __init__(
        self, stream: Stream, runner: Runner, quota: Quota, shared: SharedLane | None = None
    ) -> None:
        """`shared`: for a client of the same machine, which may ask for shared memory."""
        self._shared = shared
        self._channel = Channel(stream, LANE_LIMITS, only_read=True)
        self._runner = runner
        self._area = Area(quota)
        self._sticky: OpFailed | None = None
        self._empty: dict[str, bytearray] = {}  # answers without values, by what ran

    def serve(self) -> None:
        """Answer calls in order. Returns when the peer is gone; raises nothing else."""
        try:
            while (received := self._channel.receive()) is not None:
                self._serve_one(*received)
                if self._area.in_use:
                    self._area.done()
        except WireError as error:  # the stream has lost its frames: nothing can follow
            with contextlib.suppress(OSError):
                self._channel.send(_error(OpFailed(OpCode.EPROTO, str(error))))
        except OSError:
            pass  # the peer is gone, which is how a lane ends
        finally:
            self._runner.close()
            self._area.close()
            if self._shared is not None:
                self._shared.close()

    def _serve_one(self, header: Header, meta: Meta) -> None:
        try:
            name = text_field(meta, "op", LANE_LIMITS.meta_bytes_max)
            if name == SEGMENT_COMMAND:
                self._share(header)
                return
            values, results, ran = self._run(name, header, meta)
        except OpFailed as error:
            self._answer(header, _error(error), error)
            return
        if values or results:
            answer: Meta = {"ok": values, "ran": ran}
            if results:
                answer["out"] = [view.nbytes for view in results]
            self._answer(header, answer, None, results)
        elif not header.flags & NO_REPLY:
            self._channel.send_bytes(numbered(self._empty_answer(ran), header.call))

    def _share(self, header: Header) -> None:
        """Large payloads go through memory from here on, in both directions."""
        self._channel.discard(header.payload_bytes)
        if header.flags & NO_REPLY:
            return  # it is the answer that brings the memory
        answer = numbered(self._empty_answer(""), header.call)
        if self._shared is not None:
            with contextlib.suppress(OSError):  # no memory, no descriptors: the lane goes on
                self._channel.segment = self._shared.share(bytes(answer))
                return
        self._channel.send_bytes(answer)

    def _empty_answer(self, ran: str) -> bytearray:
        """`{"ran": …}`, the most frequent answer of small calls, is packed once."""
        frame = self._empty.get(ran)
        if frame is None:
            frame = self._empty[ran] = bytearray(pack({"ran": ran}))
        return frame

    def _answer(
        self,
        header: Header,
        meta: Meta,
        error: OpFailed | None,
        views: Sequence[memoryview] = (),
    ) -> None:
        if header.flags & NO_REPLY:
            self._sticky = self._sticky or error
            return
        try:
            if (size := sum(meta.get("out", ()))) > RESULT_BYTES_MAX:
                raise OpFailed(OpCode.E2BIG, f"results of {size} bytes; {_IN_PARTS}")
            self._channel.send(meta, views, call=header.call)
        except OpFailed as too_large:  # as below: before any byte was sent
            self._channel.send(_error(too_large), call=header.call)
        except (TypeError, ValueError, RecursionError) as problem:
            message = f"the operation's values are not JSON: {problem}"
            self._channel.send(_error(OpFailed(OpCode.EIO, message)), call=header.call)

    def _run(self, name: str, header: Header, meta: Meta) -> Ran:
        """Receive the payload, whatever happens to the call, then run it."""
        left = header.payload_bytes
        try:
            if self._sticky is not None:
                raise self._told(self._sticky, name)
            if len(meta) == 1 and not left:
                return self._runner.run(name, {}, ())
            args = meta.get("args", {})
            if not isinstance(args, dict):
                raise WireError("'args' must be an object")
            inputs: Sequence[Input] = ()
            if left or "in" in meta:
                inputs, places = self._destinations(name, args, meta.get("in", []), left)
                self._channel.receive_payload(places)
                left = 0
            ran = self._runner.run(name, args, inputs)
            return self._kept(ran, meta["keep"]) if "keep" in meta else ran
        except OpFailed:
            self._channel.discard(left)
            raise

    def _kept(self, ran: Ran, handles: object) -> Ran:
        """The same without its results, which stay here."""
        if not isinstance(handles, list) or any(type(handle) is not int for handle in handles):
            raise WireError("'keep' must list buffers")
        values, results, implementation = ran
        self._runner.keep(results, handles)
        return values, [], implementation

    def _told(self, sticky: OpFailed, name: str) -> OpFailed:
        if name == "sync":
            self._sticky = None
        return sticky

    def _destinations(
        self, name: str, args: Arguments, described: object, payload_bytes: int
    ) -> tuple[Sequence[Input], Sequence[memoryview]]:
        """Where each input goes or already is, and where the payload is received.

        Raises OpFailed(ENOMEM) over the quota.
        """
        if not isinstance(described, list):
            raise WireError("'in' must be a list of inputs")
        if len(described) > LANE_LIMITS.buffers_max:
            raise OpFailed(OpCode.E2BIG, f"a call has at most {LANE_LIMITS.buffers_max} inputs")
        sizes = [item for item in described if type(item) is int]
        if sum(sizes) != payload_bytes or (sizes and min(sizes) < 0):
            raise WireError("the sizes of 'in' do not add up to the payload")
        if len(described) == len(sizes):
            places = self._runner.places(name, args, sizes)
            if places is not None:
                return places, places
        area, at = self._area.take(payload_bytes), 0
        inputs: list[Input] = []
        for item in described:
            if type(item) is int:
                inputs.append(area[at : at + item])
                at += item
            elif isinstance(item, dict) and "content" in item:
                inputs.append(text_field(item, "content"))
            elif isinstance(item, dict):
                inputs.append(int_field(item, "buffer"))
            else:
                raise WireError("an input is a size, a buffer or a content")
        return inputs, (area,)


def _error(error: OpFailed) -> Meta:
    return {"error": {"code": error.code, "message": error.message[:2000]}}
