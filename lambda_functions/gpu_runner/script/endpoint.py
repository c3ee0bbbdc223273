"""An endpoint: one attempt that answers calls in place of its one input (`endpoint:`).

Callers reach it over their host (`remote_gpu.wire.calls`). Each call is one run of the handler in a
folder of its own, in turn; the handler's process stays for the next one. A call has no record:
nothing is stored, and a call whose connection ends is not made again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace

from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.limits import TimeLimits
from lambda_functions.gpu_runner.sandbox import input_name, write_new
from lambda_functions.gpu_runner.script.process import Ending, Outcome, Signals, script_error
from lambda_functions.gpu_runner.script.resident import KEPT, Task
from lambda_functions.gpu_runner.script.steps import Item, Run
from lambda_functions.gpu_runner.storage import outputs
from remote_gpu.wire import calls
from remote_gpu.wire.calls import Message
from remote_gpu.wire.channel import Channel
from remote_gpu.wire.errors import WireError

LOG = logging.getLogger(__name__)

#: A caller that stops within a message, or does not read, is dropped.
SILENCE_S = 10.0

#: Runs the handler's process on one item, until a time of the monotonic clock at most; the last
#: argument gets the parts that it yields.
RunTask = Callable[[Item, Task, float, Callable[[bytes], None]], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The times of an endpoint."""

    idle_s: float  #: it ends after this long without a call
    call_s: float  #: of one call, after which its process is killed


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
    """The callers of this runner, and the calls that it answered."""

    def __init__(self, descriptor: int, terms: Terms, limits: TimeLimits, signals: Signals) -> None:
        """`descriptor`: of the host's socket, which brings the callers' connections."""
        self.answered = 0
        self._host = socket.socket(fileno=os.dup(descriptor))
        self._terms = terms
        self._limits = limits
        self._signals = signals
        self._callers: dict[int, _Caller] = {}
        self._idle_since_s = time.monotonic()
        self._last_s = limits.script_s  #: no call begins later

    def serve(self, first: Item, run: RunTask) -> Run:
        """Load, and answer calls until none came for `idle_s`, the time is up or the lease ends.

        The outcome is good, but for a process that cannot load, and a lease that ended during a
        call.
        """
        started_s = time.time()
        KEPT.wanted = True
        with contextlib.ExitStack() as stack:
            stack.callback(self._close)
            stack.callback(KEPT.end)
            outcome = self._loaded(first, run)
            now_s = self._idle_since_s = time.monotonic()
            left_s = self._limits.script_s - now_s
            self._last_s = self._limits.script_s - min(self._terms.call_s, left_s / 2)
            while outcome is None and (caller := self._next()) is not None:
                outcome = self._answer(self._callers[caller], first, run)
        LOG.info("the endpoint answered %d calls", self.answered)
        return Run(
            outcome=outcome or _ended(Ending.OWN, started_s),  # a lost lease is found by its check
            uploads=(),
            unmatched=(),
            step="",
            calls=self.answered,
        )

    def _next(self) -> int | None:
        """The next caller with a call, by its descriptor; None: the endpoint is to end."""
        signals = astuple(self._signals)
        while (now_s := time.monotonic()) < self._last_s:
            poller = select.poll()
            for one in (self._host.fileno(), *signals, *self._callers):
                poller.register(one, select.POLLIN)
            end_s = min(self._last_s, self._idle_since_s + self._terms.idle_s)
            ready = {fd for fd, _ in poller.poll(max(0.0, end_s - now_s) * 1000)}
            if not ready or not ready.isdisjoint(signals):
                return None
            if self._host.fileno() in ready and not self._admit():
                return None
            for caller in self._callers:  # the one whose last call is the longest ago
                if caller in ready:
                    self._callers[caller] = self._callers.pop(caller)
                    return caller
        return None

    def _admit(self) -> bool:
        """Take a connection; False when the host has closed its socket."""
        data, descriptors, _, _ = socket.recv_fds(self._host, 64, 1)
        for descriptor in descriptors:
            stream = socket.socket(fileno=descriptor)
            stream.settimeout(SILENCE_S)
            caller = self._callers[stream.fileno()] = _Caller(stream)
            caller.send(Message(kind="ready"))
        return bool(data)

    def _loaded(self, first: Item, run: RunTask) -> Outcome | None:
        """Have a process that has loaded; an outcome ends the endpoint."""
        if KEPT.idle is not None:
            return None
        outcome = run(first, "load", self._limits.script_s, _no_part)
        return None if outcome.good else outcome

    def _answer(self, caller: _Caller, first: Item, run: RunTask) -> Outcome | None:
        """Serve one call; an outcome ends the endpoint. A caller that breaks off is dropped."""
        asked = caller.asked()
        if asked is None:
            del self._callers[caller.stream.fileno()]
            caller.stream.close()
            return None
        if (outcome := self._loaded(first, run)) is not None:  # the last call ended its process
            caller.send(_failed(calls.UNAVAILABLE, f"it cannot load: {outcome.log_tail.strip()}"))
            return outcome
        limit_s = time.monotonic() + self._terms.call_s
        end_s = min(limit_s, self._limits.script_s)
        workspace = None
        try:
            workspace = first.workspace.part(self.answered)
            name = input_name(asked.name)
            write_new(workspace.root, ("input", name), asked.content)
            file = workspace.input / name
            item = replace(first, file=file, key=asked.name, workspace=workspace)
            outcome = run(item, "call", end_s, caller.part)
            answer = _answer_of(outcome, item, is_cut=end_s < limit_s)
        except AttemptFailed as failure:
            answer = _failed(calls.FAILED, failure.detail)
        except OSError as error:  # most likely the code's: it has changed its folders
            answer = _failed(calls.FAILED, f"the call's files: {error}")
        caller.send(answer)
        if workspace is not None:
            workspace.remove()
        self.answered += 1
        self._idle_since_s = time.monotonic()
        is_over = outcome is not None and outcome.ending in (Ending.LOST, Ending.PREEMPTED)
        return outcome if is_over else None

    def _close(self) -> None:
        for caller in self._callers.values():
            caller.stream.close()
        self._host.close()


class _Caller:
    """One connection. A caller that is gone or does not read gets no more of its answer."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._channel = Channel(stream, calls.CALLS)
        self._is_gone = False

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


def _failed(code: str, text: str) -> Message:
    return Message(kind="failed", code=code, message=text[-calls.MESSAGE_CHARACTERS_MAX :])


def _ended(ending: Ending, started_s: float) -> Outcome:
    """The outcome of an endpoint that no call ended."""
    return Outcome(ending=ending, status=0, started_s=started_s, ended_s=time.time(), log_tail="")
