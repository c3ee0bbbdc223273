"""The commands of one lane, and the loop that serves it from a blocking socket.

Besides the operations of the registry a lane has `buffer.new|write|read|free`, `content.put`,
`graph.put|run|free`, `session.new|free`, `resource.register|release`, `data.open|read`,
`operations`, `operations.describe`, `regions` and `sync`. Inputs are received into memory that is
reused from call to call (no page faults, counted in the quota); it is pinned for operations that
compute on an NVIDIA card. Those of `buffer.write` and, if host and device share memory, of
`graph.run` are received straight into place. The results of a call with `keep` go to resident
buffers and are not sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from remote_gpu.wire.channel import Channel, Stream
from remote_gpu.wire.errors import OpCode, OpFailed, WireError, invalid
from remote_gpu.wire.frames import (
    NO_REPLY,
    FrameLimits,
    Header,
    Meta,
    flat_views,
    int_field,
    numbered,
    pack,
    text_field,
)
from remote_gpu.wire.segment import SEGMENT_COMMAND
from remote_gpu.wire.uses import Uses
from remote_gpu.worker.arguments import Arguments
from remote_gpu.worker.backends.calls import calls_of
from remote_gpu.worker.graphs import Graphs
from remote_gpu.worker.joining import registered_model
from remote_gpu.worker.memory.memory import Area, Buffers, Source
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.memory.segments import SharedLane
from remote_gpu.worker.operation import Context, CpuOperation, LaneUses, Outcome
from remote_gpu.worker.regions import Regions
from remote_gpu.worker.registry import Registry, load_registry, wanted_implementation
from remote_gpu.worker.store import host_data
from remote_gpu.worker.store.resources import Sessions

#: One input: bytes, the handle of a resident buffer, or the content of a registered resource.
Input: TypeAlias = "memoryview | int | str"
_Command: TypeAlias = Callable[[Arguments], Outcome]
_CommandWithInputs: TypeAlias = Callable[[Arguments, Sequence[memoryview]], Outcome]
#: Values, buffers (flat byte views), implementation.
CallResult: TypeAlias = "tuple[Meta, list[memoryview], str]"

#: Before the check of the quota: what can be skipped within seconds.
LANE_LIMITS = FrameLimits(payload_bytes_max=1 << 36)
#: Of one answer.
RESULT_BYTES_MAX = FrameLimits().payload_bytes_max
_IN_PARTS = f"an answer has at most {RESULT_BYTES_MAX}: keep them in a buffer, read it in parts"


class Runner:
    """The commands of one lane. Not thread-safe: a lane has one thread."""

    def __init__(self, registry: Registry, context: Context) -> None:
        self._registry = registry
        self._uses = LaneUses()
        self.regions = Regions()
        context = dataclasses.replace(context, uses=self._uses, regions=self.regions)
        self._context = context
        self._buffers = Buffers(context.quota)
        self._commands: dict[str, _Command] = {
            "buffer.new": self._buffers.new,
            "buffer.read": self._buffers.read,
            "buffer.free": self._buffers.free,
            # the use of the lease's devices on this host by other leases: [free, slowdown]
            "device.loads": lambda _: (
                {"devices": {} if context.loads is None else context.loads.ask()},
                [],
            ),
            "operations": lambda _: ({"operations": list(registry.names(context.kind))}, []),
            "operations.describe": lambda _: (
                {"operations": registry.described(context.kind)},
                [],
            ),
            "data.open": partial(host_data.opened, context),
            "data.read": partial(host_data.read, context),
            "regions": lambda _: (self.regions.values(), []),
            "sync": lambda _: ({}, []),  # earlier calls have ended
        }
        self._sessions = Sessions(context.resources, context.contents, context.quota)
        self._commands |= {
            "session.new": self._sessions.new,
            "session.free": self._sessions.free,
            "resource.register": self._sessions.register,
            "resource.release": self._sessions.release,
        }
        self._graphs = Graphs(context, registry)
        self._commands_with_inputs: dict[str, _CommandWithInputs] = {
            "buffer.write": self._buffers.write,
            "graph.run": self._graphs.run,
            "content.put": self._graphs.content,
        }
        self._commands |= {"graph.put": self._graphs.put, "graph.free": self._graphs.free}

    def run(self, name: str, args: Arguments, inputs: Sequence[Input]) -> CallResult:
        """Run one command. Raises OpFailed only; other exceptions inside become EIO."""
        try:
            if (command := self._commands.get(name)) is not None:
                values, results = command(args)
                return values, results, ""
            views: list[memoryview] = []
            if inputs:
                views = [i if isinstance(i, memoryview) else self._resident(i) for i in inputs]
            self.regions.begin()
            began_s = time.perf_counter()
            try:
                return self._ran_with(name, args, views)
            finally:
                self.regions.ran_s = time.perf_counter() - began_s
        except OpFailed:
            raise
        except MemoryError:
            raise OpFailed(OpCode.ENOMEM, f"{name}: the worker is out of memory") from None
        except Exception as error:
            raise OpFailed(OpCode.EIO, f"{name}: {type(error).__name__}: {error}") from error

    def _ran_with(self, name: str, args: Arguments, views: Sequence[memoryview]) -> CallResult:
        if (with_inputs := self._commands_with_inputs.get(name)) is not None:
            values, results = with_inputs(args, views)
            return values, results, self._graphs.implementation
        wanted = wanted_implementation(args) if args else None
        operation = self._registry.find(name, self._context.kind, wanted)
        operation.limits.check(name, [view.nbytes for view in views])
        if operation.own_turns and (joined := self._in_batch(name, args, views)) is not None:
            return joined
        values, outputs = self._computed(operation, args, views)
        return values, flat_views(outputs) if outputs else [], operation.implementation

    def _in_batch(
        self, name: str, args: Arguments, views: Sequence[memoryview]
    ) -> CallResult | None:
        """The result of a call in the batch process; None: it is computed here."""
        batches, model = self._context.batches, registered_model(args)
        if batches is None:
            return None
        named = args.get("model")
        if isinstance(named, str) and named.startswith("data:"):  # it is opened elsewhere
            self._context.data_path(named[5:].partition("/")[0])
        data = None if model is None else self._context.resources.data(model)
        result = batches.op(name, args, views, data)
        if result is None:
            return None
        with self._context.quota.held(sum(view.nbytes for view in result.buffers)):
            return result.values, result.buffers, result.implementation

    def _computed(
        self, operation: CpuOperation, args: Arguments, views: Sequence[memoryview]
    ) -> Outcome:
        """The results of an operation. It runs again without the models that only earlier leases
        used, when it lacks memory."""
        try:
            outcome = self._ran(operation, args, views)
        except OpFailed as error:
            if error.code != OpCode.ENOMEM or not self._context.resources.evict():
                raise
            outcome = self._ran(operation, args, views)
        if operation.loads is not None and self._context.used is not None:
            self._context.used.note(operation, args)
        return outcome

    def _ran(
        self, operation: CpuOperation, args: Arguments, views: Sequence[memoryview]
    ) -> Outcome:
        with self._context.turn_of(operation):
            return operation.run(self._context, args, views)

    def used(self) -> Uses | None:
        """The host's data and programs that calls used since the last answer that named any."""
        return self._uses.take()

    def keep(self, results: Sequence[memoryview], handles: Sequence[int]) -> None:
        """Copy results to the beginning of resident buffers. Raises OpFailed: EINVAL, ENOENT."""
        if len(results) != len(handles):
            raise invalid(f"{len(results)} results do not fit {len(handles)} buffers")
        began_s = time.perf_counter()
        for result, handle in zip(results, handles, strict=True):
            target = self._buffers.view(handle)
            if result.nbytes > target.nbytes:
                message = f"a result of {result.nbytes} bytes does not fit a buffer of"
                raise invalid(f"{message} {target.nbytes}")
            target[: result.nbytes] = result
        self.regions.copied_s += time.perf_counter() - began_s

    def places(self, name: str, args: Arguments, sizes: Sequence[int]) -> list[memoryview] | None:
        """Memory of the device to receive the inputs of a command in; None: any memory.

        A part of the buffer for `buffer.write`, a graph's inputs for its run. Raises OpFailed.
        """
        if name == "buffer.write" and len(sizes) == 1:
            return [self._buffers.part(args, sizes[0])]
        return self._graphs.places(args, sizes) if name == "graph.run" else None

    def source(self, name: str, args: Arguments) -> Source | None:
        """Memory from which the device copies the inputs of an operation by itself; None: any."""
        context = self._context
        if context.kind != "cuda" or name in self._commands_with_inputs:
            return None
        try:
            operation = self._registry.find(name, context.kind, wanted_implementation(args))
            if not operation.by_kernels or (operation.own_turns and context.batches is not None):
                return None
            return calls_of(context).backend.host_memory
        except OpFailed:  # the call itself fails with the reason
            return None

    def close(self) -> None:
        """Free every resident buffer, graph and session."""
        self._graphs.close()
        self._sessions.close()
        self._buffers.close()

    def _resident(self, which: int | str) -> memoryview:
        if isinstance(which, int):
            return self._buffers.view(which)
        return self._context.resources.data(which)


def local_runner(data: Mapping[str, Path | str]) -> Runner:
    """The runner of `remote_gpu.client.Local`: this process's CPU, all operations, no quota."""
    own = {name: Path(at) for name, at in data.items()}
    return Runner(load_registry(), Context(data=own, declared=own))


class LaneActivity:
    """The state of a lane for other threads of its worker."""

    __slots__ = ("calling",)

    def __init__(self) -> None:
        self.calling = False  #: a call runs; its answer is not being sent yet


class LaneServer:
    """Serves one lane until its peer closes it or breaks the protocol."""

    def __init__(
        self,
        stream: Stream,
        runner: Runner,
        quota: Quota,
        shared: SharedLane | None = None,
        activity: LaneActivity | None = None,
    ) -> None:
        """`shared`: for a client on the same machine, which may request shared memory."""
        self._shared = shared
        self._activity = activity or LaneActivity()
        self._channel = Channel(stream, LANE_LIMITS, only_read=True)
        self._runner = runner
        self._area = Area(quota)
        self._sticky: OpFailed | None = None
        self._empty: dict[str, bytearray] = {}  # answers without values, by implementation

    def serve(self) -> None:
        """Answer calls in order. Returns when the peer has gone; raises nothing."""
        try:
            while (received := self._channel.receive()) is not None:
                self._serve_one(*received)
                if self._area.in_use:
                    self._area.done()
        except WireError as error:  # no frame can follow
            with contextlib.suppress(OSError):
                self._channel.send(_error(OpFailed(OpCode.EPROTO, str(error))))
        except OSError:
            pass  # the peer has gone: the usual end of a lane
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
            self._activity.calling = True
            values, results, ran = self._run(name, header, meta)
        except OpFailed as error:
            self._activity.calling = False
            self._answer(header, _error(error), error)
            return
        self._activity.calling = False
        used = None if header.flags & NO_REPLY else self._runner.used()
        if values or results or used:
            answer: Meta = {"ok": values, "ran": ran}
            if used:
                answer["used"] = used
            if results:
                answer["out"] = [view.nbytes for view in results]
            self._answer(header, answer, None, results)
        elif not header.flags & NO_REPLY:
            self._channel.send_bytes(numbered(self._empty_answer(ran), header.call))

    def _share(self, header: Header) -> None:
        self._channel.discard(header.payload_bytes)
        if header.flags & NO_REPLY:
            return  # the answer would carry the memory
        answer = numbered(self._empty_answer(""), header.call)
        if self._shared is not None:
            with contextlib.suppress(OSError):  # no memory or descriptors: continue without
                self._channel.segment = self._shared.share(bytes(answer))
                return
        self._channel.send_bytes(answer)

    def _empty_answer(self, ran: str) -> bytearray:
        """The packed `{"ran": …}`, the most frequent answer to small calls."""
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
        except OpFailed as too_large:  # before any byte was sent, as below
            self._channel.send(_error(too_large), call=header.call)
        except (TypeError, ValueError, RecursionError) as problem:
            message = f"the values of the operation are not JSON: {problem}"
            self._channel.send(_error(OpFailed(OpCode.EIO, message)), call=header.call)

    def _run(self, name: str, header: Header, meta: Meta) -> CallResult:
        left = header.payload_bytes
        try:
            if (sticky := self._sticky) is not None:
                if name == "sync":
                    self._sticky = None
                raise sticky
            if len(meta) == 1 and not left:
                return self._runner.run(name, {}, ())
            args = meta.get("args", {})
            if not isinstance(args, dict):
                raise WireError("'args' must be an object")
            inputs: Sequence[Input] = ()
            began_s = time.perf_counter()
            if left or "in" in meta:
                inputs, places = self._destinations(name, args, meta.get("in", []), left)
                self._channel.receive_payload(places)
                left = 0
            copied_s = time.perf_counter() - began_s
            ran = self._runner.run(name, args, inputs)
            self._runner.regions.copied_s += copied_s
            return self._keep(ran, meta["keep"]) if "keep" in meta else ran
        except OpFailed:
            self._channel.discard(left)
            raise

    def _keep(self, ran: CallResult, handles: object) -> CallResult:
        if not isinstance(handles, list) or any(type(handle) is not int for handle in handles):
            raise WireError("'keep' must be a list of buffers")
        values, results, implementation = ran
        self._runner.keep(results, handles)
        return values, [], implementation

    def _destinations(
        self, name: str, args: Arguments, described: object, payload_bytes: int
    ) -> tuple[Sequence[Input], Sequence[memoryview]]:
        """The inputs of a call, and the memory to receive the payload in.

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
        area, at = self._area.take(payload_bytes, self._runner.source(name, args)), 0
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
                raise WireError("an input must be a size, a buffer or a content")
        return inputs, (area,)


def _error(error: OpFailed) -> Meta:
    found: Meta = {"code": error.code, "message": error.message[:2000]}
    if error.lacks:
        found["lacks"] = dict(error.lacks)
    return {"error": found}
