"""One execution environment: a process, its port, its scratch folder, frozen between runs."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from corekit.aio.supervise import Nursery
from local_cloud.model.functions.function import Outcome
from local_cloud.sandbox.process_tree import (
    is_alive,
    kill_all,
    processor_wait_s,
    signal_all,
)
from local_cloud.sandbox.runtime import RunSpec, Runtime
from local_cloud.sandbox.runtime_api import Channel, RuntimeApi, Work, error_payload

INIT_S_MAX = 10.0  #: of the code outside the handler, as on AWS
#: The same by the wall clock, on a machine whose processors are busy: then it has not started.
INIT_WALL_S_MAX = 120.0
_LOOK_S_MIN = 0.1  #: between two looks at the processor time of an INIT
_LINE_BYTES_MAX = 256 * 1024  #: of one log line, as CloudWatch

LogLine = Callable[[str], None]


class Crashed(Exception):
    """The process ended; `outcome` is the answer to its invoker."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.payload)
        self.outcome = outcome


class NotStarted(Exception):
    """The machine was too busy to start the process; the invocation did not begin."""


class ExecutionEnvironment:
    """Started once, run many times, ended once. After `Crashed` only `end` is left."""

    def __init__(self, spec: RunSpec, scratch: Path, log: LogLine) -> None:
        self.spec = spec
        self._scratch = scratch
        self._log = log
        self._port = 0
        self._nursery = Nursery(f"environment/{spec.name}")
        self._channel = Channel()
        self._process: asyncio.subprocess.Process | None = None
        self._exit: asyncio.Task[int | None] | None = None
        self._reader: asyncio.Task[None] | None = None
        self._frozen = False

    async def start(self, api: RuntimeApi, runtime: Runtime, stream: str) -> None:
        """Start the process and wait until it asks for work. Raises Crashed, NotStarted."""
        self._scratch.mkdir(mode=0o700, parents=True)
        self._port = await api.open(self._channel)
        runtime_api = f"127.0.0.1:{self._port}"
        self._process = await asyncio.create_subprocess_exec(
            *runtime.command(self.spec),
            env=runtime.variables(
                self.spec, runtime_api=runtime_api, stream=stream, scratch=self._scratch
            ),
            cwd=self.spec.code,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            limit=_LINE_BYTES_MAX,
        )
        await self._nursery.__aenter__()
        self._exit = self._nursery.start(self._process.wait(), "exit")
        self._reader = self._nursery.start(self._read_log(), "log")
        await self._until_ready(INIT_S_MAX)

    async def _until_ready(self, limit_s: float) -> None:
        assert self._exit is not None
        await self._wait_for([self._channel.ready, self._exit, self._channel.init_error], limit_s)
        if self._channel.init_error.done():
            raise Crashed(Outcome(payload=self._channel.init_error.result(), error="Unhandled"))
        if self._exit.done():
            raise self._crash("")
        if not self._channel.ready.done():
            message = f"INIT timed out after {limit_s:.2f} seconds"
            payload = error_payload("Sandbox.Timedout", message)
            raise Crashed(Outcome(payload=payload, error="Unhandled"))

    async def _wait_for(self, ends: list[asyncio.Future[Any]], limit_s: float) -> None:
        """Wait for the first end, at most `limit_s`: time without a free processor is not counted,
        since AWS's environments share none. Raises NotStarted.
        """
        assert self._process is not None
        loop, pid = asyncio.get_running_loop(), self._process.pid
        began_s, waited_s = loop.time(), processor_wait_s(pid)
        left_s = limit_s
        while left_s > 0:
            done, _ = await asyncio.wait(
                ends, timeout=max(left_s, _LOOK_S_MIN), return_when=asyncio.FIRST_COMPLETED
            )
            wall_s = loop.time() - began_s
            if done:
                return
            if wall_s >= INIT_WALL_S_MAX:
                raise NotStarted
            left_s = limit_s - wall_s + processor_wait_s(pid) - waited_s

    async def run(self, work: Work) -> Outcome:
        """One invocation. Raises Crashed when the process ended or ran out of time."""
        assert self._exit is not None
        if not self._channel.waiting:
            raise self._crash(work.request_id)  # it closed its connection meanwhile
        self._thaw()
        outcome = self._channel.give(work)
        await asyncio.wait(
            list[asyncio.Future[Any]]([outcome, self._exit]),
            timeout=work.timeout_s,
            return_when=asyncio.FIRST_COMPLETED,
        )
        if outcome.done():
            return outcome.result()
        if self._exit.done():
            raise self._crash(work.request_id)
        message = f"Task timed out after {work.timeout_s:.2f} seconds"
        self._log(f"{work.request_id} {message}")
        payload = error_payload(
            "Sandbox.Timedout", f"RequestId: {work.request_id} Error: {message}"
        )
        raise Crashed(Outcome(payload=payload, error="Unhandled"))

    @property
    def alive(self) -> bool:
        """Whether its process lives and waits for work; a frozen one may have been killed."""
        return self._process is not None and self._channel.waiting and is_alive(self._process.pid)

    async def rest(self) -> bool:
        """After a run: wait until it asks for work again, then freeze it. False: it ended."""
        try:
            await self._until_ready(INIT_S_MAX)
        except (Crashed, NotStarted):
            return False
        self.freeze()
        return True

    def freeze(self) -> None:
        """Stop it and everything it started, until its next run."""
        assert self._process is not None
        signal_all(self._process.pid, signal.SIGSTOP)
        self._frozen = True

    def _thaw(self) -> None:
        if self._frozen and self._process is not None:
            signal_all(self._process.pid, signal.SIGCONT)
            self._frozen = False

    async def end(self, api: RuntimeApi) -> None:
        """Kill its processes, close the port, remove the scratch folder. Idempotent."""
        if self._process is not None:
            await asyncio.to_thread(kill_all, self._process.pid, self._scratch)
            assert self._exit is not None
            assert self._reader is not None
            await self._exit
            # A child that escaped with our pipe must not keep us waiting for its end.
            await asyncio.wait({self._reader}, timeout=0.5)
            await self._nursery.close()
            self._process._transport.close()  # type: ignore[attr-defined]  # noqa: SLF001 - no public way closes the pipe
        await api.shut(self._port)
        await asyncio.to_thread(shutil.rmtree, self._scratch, ignore_errors=True)

    def _crash(self, request_id: str) -> Crashed:
        assert self._process is not None
        status = self._process.returncode
        if status is None or status == 0:
            reason = "Runtime exited without providing a reason"
        elif status > 0:
            reason = f"Runtime exited with error: exit status {status}"
        else:
            reason = f"Runtime exited with error: signal: {_signal_name(-status)}"
        message = f"RequestId: {request_id} Error: {reason}" if request_id else reason
        if request_id:
            self._log(message)
            self._log("Runtime.ExitError")
        return Crashed(
            Outcome(payload=error_payload("Runtime.ExitError", message), error="Unhandled")
        )

    async def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than a line may be: its beginning was dropped
                continue
            if not line:
                return
            self._log(line.decode("utf-8", "replace").rstrip("\n"))


def _signal_name(number: int) -> str:
    return "killed" if number == signal.SIGKILL else signal.strsignal(number) or str(number)
