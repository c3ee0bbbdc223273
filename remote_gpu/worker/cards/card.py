"""One NVIDIA card as its worker uses it: the memory of a context, pinned memory, and faults.

A context takes some hundred MiB of a card before the first allocation. It counts in the lease's
quota, once per process and card, by what gpud measured when it started (`card_check`).

Errors of a card are of two kinds. After one of the context (an invalid address) a new process can
use the card again. After one of the device (an uncorrectable memory error, a card that fell off the
bus) none can: it is reported to gpud, as is a call that does not return, and gpud ends the lease
with the reason and checks the card.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from remote_gpu.wire.errors import OpCode, OpFailed
from remote_gpu.worker.cards.errors import CardError, Effect, error_in
from remote_gpu.worker.cards.pinned import PinnedPool
from remote_gpu.worker.memory.quota import Quota
from remote_gpu.worker.settings import WITHOUT_HOST, WorkerOptions

#: Readings of the running calls within their limit.
_READINGS = 20
_PAUSE_S_MAX = 1.0


@dataclass(slots=True)
class _RunningCall:
    """A running call."""

    name: str
    readings: int = 0  #: of it so far


class Watchdog:
    """Finds calls of a driver that do not return. One thread, from the first call on.

    It counts its own wake-ups instead of the clock: while gpud has stopped the process, because it
    is another lease's turn, no time passes.
    """

    def __init__(self, limit_s: float, report: Callable[[str], None]) -> None:
        """`limit_s`: of one call; 0 = none. `report`: takes the reason, in another thread."""
        self._limit_s = limit_s
        self._report = report
        self._pause_s = min(_PAUSE_S_MAX, limit_s / _READINGS)
        self._calls: dict[int, _RunningCall] = {}  # by thread
        self._lock = threading.Lock()
        self._started = False

    @contextlib.contextmanager
    def call(self, name: str) -> Iterator[None]:
        """The time of one call, in the thread that makes it."""
        if not self._limit_s:
            yield
            return
        if not self._started:
            self._start()
        thread = threading.get_ident()
        self._calls[thread] = _RunningCall(name)
        try:
            yield
        finally:
            del self._calls[thread]

    def _start(self) -> None:
        with self._lock:
            if not self._started:
                self._started = True
                threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        while (hung := self.look()) is None:
            time.sleep(self._pause_s)
        self._report(f"the device hangs: {hung} did not return within {self._limit_s:g} s")

    def look(self) -> str | None:
        """Read the running calls; returns the name of one that has lasted for the limit."""
        for call in tuple(self._calls.values()):
            call.readings += 1
            if call.readings > _READINGS and call.readings * self._pause_s > self._limit_s:
                return call.name
        return None


class Card:
    """One card of a worker, as long as its process. Thread-safe."""

    def __init__(
        self,
        options: WorkerOptions = WITHOUT_HOST,
        context_bytes: int = 0,
        report: Callable[[str], None] = lambda _: None,
        on_lost: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        """`context_bytes`: memory that a context takes; `report`: reports a fault to gpud, which
        checks the card; `on_lost`: ends the process, whose context cannot be used any more."""
        self.watchdog = Watchdog(options.card_call_s, report)
        self.pinned = PinnedPool(options.pinned_mib << 20)
        self.is_lost = False  #: its context, which all of this process share
        self._on_lost = on_lost
        self._report = report
        self.context_bytes = context_bytes
        self._lock = threading.Lock()
        self._charged = False
        self._reported = False

    def charge(self, quota: Quota) -> None:
        """Count the context that this process is about to make, once. Raises OpFailed(ENOMEM)."""
        with self._lock:
            if self._charged:
                return
            try:
                quota.reserve(self.context_bytes)
            except OpFailed as error:
                mib = -(-self.context_bytes // (1 << 20))
                message = f"a context takes {mib} MiB of this card: {error.message}"
                raise OpFailed(OpCode.ENOMEM, message) from None
            self._charged = True
            quota.add_cache(self.pinned.trim)

    def enter(self) -> None:
        """Begin a call. After a loss it ends the process: the next lane gets a new one."""
        if self.is_lost:
            self._on_lost()

    def failure(self, error: CardError, message: str, wrong: OpCode = OpCode.EIO) -> OpFailed:
        """Take note of an error of the card; returns that of the call: `wrong` where the call alone
        is concerned."""
        if error.effect in (Effect.CONTEXT, Effect.DEVICE):
            self.is_lost, wrong = True, OpCode.EIO
        if error.effect is Effect.DEVICE:
            self.failed(message)
        return OpFailed(OpCode.ENOMEM if error.effect is Effect.MEMORY else wrong, message)

    @contextlib.contextmanager
    def library(self, name: str) -> Iterator[None]:
        """One call of a library that uses the card by itself. Raises OpFailed: ENOMEM, EIO for
        errors of the card in its exceptions."""
        self.enter()
        try:
            with self.watchdog.call(name):
                yield
        except OpFailed:
            raise
        except Exception as failed:  # each library has classes of its own
            if (error := error_in(str(failed))) is None:
                raise
            if error.effect is Effect.MEMORY:
                needs = "more memory of the card than the lease has left; request more memory_mib"
                raise OpFailed(OpCode.ENOMEM, f"{name} needs {needs}") from None
            message = f"the device failed: {name} reports {error.name}"
            raise self.failure(error, message) from None

    def failed(self, reason: str) -> None:
        """Report an error of the device, once."""
        with self._lock:
            if self._reported:
                return
            self._reported = True
        self._report(reason)


def visible_ordinal(device: str) -> int:
    """The number of a device among those that CUDA numbers in this process; "" = the first.

    `device`: the driver's id (`GPU-…`, `MIG-…`). Raises OpFailed(ENODEV) for one that is hidden.
    """
    visible = [item.strip() for item in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if device in visible:
        return visible.index(device)
    if device and any(visible):
        raise OpFailed(OpCode.ENODEV, f"{device} is not among the devices of this process")
    return 0
