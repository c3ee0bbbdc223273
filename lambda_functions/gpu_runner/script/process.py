"""A run of the user's script: in its own process group, within its time, while its session lives.

SCAR's supervisor always takes `/bin/sh`, so a `#!/bin/bash` script breaks. The kernel honours the
shebang of an executable file. Zip packages often lose the executable bit; then `command_of` applies
the kernel's rule: one interpreter, at most one argument.

One `poll` waits for the end of the process (a pidfd), its output, the loss of the session or the
notice that its lease is preempted (two eventfds), and the deadline. The group is killed before its
leader is reaped: until then its number cannot be reused.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import StrEnum
from pathlib import Path

from contract.result import LOG_TAIL_BYTES_MAX
from contract.states import Reason
from lambda_functions.gpu_runner.errors import AttemptFailed
from lambda_functions.gpu_runner.script import confined, reaper
from lambda_functions.gpu_runner.script.resident import STAYS, Kept, Resident, Task
from lambda_functions.gpu_runner.secrets.masking import MaskedStream, Masker
from remote_gpu.forwarder.pidfd import pidfd_open

#: The kernel reads this much of a script's first line (BINPRM_BUF_SIZE).
_LINE_BYTES_MAX = 256
_ELF = b"\x7fELF"
#: A killed process ends at once unless the kernel blocks it; then the sandbox must end.
_KILL_WAIT_S = 2.0
#: An endless output must not fill the account's log; the tail is kept beyond this limit too.
ECHO_BYTES_MAX = 4 * 2**20
_READ_BYTES = 1 << 16
#: Of runs side by side: a longer line is echoed in pieces.
_LINE_CHARACTERS_MAX = 8 << 10
#: After the end the pipe holds at most its capacity, 1 MiB for unprivileged processes.
_DRAIN_READS_MAX = 64
#: Runs side by side read the notice one after another.
_PREEMPTED = threading.Lock()


class Ending(StrEnum):
    """The cause of a script's end."""

    OWN = "OWN"  #: it exited, or a signal from elsewhere ended it
    DEADLINE = "DEADLINE"  #: the runner stopped it, before Lambda would have
    LOST = "LOST"  #: the runner killed it, because its session was lost
    MEMORY = "MEMORY"  #: its host killed its container, at the limit of its memory
    PREEMPTED = "PREEMPTED"  #: the runner stopped it, because its lease ends for another request


@dataclass(frozen=True, slots=True, kw_only=True)
class Signals:
    """Descriptors of a session's news for a running script."""

    lost_fd: int  #: readable when the session is lost
    #: An eventfd with the grace time in milliseconds, when the lease is preempted.
    preempt_fd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a script."""

    ending: Ending
    status: int  #: exit status; −n for signal n
    started_s: float  #: wall clock: EStart
    ended_s: float  #: wall clock: EEnd
    log_tail: str
    answered: bool = False  #: its process stays: the call has returned, or raised

    @property
    def good(self) -> bool:
        """Whether it ended by itself with exit status 0."""
        return self.ending is Ending.OWN and self.status == 0

    @property
    def exit_code(self) -> int:
        """The status as a shell shows it: 128 + n for signal n."""
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def times(self) -> dict[str, float]:
        """Its times by the contract's names."""
        return {"EStart": self.started_s, "EEnd": self.ended_s}


class LogTail:
    """The end of stdout and stderr together, in the order of arrival."""

    def __init__(
        self,
        echo_bytes_max: int = ECHO_BYTES_MAX,
        masker: Masker | None = None,
        *,
        by_lines: bool = False,
    ) -> None:
        """`masker`: of the values that neither the log nor the tail may show; `by_lines`: whole
        lines are echoed, since runs side by side share the log."""
        self._echo_bytes_max = echo_bytes_max
        self._masked = MaskedStream(masker or Masker())
        self._tail = bytearray()
        self._seen_bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line_open = False  #: the last echo did not end its line
        self._by_lines = by_lines
        self._begun: list[str] = []  #: pieces of a line that has not ended
        self._begun_characters = 0

    def feed(self, chunk: bytes) -> None:
        """Echo `chunk` within the limit, and keep the newest LOG_TAIL_BYTES_MAX bytes of all."""
        self._take(self._masked.feed(chunk))

    def _take(self, chunk: bytes) -> None:
        room = self._echo_bytes_max - self._seen_bytes
        if room > 0:
            self._echo(self._decoder.decode(chunk[:room]))
            if len(chunk) >= room:
                self._echo(f"\n[log: over {self._echo_bytes_max} bytes, the rest is not shown]\n")
        self._seen_bytes += len(chunk)
        self._tail += chunk
        del self._tail[: max(0, len(self._tail) - LOG_TAIL_BYTES_MAX)]

    def text(self) -> str:
        """The tail, without a character cut at its start; other malformed bytes are marked."""
        start = 0
        if self._seen_bytes > len(self._tail):
            while start < min(4, len(self._tail)) and self._tail[start] & 0xC0 == 0x80:
                start += 1
        return self._tail[start:].decode("utf-8", "replace")

    def finish(self) -> None:
        """End the last line: the next record of the function's log begins a new one."""
        self._take(self._masked.finish())
        self._by_lines = False
        self._echo(self._decoder.decode(b"", final=True))
        if self._line_open:
            self._echo("\n")
        sys.stdout.flush()

    def _echo(self, text: str) -> None:
        whole = text.rfind("\n") + 1 if self._by_lines else len(text)
        self._begun.append(text[:whole])
        if whole or not self._by_lines:
            self._write()
        if rest := text[whole:]:
            self._begun.append(rest)
            self._begun_characters += len(rest)
            if self._begun_characters >= _LINE_CHARACTERS_MAX:  # one of progress, without an end
                self._begun.append("\n")
                self._write()

    def _write(self) -> None:
        text = "".join(self._begun)
        self._begun, self._begun_characters = [], 0
        if text:
            sys.stdout.write(text)
            self._line_open = not text.endswith("\n")


def run(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    folder: Path,
    deadline_s: float,
    grace_s: float,
    signals: Signals | None = None,
    masker: Masker | None = None,
    kept: Kept | None = None,
    task: Task = "job",
    on_part: Callable[[bytes], None] | None = None,
) -> Outcome:
    """Run `command` to its end and kill the processes that it leaves behind.

    SIGTERM at `deadline_s` (monotonic clock), SIGKILL `grace_s` later; SIGTERM also when the lease
    is preempted, and SIGKILL when the session is lost (`signals`). `masker`: of the values that no
    log may show. `kept`: holds its process for the next call of this command when it has answered
    this one; `task`: of such a process; `on_part` gets what a call yields. Raises
    AttemptFailed(SCRIPT_ERROR) when it cannot be started.
    """
    tail = LogTail(masker=masker, by_lines=task == "call")
    stays, ended = False, None
    reaper.RUNS.begin()
    try:
        started_s = time.time()
        begun = _begin(command, variables, folder, kept=kept, task=task, on_part=on_part)
        process = begun.process
        try:
            watch = _Watch(process.pid, deadline_s, grace_s)
            ending = watch.wait(begun.output, tail, signals, begun.resident)
            ended_s = time.time()
            if stays := watch.answered:
                reaper.RUNS.sweep(process.pid)
            else:
                _end(process)
            reads = 0
            while reads < _DRAIN_READS_MAX and _read(begun.output, tail):
                reads += 1
        finally:
            if not stays:
                ended = process.pid
                begun.close()
    finally:
        reaper.RUNS.end(ended)
        tail.finish()
    if stays and kept is not None and begun.resident is not None:
        kept.put(begun.resident)
    return Outcome(
        ending=ending,
        status=int(begun.failed) if stays else process.returncode,
        started_s=started_s,
        ended_s=ended_s,
        log_tail=tail.text(),
        answered=stays,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A process that has its work."""

    process: subprocess.Popen[bytes]
    output: int
    resident: Resident | None = None

    @property
    def failed(self) -> bool:
        """Whether the call of a process that stays has raised."""
        return self.resident is not None and self.resident.failed

    def close(self) -> None:
        """Release it; after an exception of the runner, end it first."""
        if self.process.returncode is None:
            _end(self.process)
        if self.resident is not None:
            self.resident.calls.close()
        os.close(self.output)


def _begin(
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    *,
    kept: Kept | None,
    task: Task,
    on_part: Callable[[bytes], None] | None,
) -> _Begun:
    if kept is None:
        process, output = _start(command, variables, folder, subprocess.DEVNULL)
        return _Begun(process=process, output=output)
    resident = kept.take(command) or _started_to_stay(command, variables, folder)
    resident.on_part = on_part
    with contextlib.suppress(OSError):  # it has ended, which its watch finds
        resident.send(variables, folder, task)
    return _Begun(process=resident.process, output=resident.output, resident=resident)


def _started_to_stay(
    command: Sequence[str], variables: Mapping[str, str], folder: Path
) -> Resident:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process, output = _start([*command, STAYS], variables, folder, theirs.fileno())
        except BaseException:
            ours.close()
            raise
    return Resident(command=tuple(command), process=process, output=output, calls=ours)


def _start(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, stdin: int
) -> tuple[subprocess.Popen[bytes], int]:
    output, inner = os.pipe()
    os.set_blocking(output, False)
    try:
        with confined.prepared(command, variables) as start:
            process = reaper.RUNS.start(
                lambda: subprocess.Popen(
                    start.command,
                    stdin=stdin,
                    stdout=inner,
                    stderr=inner,
                    cwd=folder,
                    env=start.environment,
                    pass_fds=start.descriptors,
                    start_new_session=True,
                )
            )
    except (OSError, ValueError) as error:
        os.close(output)
        raise script_error(f"{command[-1]} cannot be started: {error}") from None
    finally:
        os.close(inner)
    return process, output


class _Watch:
    """Waits for the end of a process, and ends it at its deadline or when its session is lost."""

    def __init__(self, pid: int, deadline_s: float, grace_s: float) -> None:
        self._pid = pid
        self._next_s = deadline_s  #: time of the next of: SIGTERM, SIGKILL, giving up
        self._grace_s = grace_s
        self._killed = False
        self.ending = Ending.OWN
        self.answered = False  #: it has served its call, and waits for the next one

    def wait(
        self,
        output: int,
        tail: LogTail,
        signals: Signals | None,
        resident: Resident | None = None,
    ) -> Ending:
        """Block until the process has ended, or has answered; after SIGKILL for _KILL_WAIT_S at
        most."""
        process = pidfd_open(self._pid)
        poller = select.poll()
        calls = -1 if resident is None else resident.calls.fileno()
        news = () if signals is None else astuple(signals)
        for fd in (process, output, *news, *(() if resident is None else (calls,))):
            poller.register(fd, select.POLLIN)
        try:
            while True:
                wait_s = max(0.0, self._next_s - time.monotonic())
                ready = {fd for fd, _ in poller.poll(wait_s * 1000)}
                if output in ready and _read(output, tail) is False:
                    poller.unregister(output)  # the script closed it; it may still work
                if process in ready:
                    return self.ending
                answered = resident.answered() if resident and calls in ready else None
                if answered is not None:
                    poller.unregister(calls)
                    self.answered = answered and self.ending is Ending.OWN
                    if self.answered:
                        return self.ending
                elif signals is not None and signals.lost_fd in ready:
                    poller.unregister(signals.lost_fd)
                    self._end(Ending.LOST, signal.SIGKILL)
                elif signals is not None and signals.preempt_fd in ready:
                    poller.unregister(signals.preempt_fd)
                    self._preempted(_grace_s(signals.preempt_fd))
                elif time.monotonic() >= self._next_s:
                    if self._killed:  # blocked in the kernel; the caller's wait() raises
                        return self.ending
                    termed = self.ending is not Ending.OWN
                    self._end(Ending.DEADLINE, signal.SIGKILL if termed else signal.SIGTERM)
        finally:
            os.close(process)

    def _preempted(self, grace_s: float) -> None:
        """Send SIGTERM, and leave the script its grace time, which the hosts end."""
        if self.ending is Ending.OWN:
            left_s = self._next_s + self._grace_s - time.monotonic()  # of the function itself
            self._grace_s = min(grace_s, max(0.0, left_s))
            self._end(Ending.PREEMPTED, signal.SIGTERM)

    def _end(self, ending: Ending, number: signal.Signals) -> None:
        """Send the signal; only the first cause is recorded."""
        if self.ending is Ending.OWN:
            self.ending = ending
        self._killed = number == signal.SIGKILL
        self._next_s = time.monotonic() + (_KILL_WAIT_S if self._killed else self._grace_s)
        _kill_group(self._pid, number)


def _grace_s(preempt_fd: int) -> float:
    """The grace time of a preempted lease, which stays for other runs of the session."""
    with _PREEMPTED:
        grace_ms = os.eventfd_read(preempt_fd)
        os.eventfd_write(preempt_fd, grace_ms)
    return grace_ms / 1000


def _read(output: int, tail: LogTail) -> bool | None:
    """Read once; False at the end of the output, None where there is nothing to read yet."""
    try:
        chunk = os.read(output, _READ_BYTES)
    except BlockingIOError:
        return None
    if chunk:
        tail.feed(chunk)
    return bool(chunk)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the group, its leader and former members. Raises TimeoutExpired if that fails."""
    _kill_group(process.pid)
    process.wait(_KILL_WAIT_S)
    reaper.RUNS.sweep(process.pid)


def _kill_group(group: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def command_of(script: Path) -> list[str]:
    """The argument list that runs `script`. Raises AttemptFailed(SCRIPT_ERROR)."""
    try:
        with script.open("rb") as file:
            line = file.read(_LINE_BYTES_MAX).split(b"\n", 1)[0]
    except OSError as error:
        raise script_error(f"script {script.name} cannot be read: {error.strerror}") from None
    executable = os.access(script, os.X_OK)
    if line.startswith(b"#!"):
        return _by_shebang(script, line, executable)
    if line.startswith(_ELF):
        if not executable:
            raise script_error(
                f"{script.name} is a program without the executable bit; set it (chmod +x)"
            )
        return [str(script)]
    return ["/bin/sh", str(script)]


def handler_command(folder: Path, handler: str) -> list[str]:
    """The argument list that calls a Python handler of a module in `folder`."""
    return [sys.executable, "-m", "lambda_functions.gpu_runner.script.call", str(folder), handler]


def _by_shebang(script: Path, line: bytes, executable: bool) -> list[str]:
    interpreter, *argument = os.fsdecode(line[2:]).strip(" \t").split(maxsplit=1) or [""]
    if line.endswith(b"\r"):
        raise script_error(
            f"script {script.name} has Windows line endings; convert them to Unix ones"
        )
    if not os.access(interpreter, os.X_OK):
        raise script_error(
            f"script {script.name}: interpreter {interpreter!r} does not exist in this function"
        )
    if executable:
        return [str(script)]
    return [interpreter, *(part.rstrip(" \t") for part in argument), str(script)]


def script_error(detail: str) -> AttemptFailed:
    """The failure of an attempt whose code cannot be started."""
    return AttemptFailed(Reason.SCRIPT_ERROR, detail)
