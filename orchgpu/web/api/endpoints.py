"""Endpoints of functions, as one server has them: each is opened by a job, and answers its calls.

The first call stores the input of that job; a task follows the job until its run answers. The
connection stays for further calls, one at a time, in the order in which they came; calls that wait
for it get further connections, as many as the function answers side by side (`calls_max`). Where
all have ended, because no call came for long, or with their host, the next call opens the endpoint
again. Another server opens one of its own.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from corekit.aio.clock import Clock
from corekit.errors import AppError, ErrorCode, invalid
from orchgpu.adapters.calls import Line
from orchgpu.core.function import Function
from orchgpu.jobs.endpoints import access_of, open_endpoint
from orchgpu.jobs.summary import JobSummary

if TYPE_CHECKING:
    from orchgpu.web.console import Console

logger = logging.getLogger(__name__)

#: Calls of one endpoint that wait, the one that is answered too.
CALLS_MAX = 64
#: A record of a function is read again after this.
RECORD_S = 5.0
#: A job that no orchestrator receives is given up after this long.
UNKNOWN_S = 900.0
#: After a job that could not open the endpoint, calls get its error for this long; after a refused
#: connection beside others no further one is tried.
FAILED_S = 5.0
_LOOK_S = 0.5


class Endpoint:
    """The endpoint of one function."""

    def __init__(self, function: Function, read_at_s: float) -> None:
        self.function = function
        self.read_at_s = read_at_s
        self._jobs: tuple[str, ...] = ()  #: ids that the job that opens, or opened it, may have
        self._unknown_until_s = 0.0  #: it is given up then, unless the picture has it
        self._id = ""  #: of an input that may be stored: repeated, it is the same job
        self.replaced = False  #: by another revision's
        self._calls = 0
        self._turn = asyncio.Lock()  #: of the call that gets the next free connection
        self._free: list[Line] = []
        self._busy = 0  #: connections with a call
        self._changed = asyncio.Event()
        self._opening: asyncio.Task[AppError | bool | None] | None = None
        self._failed: tuple[AppError, float] | None = None
        self._more_at_s = 0.0  #: no further connection is made before

    @asynccontextmanager
    async def line(self, console: Console, wait_s: float) -> AsyncIterator[Line]:
        """A connection, for one call, within `wait_s`.

        Raises EXHAUSTED, UNAVAILABLE while the endpoint opens or is busy, and why it does not open.
        """
        if self._calls >= CALLS_MAX:
            text = f"{CALLS_MAX} calls of {self.function.name} wait; send the call again"
            raise AppError(ErrorCode.EXHAUSTED, text, retry_in_s=1.0)
        self._calls += 1
        try:
            try:
                async with asyncio.timeout(wait_s), self._turn:
                    found = await self._taken(console)
            except TimeoutError:
                raise self._not_in_time(console, wait_s) from None
            try:
                yield found
            finally:
                self._busy -= 1
                self._add(found)
        finally:
            self._calls -= 1
            self.close_replaced()

    @property
    def job(self) -> str:
        return next(iter(self._jobs), "")

    def close_replaced(self) -> None:
        """Let go of the connections of a replaced revision, once its calls are answered."""
        if self.replaced and not self._calls:
            for line in self._free:
                line.close()

    def _add(self, line: Line) -> None:
        """A connection takes the next call, unless it has ended."""
        if line.is_open:
            self._free.append(line)
        else:
            line.close()
        self._changed.set()

    async def _taken(self, console: Console) -> Line:
        """The next free connection; where there is none, one more is made."""
        while True:
            while self._free:
                if (line := self._free.pop()).is_open:
                    self._busy += 1
                    return line
                line.close()
            self._changed.clear()
            opening = self._opened(console)
            again_s = self._more_at_s - console.clock.monotonic_s()
            with suppress(TimeoutError):  # then a further connection is tried again
                async with asyncio.timeout(again_s if opening is None and again_s > 0 else None):
                    await self._changed.wait()  # a caller whose time is over leaves the opening
            if opening is not None and opening.done() and not self._free and not self._busy:
                if (error := opening.result()) is None:
                    raise AppError(ErrorCode.INTERNAL, "internal error; see the trace in the log")
                if isinstance(error, AppError):
                    raise error

    def _opened(self, console: Console) -> asyncio.Task[AppError | bool | None] | None:
        """The task that makes a connection; None: there are enough. Raises why there are none."""
        if self._opening is not None and not self._opening.done():
            return self._opening
        now_s = console.clock.monotonic_s()
        if self._busy:
            host = self.function.host
            if host is None or self._busy >= host.calls_max or now_s < self._more_at_s:
                return None
            self._more_at_s = now_s + FAILED_S
            opens: Coroutine[object, object, AppError | bool] = self._more(console)
        else:
            if self._failed is not None and now_s < self._failed[1]:
                raise self._failed[0]
            opens = self._open(console)
        self._opening = console.nursery.start(opens, "endpoint")
        self._opening.add_done_callback(lambda _: self._changed.set())
        return self._opening

    async def _open(self, console: Console) -> AppError | bool:
        """Open it; the connection is kept for the next call, where none waits any more."""
        try:
            self._add(await self._found(console))
        except AppError as error:
            self._failed = (error, console.clock.monotonic_s() + FAILED_S)
            return error
        self.close_replaced()
        return True

    async def _more(self, console: Console) -> bool:
        """Make one more connection to the run, for calls side by side."""
        try:
            line = await self._reached(console, self._party, self.job)
        except AppError as error:
            about = {"event": "endpoint", "job": self.job, "why": error.message}
            logger.info("an endpoint takes no further connection now", extra=about)
            return False
        if line is not None:
            self._more_at_s = 0.0
            self._add(line)
        self.close_replaced()
        return line is not None

    @property
    def _party(self) -> str:
        return f"endpoint {self.function.name}"

    async def _found(self, console: Console) -> Line:
        """Connect to the run of its job, or of a new one where that is over."""
        function, party = self.function, self._party
        if self._jobs and (line := await self._connected(console, party)) is not None:
            return line
        id_ = self._id = self._id or secrets.token_hex(16)
        submitted = await console.cloud.ask(
            party, lambda cloud: open_endpoint(cloud, function, id_)
        )
        console.api.note(submitted)
        self._id, self._jobs = "", submitted.job_ids
        self._unknown_until_s = console.clock.monotonic_s() + UNKNOWN_S
        if (line := await self._connected(console, party)) is not None:
            return line
        raise self._not_opened(self._known(console))

    def _known(self, console: Console) -> JobSummary | None:
        found = (console.picture.jobs.get(job) for job in self._jobs)
        return next((one for one in found if one is not None), None)

    async def _connected(self, console: Console, party: str) -> Line | None:
        """The connection to the run of the job, as soon as there is one; None: the job is over.

        A job that was known, and is forgotten, is over.
        """
        while True:
            known, now_s = self._known(console), console.clock.monotonic_s()
            if known is None and now_s >= self._unknown_until_s:
                return None
            if known is not None:
                self._unknown_until_s = now_s
                if known.over:
                    return None
                if known.state == "RUNNING":
                    try:
                        if (line := await self._reached(console, party, known.job)) is not None:
                            return line
                    except AppError as error:
                        if error.code is ErrorCode.DENIED:
                            raise
                        about = {"event": "endpoint", "job": known.job, "why": error.message}
                        logger.info("an endpoint does not answer yet", extra=about)
            await console.live.changed(_LOOK_S)

    async def _reached(self, console: Console, party: str, job: str) -> Line | None:
        function = self.function
        access = await console.cloud.ask(party, lambda cloud: access_of(cloud, function, job))
        return None if access is None else await console.lines.connect(access)

    def _not_opened(self, known: JobSummary | None) -> AppError:
        text = f"the endpoint of {self.function.name} could not be opened: "
        if known is None:
            text += f"no orchestrator has received {self.job}, or it is over"
        else:
            text += f"{self.job} ended as {known.state} {known.reason}; `orchgpu job {self.job}` "
            text += "has the reason"
        return AppError(ErrorCode.UNAVAILABLE, text, job=self.job)

    def _not_in_time(self, console: Console, wait_s: float) -> AppError:
        name = self.function.name
        if self._busy:
            text = f"{name} answers other calls: no turn within {wait_s:g} s; nothing was called"
            return AppError(ErrorCode.EXHAUSTED, f"{text}: send the call again", retry_in_s=1.0)
        known = self._known(console)
        state = "QUEUED" if known is None else known.state
        text = f"the endpoint of {name} opens: {self.job or 'its job'} is {state} after {wait_s:g} "
        text += "s; nothing was called: send the call again"
        details = {"job": self.job} if self.job else {}
        return AppError(ErrorCode.UNAVAILABLE, text, retry_in_s=2.0, **details)


class Endpoints:
    """The endpoints of one server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_name: dict[str, Endpoint] = {}

    def known(self, name: str) -> Endpoint | None:
        """The endpoint, if its function was read a moment ago."""
        found = self._by_name.get(name)
        now_s = self._clock.monotonic_s()
        return found if found is not None and now_s < found.read_at_s + RECORD_S else None

    def of(self, function: Function) -> Endpoint:
        """The endpoint of a function as it is deployed now. Raises INVALID for one without.

        A new revision has an endpoint of its own; the calls of the one before are answered.
        """
        if function.host is None or not function.host.call_s:
            text = f"{function.name} takes no calls: deploy it with `endpoint: true`, or POST to "
            raise invalid(f"{text}/v1/functions/{function.name}/jobs")
        found, now_s = self._by_name.get(function.name), self._clock.monotonic_s()
        if found is None or found.function.revision != function.revision:
            if found is not None:
                found.replaced = True
                found.close_replaced()
            found = self._by_name[function.name] = Endpoint(function, now_s)
        found.function, found.read_at_s = function, now_s
        return found
