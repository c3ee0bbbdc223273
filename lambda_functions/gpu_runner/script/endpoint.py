"""An endpoint: one attempt that answers calls in place of its one input (`endpoint:`).

Callers reach it over their host (`remote_gpu.wire.calls`). Each call is one run of the handler in a
folder of its own, by a process that stays for the next one. Calls begin in the order in which they
come, and up to `calls_max` of them run side by side: further callers start further processes. A
call has no record: nothing is stored, and a call whose connection ends is not made again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, replace

from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox import input_name, write_new
from lambda_functions.gpu_runner.script.process import Ending, Outcome, Signals, script_error
from lambda_functions.gpu_runner.script.resident import KEPT, Kept, Task
from lambda_functions.gpu_runner.script.steps import Item, Run
from lambda_functions.gpu_runner.storage import outputs
from remote_gpu.wire import calls
from remote_gpu.wire.calls import Message
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import WireError

LOG = logging.getLogger(__name__)

#: A caller that stops within a message, or does not read, is dropped.
SILENCE_S = 10.0

#: Runs the handler's process on one item, until a time of the monotonic clock at most; `on_part`
#: gets the parts that it yields, `Kept` holds the process.
RunTask = Callable[[Item, Task, float, Callable[[bytes], None], Kept], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The limits of an endpoint."""

    idle_s: float  #: it ends after this long without a call
    call_s: float  #: of one call, after which its process is killed
    calls_max: int = 1  #: side by side, each in a process of its own


#: The host's socket, of this process, by nature one; empty where the host brings no callers.
_DESCRIPTORS: list[int] = []


def use(descriptor: int) -> None:
    """Take callers from the host's socket, from now on."""
    _DESCRIPTORS[:] = [descriptor]


def opened(terms: Terms | None, limits: TimeLimits, signals: Signals) -> Endpoint:
    """Raises AttemptFailed(SCRIPT_ERROR) for a function that is not an endpoint here."""
    if terms is None or not _DESCRIPTORS:
        raise script_error("it opens an endpoint, which the function, or its host, does not have")
    return Endpoint(_DESCRIPTORS[0], terms, limits, signals)


class Endpoint:
    """The callers of this runner, and the calls that it answered.

    The thread of `serve` watches the callers that have no call; each process has a thread, which
    takes the next call once the process has loaded. A caller whose process cannot load is closed.
    """

    def __init__(self, descriptor: int, terms: Terms, limits: TimeLimits, signals: Signals) -> None:
        """`descriptor`: of the host's socket, which brings the callers' connections."""
        self.answered = 0
        self._host = socket.socket(fileno=os.dup(descriptor))
        self._terms = terms
        self._limits = limits
        self._signals = signals
        self._callers: set[_Caller] = set()
        self._quiet: dict[int, _Caller] = {}  #: those without a call, by descriptor
        self._asking: queue.SimpleQueue[_Caller | None] = queue.SimpleQueue()  #: None: the end
        self._back: queue.SimpleQueue[_Caller | None] = queue.SimpleQueue()  #: None: news alone
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC)  #: of `_back`
        self._lock = threading.Lock()  #: of the counts
        self._alive = 0  #: processes, without those that could not load
        self._begun = 0  #: calls
        self._is_loaded = False  #: one of them, or was
        self._end: Outcome | Exception | None = None  #: why it ends before its time
        self._is_ending = False
        self._idle_since_s = time.monotonic()
        self._last_s = limits.script_s  #: no call begins later

    def serve(self, first: Item, run: RunTask) -> Run:
        """Load, and answer calls until none came for `idle_s`, the time is up or the lease ends.

        The outcome is good, but for code that cannot load, and a lease that ended during a call.
        """
        started_s = time.time()
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            threads = stack.enter_context(ThreadPoolExecutor(self._terms.calls_max, "calls"))
            stack.callback(self._release)

            def start(kept: Kept, caller: _Caller | None) -> None:
                with self._lock:
                    self._alive += 1
                threads.submit(self._serve_process, first, run, kept, caller)

            start(KEPT, None)
            while self._attend(start):
                pass
        LOG.info("the endpoint answered %d calls", self.answered)
        if isinstance(self._end, Exception):
            raise self._end
        return Run(
            outcome=self._end or _ended(Ending.OWN, started_s),  # its check finds a lost lease
            uploads=(),
            unmatched=(),
            step="",
            calls=self.answered,
        )

    def _attend(self, start: Callable[[Kept, _Caller], None]) -> bool:
        """Wait for news, and pass them on; False: the endpoint is to end."""
        if (now_s := time.monotonic()) >= self._last_s:
            return False
        signals = astuple(self._signals)
        host = {self._host.fileno()} if self._is_loaded else set()
        poller = select.poll()
        for one in (self._wake_fd, *host, *signals, *self._quiet):
            poller.register(one, select.POLLIN)
        end_s = self._last_s
        if self._is_loaded and len(self._quiet) == len(self._callers):
            end_s = min(end_s, self._idle_since_s + self._terms.idle_s)
        ready = {fd for fd, _ in poller.poll(max(0.0, end_s - now_s) * 1000)}
        if not ready or not ready.isdisjoint(signals):
            return False
        for descriptor in ready & self._quiet.keys():
            self._asking.put(self._quiet.pop(descriptor))
        if self._wake_fd in ready and not self._took_back():
            return False
        return ready.isdisjoint(host) or self._admitted(start)

    def _admitted(self, start: Callable[[Kept, _Caller], None]) -> bool:
        """Take a connection; False when the host has closed its socket."""
        data, descriptors, _, _ = socket.recv_fds(self._host, 64, 1)
        for descriptor in descriptors:
            stream = socket.socket(fileno=descriptor)
            stream.settimeout(SILENCE_S)
            self._callers.add(caller := _Caller(stream))
            if self._alive < min(len(self._callers), self._terms.calls_max):
                start(Kept(), caller)  # its calls wait for no load but this one
            else:
                self._watch(caller)
        return bool(data)

    def _watch(self, caller: _Caller) -> None:
        caller.greet()
        self._quiet[caller.stream.fileno()] = caller

    def _took_back(self) -> bool:
        """Take the callers whose calls are answered; False: the endpoint is to end."""
        os.eventfd_read(self._wake_fd)
        now_s = time.monotonic()
        if not self._is_loaded:
            self._is_loaded, self._idle_since_s = True, now_s
            left_s = self._limits.script_s - now_s
            self._last_s = self._limits.script_s - min(self._terms.call_s, left_s / 2)
        with contextlib.suppress(queue.Empty):
            while True:
                caller = self._back.get_nowait()
                if caller is None:
                    continue
                self._idle_since_s = now_s
                if caller.stream.fileno() < 0:
                    self._callers.discard(caller)
                else:
                    self._watch(caller)
        return self._end is None

    def _give_back(self, caller: _Caller | None) -> None:
        self._back.put(caller)
        os.eventfd_write(self._wake_fd, 1)

    def _serve_process(self, first: Item, run: RunTask, kept: Kept, caller: _Caller | None) -> None:
        """Have a process that has loaded, and give it one call after another; `caller` waits for
        the process."""
        kept.wanted = True
        try:
            is_loaded = self._loaded(first, run, kept)
            if not is_loaded and caller is not None:
                caller.stream.close()  # it tries again later: none beyond the processes is greeted
            while is_loaded:
                self._give_back(caller)
                caller = self._asking.get()
                if caller is None or self._is_over:
                    return
                self._answer(caller, first, run, kept)
                self._give_back(caller)  # another process may have its next call meanwhile
                caller = None
                is_loaded = self._loaded(first, run, kept)
        except Exception as error:
            self._end = self._end or error
        finally:
            kept.end()
            self._give_back(caller)

    @property
    def _is_over(self) -> bool:
        return self._is_ending or time.monotonic() >= self._last_s

    def _loaded(self, first: Item, run: RunTask, kept: Kept) -> bool:
        """Have a process that has loaded. Without any, the endpoint ends."""
        if kept.idle is not None:
            return True
        if self._is_over:
            return False
        found: Outcome | AttemptFailed
        try:
            found = run(first, "load", self._limits.script_s, _no_part, kept)
            if found.good:
                return True
        except AttemptFailed as failure:
            found = failure
        with self._lock:
            self._alive -= 1
            if not self._alive or _is_of_lease(found):
                self._end = self._end or found
        LOG.warning("a process of the endpoint cannot load: %s", _why(found))
        return False

    def _answer(self, caller: _Caller, first: Item, run: RunTask, kept: Kept) -> None:
        """Serve one call. A caller that breaks off is dropped."""
        asked = caller.asked()
        if asked is None:
            caller.stream.close()
            return
        with self._lock:
            number, self._begun = self._begun, self._begun + 1
        limit_s = time.monotonic() + self._terms.call_s
        end_s = min(limit_s, self._limits.script_s)
        workspace = outcome = None
        try:
            workspace = first.workspace.part(number)
            name = input_name(asked.name)
            write_new(workspace.root, ("input", name), asked.content)
            file = workspace.input / name
            item = replace(first, file=file, key=asked.name, workspace=workspace)
            outcome = run(item, "call", end_s, caller.part, kept)
            answer = _answer_of(outcome, item, is_cut=end_s < limit_s)
        except AttemptFailed as failure:
            answer = _failed(calls.FAILED, failure.detail)
        except OSError as error:  # most likely the code's: it has changed its folders
            answer = _failed(calls.FAILED, f"the call's files: {error}")
        caller.send(answer)
        if workspace is not None:
            workspace.remove()
        with self._lock:
            self.answered += 1
            if outcome is not None and _is_of_lease(outcome):
                self._end = self._end or outcome

    def _release(self) -> None:
        """Let the threads end."""
        self._is_ending = True
        for _ in range(self._alive):
            self._asking.put(None)

    def _close(self) -> None:
        """Close all connections; callers that wait get the reason of code that cannot load."""
        while not self._asking.empty():
            caller = self._asking.get()
            if caller is not None and not self._alive and self._end and caller.asked():
                text = f"it cannot load: {_why(self._end)}"
                caller.send(_failed(calls.UNAVAILABLE, text))
        for caller in self._callers:
            caller.stream.close()
        self._host.close()
        os.close(self._wake_fd)


class _Caller:
    """One connection. A caller that is gone or does not read gets no more of its answer."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._channel = Channel(stream, calls.CALLS)
        self._is_greeted = False
        self._is_gone = False

    def greet(self) -> None:
        """Let it send its calls. Idempotent."""
        if not self._is_greeted:
            self._is_greeted = True
            self.send(Message(kind="ready"))

    def asked(self) -> Message | None:
        """The next call; None: there will be none."""
        if self._is_gone:
            return None
        try:
            asked = calls.receive(self._channel)
            if asked is not None and asked.kind != "call":
                raise WireError(f"it sent {asked.kind!r}")
        except (WireError, OSError) as error:
            LOG.warning("a caller of the endpoint was dropped: %s", error)
            return None
        return asked

    def part(self, content: bytes) -> None:
        self.send(Message(kind="part", content=content))

    def send(self, message: Message) -> None:
        if not self._is_gone:
            try:
                calls.send(self._channel, message)
            except OSError:
                self._is_gone = True
                with contextlib.suppress(OSError):  # the next look finds its end
                    self.stream.shutdown(socket.SHUT_RDWR)


def _answer_of(outcome: Outcome, item: Item, *, is_cut: bool) -> Message:
    """The file that a call wrote, or the reason why there is none. Raises AttemptFailed, OSError.

    `is_cut`: it had less than a call's time, because the endpoint ends.
    """
    ran_s = outcome.ended_s - outcome.started_s
    if outcome.ending is Ending.DEADLINE and is_cut:
        text = f"the endpoint's own time was over {ran_s:.1f} s after the call began"
        return _failed(calls.UNAVAILABLE, text)
    if outcome.ending is Ending.DEADLINE:
        return _failed(calls.TIMEOUT, f"the call was stopped after {ran_s:.1f} s")
    if outcome.ending is not Ending.OWN:
        return _failed(calls.UNAVAILABLE, "the endpoint's device was taken away during the call")
    if not outcome.good:
        how = "raised an exception" if outcome.answered else f"ended with {outcome.exit_code}"
        return _failed(calls.FAILED, f"the code {how}: {outcome.log_tail.strip()}")
    files = outputs.find(item.workspace.output, item.workspace.root)
    if not files:
        return Message(kind="answer")
    if len(files) > 1:
        text = f"the code wrote {len(files)} files; a call is answered by one"
        return _failed(calls.FAILED, text)
    with files[0].opened() as opened:
        content = opened.read(calls.CALL_BYTES_MAX + 1)
    if len(content) > calls.CALL_BYTES_MAX:
        text = f"{files[0].name} has more than {calls.CALL_BYTES_MAX} bytes: yield it in parts"
        return _failed(calls.FAILED, text)
    return Message(kind="answer", name=files[0].name[-calls.NAME_CHARACTERS_MAX :], content=content)


def _no_part(_content: bytes) -> None:
    """Loading yields nothing."""


def _is_of_lease(end: Outcome | AttemptFailed) -> bool:
    """Whether the lease has ended, and all processes with it."""
    return isinstance(end, Outcome) and end.ending in (Ending.LOST, Ending.PREEMPTED)


def _why(end: Outcome | Exception) -> str:
    if isinstance(end, AttemptFailed):
        return end.detail
    return end.log_tail.strip() if isinstance(end, Outcome) else str(end)


def _failed(code: str, text: str) -> Message:
    return Message(kind="failed", code=code, message=text[-calls.MESSAGE_CHARACTERS_MAX :])


def _ended(ending: Ending, started_s: float) -> Outcome:
    """The outcome of an endpoint that no call ended."""
    return Outcome(ending=ending, status=0, started_s=started_s, ended_s=time.time(), log_tail="")
