"""The interface of a trusted named operation, and the context that it runs in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar, cast, runtime_checkable

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.wire.frames import BufferLike, Meta
from remote_gpu.worker.arguments import Arguments, Signature
from remote_gpu.worker.backends.base import Backend, HostBackend
from remote_gpu.worker.backends.choice import open_backend
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.programs.programs import Program
from remote_gpu.worker.store.contents import Contents
from remote_gpu.worker.store.resources import Resources
from remote_gpu.worker.turns import Gate

T = TypeVar("T")

#: What `Operation.run` returns: JSON-serialisable values, and buffers sent as they are.
Outcome: TypeAlias = "tuple[Meta, list[BufferLike]]"

#: How long a call that may be joined waits for those it was joined with before: some round trips
#: of a local network, so that callers who answer each other fall into step.
BATCH_WAIT_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an operation takes; checked before a byte of payload is allocated."""

    inputs_min: int = 0
    inputs_max: int = 0
    input_bytes_max: int = 1 << 30  #: of all inputs together

    def to_meta(self) -> dict[str, int]:
        return {
            "inputs_min": self.inputs_min,
            "inputs_max": self.inputs_max,
            "input_bytes_max": self.input_bytes_max,
        }

    def check(self, name: str, sizes: Sequence[int]) -> None:
        """Inputs of these bytes for operation `name`. Raises OpFailed: EINVAL, E2BIG."""
        if not self.inputs_min <= len(sizes) <= self.inputs_max:
            message = f"{name} takes {self.inputs_min}…{self.inputs_max} inputs, not {len(sizes)}"
            raise OpFailed(OpCode.EINVAL, message)
        if (total := sum(sizes)) > self.input_bytes_max:
            message = f"{name} takes {self.input_bytes_max} bytes of input, not {total}"
            raise OpFailed(OpCode.E2BIG, message)


class Warm:
    """Loaded resources by key. Filled before a lease's process is forked, it is shared by all."""

    def __init__(self) -> None:
        self._entries: Meta = {}
        self._loading = threading.RLock()  # lanes load at the same time, and a load loads others

    def get(self, key: str, load: Callable[[], T]) -> T:
        """The resource of `key`, loaded at most once in this process and its children."""
        if key not in self._entries:
            with self._loading:
                if key not in self._entries:
                    self._entries[key] = load()
        return cast("T", self._entries[key])

    def find(self, key: str) -> object:
        """The resource of `key` if it is resident."""
        return self._entries.get(key)

    def keys(self) -> tuple[str, ...]:
        """What is resident, in order of loading: the warm keys a request may name."""
        return tuple(self._entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an operation may use besides its arguments and inputs."""

    data: Mapping[str, Path] = field(default_factory=dict)  #: `gpud --data NAME=PATH`
    kind: str = "cpu"  #: of the device it runs on
    device: str = ""  #: its id, as its host's monitor names it; "" = the first of its kind
    tenant: str = "default"
    warm: Warm = field(default_factory=Warm)
    quota: Quota = field(default_factory=Quota)  #: reserve before allocating, free after
    contents: Contents = field(default_factory=Contents)  #: what the tenant sent by its hash
    resources: Resources = field(default_factory=Resources)  #: what sessions registered
    programs: Mapping[str, Program] = field(default_factory=dict)  #: `gpud --program NAME=…`
    lifeline: int | None = None  #: held open by what runs for the lease: gpud sees its end
    compiled: Path | None = None  #: folder for compiled kernels of the tenant
    gate: Gate | None = None  #: of the device; None: nobody else is on it
    within_turn: bool = False  #: its caller holds the turn: none is taken, nobody is waited for
    batch_wait_s: float = BATCH_WAIT_S  #: `gpud --batch-wait-ms`
    kernels_refused: str = ""  #: why callers' kernels do not run on this host's CPU; "" = they do

    def data_path(self, name: str) -> Path:
        """Where host-resident data lies. Raises OpFailed(ENOENT) naming what there is."""
        try:
            return self.data[name]
        except KeyError:
            known = ", ".join(sorted(self.data)) or "none"
            raise OpFailed(
                OpCode.ENOENT, f"no data {name!r} on this host; it has {known}"
            ) from None

    def turn(self) -> AbstractContextManager[None]:
        """To compute within; without a gate it is always one's own turn."""
        if self.gate is None or self.within_turn:
            return contextlib.nullcontext()
        return self.gate.turn()

    def turn_of(self, operation: Operation) -> AbstractContextManager[None]:
        """Around a run of an operation: nothing for one that takes turns by itself."""
        if operation.own_turns or self.gate is None or self.within_turn:
            return contextlib.nullcontext()
        return self.gate.turn()

    def open_backend(self) -> Backend:
        """Where kernels of this device run; see `backends.choice`."""
        return open_backend(self.kind, self.device, self.compiled)

    def open_backend_of_callers(self) -> Backend:
        """The same for kernels that are not the host's own."""
        if self.kernels_refused and self.kind == "cpu":
            return HostBackend(self.kernels_refused)
        backend = self.open_backend()
        if self.kernels_refused and backend.on_host:
            message = f"this device runs no kernels: {self.kernels_refused}"
            raise OpFailed(OpCode.ENOTSUP, message)
        return backend


@runtime_checkable
class Operation(Protocol):
    """One implementation of a named operation. Instances are stateless; state is in `Warm`."""

    @property
    def name(self) -> str:
        """What a caller asks for: `onnx`."""
        ...

    @property
    def version(self) -> int:
        """Rises when arguments or results change their meaning."""
        ...

    @property
    def kinds(self) -> tuple[str, ...]:
        """Device kinds it runs on."""
        ...

    @property
    def implementation(self) -> str:
        """What ran, for the caller: `numpy 2.4`, `opencl-tiled`; travels with every result.

        Its first word is unique among those of one name; callers ask for it by that.
        """
        ...

    @property
    def signature(self) -> Signature: ...

    @property
    def limits(self) -> Limits: ...

    @property
    def by_kernels(self) -> bool:
        """It computes by kernels: offered only where the device's driver answers."""
        ...

    @property
    def own_turns(self) -> bool:
        """It waits for others before it computes, and takes `context.turn()` itself."""
        ...

    def prepare(self, context: Context) -> None:
        """Load into `context.warm` what every lease may share; called once, before any lease.

        May do nothing. An error is logged and disables this implementation on the host.
        """
        ...

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        """Compute. `inputs` are flat byte views, valid only until it returns.

        Raises OpFailed with the code that says who has to act; anything else becomes EIO.
        """
        ...


class CpuOperation:
    """What most operations are: computed by the host's CPU, nothing to prepare, one turn a run."""

    version = 1
    kinds: tuple[str, ...] = ("cpu",)
    by_kernels = False
    own_turns = False

    def prepare(self, context: Context) -> None:
        """Needs nothing."""
