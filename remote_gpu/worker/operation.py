"""The interface of a trusted named operation, and the context that it runs in."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from remote_gpu.wire.errors import OpCode, OpFailed, invalid
from remote_gpu.wire.frames import BufferLike, Meta
from remote_gpu.wire.uses import DATA, HOST_KINDS, PROGRAMS, Uses
from remote_gpu.worker.arguments import Arguments, Signature
from remote_gpu.worker.backends.base import Backend, HostBackend
from remote_gpu.worker.backends.choice import open_backend
from remote_gpu.worker.cards.card import Card
from remote_gpu.worker.joining import BatchLanes, Caller
from remote_gpu.worker.loading import LoadingTime
from remote_gpu.worker.loading_ahead import Used
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.programs.programs import ListedProgram
from remote_gpu.worker.regions import Regions
from remote_gpu.worker.settings import WITHOUT_HOST, WorkerOptions
from remote_gpu.worker.store.contents import Contents
from remote_gpu.worker.store.resources import Resources
from remote_gpu.worker.turns import Gate, Loads

T = TypeVar("T")

#: The result of `CpuOperation.run`: JSON values, and buffers.
Outcome: TypeAlias = "tuple[Meta, list[BufferLike]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an operation's inputs, checked before memory is allocated for them."""

    inputs_min: int = 0
    inputs_max: int = 0
    input_bytes_max: int = 1 << 30  #: of all inputs together

    def check(self, name: str, sizes: Sequence[int]) -> None:
        """Check the sizes of inputs. Raises OpFailed: EINVAL, E2BIG."""
        if not self.inputs_min <= len(sizes) <= self.inputs_max:
            message = f"{name} takes {self.inputs_min}…{self.inputs_max} inputs, not {len(sizes)}"
            raise invalid(message)
        if (total := sum(sizes)) > self.input_bytes_max:
            message = f"{name} takes {self.input_bytes_max} bytes of input, not {total}"
            raise OpFailed(OpCode.E2BIG, message)


class LaneUses:
    """The data sets and programs of the host that the calls of one lane used, for answers; each is
    reported once. Not thread-safe: a lane has one thread."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {kind: {} for kind in HOST_KINDS}
        self._new: dict[str, dict[str, str]] = {}

    def add(self, kind: str, name: str, sha256: str) -> None:
        """A call used this content; "" = its digest is not known, unless an earlier call knew."""
        known = self._known[kind].get(name)
        if known is None or sha256 not in ("", known):
            self._known[kind][name] = sha256
            self._new.setdefault(kind, {})[name] = sha256

    def take(self) -> Uses | None:
        """The uses that no answer has had yet; None without any."""
        if not self._new:
            return None
        new, self._new = self._new, {}
        return new


class Warm:
    """Loaded resources by key. Those loaded before the fork are shared by all leases."""

    def __init__(self) -> None:
        self._entries: Meta = {}
        self._lock = threading.RLock()  # lanes load concurrently, and a load may load others
        self.loading = LoadingTime()

    def get(self, key: str, load: Callable[[], T]) -> T:
        """The resource of `key`, loaded at most once in this process and its children."""
        if key not in self._entries:
            with self._lock:
                if key not in self._entries:
                    with self.loading:
                        self._entries[key] = load()
        return cast("T", self._entries[key])

    def find(self, key: str) -> object:
        """The resource of `key`, if it is loaded."""
        return self._entries.get(key)

    def keys(self) -> tuple[str, ...]:
        """The loaded keys in the order of loading: the warm keys of requests."""
        return tuple(self._entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The environment of an operation, besides its arguments and inputs."""

    data: Mapping[str, Path] = field(default_factory=dict)  #: `gpud --data NAME=PATH`
    #: The data sets that the lease declared; their names come before those of the host.
    declared: Mapping[str, Path] = field(default_factory=dict)
    kind: str = "cpu"  #: of the device it runs on
    device: str = ""  #: id of the monitor; "" = the first of its kind
    tenant: str = "default"
    warm: Warm = field(default_factory=Warm)
    quota: Quota = field(default_factory=Quota)  #: reserve before allocating, free after
    contents: Contents = field(default_factory=Contents)  #: sent by the tenant, by hash
    resources: Resources = field(default_factory=Resources)  #: registered by sessions
    programs: Mapping[str, ListedProgram] = field(default_factory=dict)  #: `gpud --program NAME=…`
    digests: Uses = field(default_factory=dict)  #: of data and programs, by kind and name
    uses: LaneUses | None = None  #: of the calling lane; None: they are not collected
    regions: Regions | None = None  #: of the calling lane; None: waits are not measured
    used: Used | None = None  #: what to load ahead for a later lease; None: not noted
    #: Reports the indexing of host data: name, sequences, finished part from 0 to 1. Outside of
    #: gpud's spawner no client waits for it.
    indexing: Callable[[str, int, float], None] = lambda *_: None
    lifeline: int | None = None  #: descriptor that programs hold open: gpud sees their end
    compiled: Path | None = None  #: folder for compiled kernels of the tenant
    gate: Gate | None = None  #: of the device; None: not shared
    loads: Loads | None = None  #: of the lease's devices; None: not shared
    within_turn: bool = False  #: the caller holds the turn
    options: WorkerOptions = WITHOUT_HOST  #: of gpud; a batch process has a wait of its own
    batch_items_max: int | None = None  #: of one run; None: the operation's own limit
    batches: BatchLanes | None = None  #: to the batch process of the device, if calls join there
    caller: Caller | None = None  #: in a batch process: the lease to charge
    kernels_refused: str = ""  #: reason against callers' kernels on this CPU; "" = they run
    card: Card = field(default_factory=Card)  #: if the device is NVIDIA's
    emulated: frozenset[str] = frozenset()  #: ids of emulated devices, which run no kernels
    #: Called before a kernel or program of a caller, or before a library that keeps data of a call
    #: in its own memory: the worker serves no later lease then. Outside of a host none does.
    taint: Callable[[], None] = lambda: None

    def data_path(self, name: str) -> Path:
        """The path of host data, which counts as used. Raises OpFailed(ENOENT) listing the known
        names."""
        known = {**self.data, **self.declared}
        if name not in known:
            raise _absent(DATA, name, f"no data {name!r} on this host", known)
        self.note_use(DATA, name)
        return known[name]

    def data_file(self, name: str, inside: str) -> Path:
        """A file of host data by its path in it; "" = the data is one file. Raises
        OpFailed(ENOENT), also for a path that leads out of it."""
        root = self.data_path(name).resolve()
        path = (root / inside).resolve() if inside else root
        if not path.is_relative_to(root) or not path.is_file():
            raise OpFailed(OpCode.ENOENT, f"host data {name!r} has no file {inside!r}")
        return path

    def data_key(self, name: str) -> str:
        """The key under which what is loaded from host data stays warm: `data:NAME`, or of a
        declared set its path, which has its content in its name."""
        at = self.declared.get(name)
        return f"data:{name}" if at is None else f"data:{at}"

    def program(self, name: str) -> ListedProgram:
        """A program of the host, which counts as used. Raises OpFailed(ENOENT), as `data_path`."""
        if name not in self.programs:
            raise _absent(PROGRAMS, name, f"this host has no program {name!r}", self.programs)
        self.note_use(PROGRAMS, name)
        return self.programs[name]

    def note_use(self, kind: str, name: str, sha256: str = "") -> None:
        """Report to the caller that its call used this; `sha256`: of content read just now."""
        if self.uses is not None:
            self.uses.add(kind, name, sha256 or self.digests.get(kind, {}).get(name, ""))

    def turn(self) -> AbstractContextManager[None]:
        """A turn on the device to compute in; nothing without a gate."""
        turn = self.turn_of_batch()
        return turn if self.caller is None or self.within_turn else self.caller.charged(turn)

    def turn_of_batch(self) -> AbstractContextManager[None]:
        """A turn whose time is charged by the batch itself."""
        if self.gate is None or self.within_turn:
            return contextlib.nullcontext()
        turn = self.gate.turn()
        return turn if self.regions is None else self.regions.waited(turn)

    def turn_of(self, operation: CpuOperation) -> AbstractContextManager[None]:
        """The turn for a run of an operation; nothing for one with `own_turns`."""
        return contextlib.nullcontext() if operation.own_turns else self.turn()

    def open_backend(self) -> Backend:
        """The backend of this device for the host's own kernels; see `backends.choice`."""
        if self.device in self.emulated:
            message = f"device {self.device} is emulated: it has named operations and no kernels"
            raise OpFailed(OpCode.ENOTSUP, message)
        self.charge_context()
        return open_backend(self.kind, self.device, self.compiled, self.card)

    def charge_context(self) -> None:
        """Count the memory of a context on an NVIDIA card before one is made. Raises
        OpFailed(ENOMEM)."""
        if self.kind == "cuda":
            self.card.charge(self.quota)

    def open_backend_of_callers(self) -> Backend:
        """The backend of this device for kernels of callers."""
        if self.kernels_refused and self.kind == "cpu":
            return HostBackend(self.kernels_refused)
        backend = self.open_backend()
        if self.kernels_refused and backend.on_host:
            message = f"this device runs no kernels: {self.kernels_refused}"
            raise OpFailed(OpCode.ENOTSUP, message)
        self.taint()
        return backend


class CpuOperation:
    """One implementation of a named operation; by default on the host's CPU, one turn per run.

    Instances are stateless; state is in `Warm`.
    """

    name: str  #: for callers: `onnx`
    version = 1  #: increases when arguments or results change their meaning
    kinds: tuple[str, ...] = ("cpu",)  #: of devices that it runs on
    #: For the caller: `numpy 2.4`, `opencl-blocked`; part of every result. Its first word is unique
    #: per operation; callers select by it.
    implementation: str
    signature: Signature
    limits: Limits
    by_kernels = False  #: needs kernels: offered only where the device's driver works
    own_turns = False  #: takes `context.turn()` itself, after waiting for other calls
    #: Distributions of which a request may constrain the version.
    libraries: tuple[str, ...] = ()
    #: Arguments that say what a call loads and leaves loaded; None: nothing stays.
    loads: tuple[str, ...] | None = None

    def kernel_sources(self) -> Sequence[str]:
        """The sources of its kernels. They build for every architecture, and a source without
        macros builds together with others: its names are its own."""
        return ()

    def prepare(self, context: Context) -> None:
        """Load into `context.warm` what all leases share; called once, before any lease.

        An error is logged and disables this implementation on the host.
        """

    def load(self, context: Context, args: Arguments) -> None:
        """Load what calls with these arguments, those of `loads`, use. Called for a coming lease,
        whose device may still compute for another one: without a turn, and with low priority.

        Raises OpFailed.
        """

    def run(self, context: Context, args: Arguments, inputs: Sequence[memoryview]) -> Outcome:
        """Compute. `inputs` are flat byte views, valid until the return.

        Raises OpFailed; other exceptions become EIO.
        """
        raise NotImplementedError


def _absent(kind: str, name: str, message: str, there: Iterable[str]) -> OpFailed:
    known = ", ".join(sorted(there)) or "none"
    return OpFailed(OpCode.ENOENT, f"{message}; it has {known}", {kind: name})
