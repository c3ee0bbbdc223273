"""One reservation from the command line: asked once, waited for if wanted, accepted when pushed.

An interrupted wait (Ctrl-C, SIGTERM) leaves nothing behind: the request, or a lease granted in that
moment, is withdrawn before the program ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable

from corekit.budget import Budget
from corekit.errors import AppError, ErrorCode, invalid
from corekit.ids import AttemptId
from corekit.values import Value, replace
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.pushes import OnPush, PushWord
from gpu_scheduler.model import Door, GrantedLease, LeaseLifetime, LeaseState, Request
from gpu_scheduler.protocol import ops
from gpu_scheduler.protocol.answers import (
    AttemptAnswer,
    BusyPush,
    GrantedPush,
    ImpossiblePush,
    LeasePush,
    Outcome,
)
from gpu_scheduler.verdicts import Explanation

#: Default length of a lease from the command line, also of a classic one.
LEASE_S = 3600.0

#: A client for a session id, with its pushes.
Connect = Callable[[str, OnPush], SchedulerClient]
#: Called with the reason and the time so far, about once a beat while the request waits.
OnWait = Callable[[Explanation, float], None]


class Ask(Value):
    """The request of one `alloc`."""

    request: Request
    wait: bool = False
    attempt: str | None = None  #: repeating it returns its current state; None = a new one
    door: Door = Door.GATEWAY
    sources: tuple[str, ...] = ()  #: Door.PORT: allowed networks; none = this host


def with_length(request: Request) -> Request:
    """The request with the length that its lease will have."""
    return replace(request, lease_s=request.lease_s or LEASE_S)


def check_lease(lease: str) -> None:
    """Raises INVALID for an id of another kind: released by its attempt, a lease would live on."""
    if not lease.startswith("lease-"):
        raise invalid(f"{lease!r:.80} is not a lease; `ssgm leases` lists the live ones")


def session_of(attempt: str) -> str:
    """The session of an attempt: a repetition counts as the same caller."""
    return f"session-{attempt}"


async def allocate(
    connect: Connect, budget: Budget, ask: Ask, on_wait: OnWait | None = None
) -> AttemptAnswer:
    """A deadline lease, or the refusal. Raises AppError without an answer."""
    words: asyncio.Queue[PushWord] = asyncio.Queue()
    attempt = ask.attempt or f"ssgm-{secrets.token_hex(8)}"
    async with connect(session_of(attempt), words.put_nowait) as client:
        try:
            return await _Reservation(client, attempt, ask, words, budget).settled(on_wait)
        except asyncio.CancelledError:
            await _withdraw(client, attempt, budget.client_gone_s)
            raise


async def _withdraw(client: SchedulerClient, attempt: str, within_s: float) -> None:
    """Best effort: an unreachable scheduler notices the end of the session by itself."""
    with contextlib.suppress(AppError, TimeoutError):
        async with asyncio.timeout(within_s):
            await client.ask(ops.Withdraw(attempt=AttemptId(attempt)))


class _Reservation:
    """One attempt until it is granted or refused. Repeating the request changes nothing."""

    def __init__(
        self,
        client: SchedulerClient,
        attempt: str,
        ask: Ask,
        words: asyncio.Queue[PushWord],
        budget: Budget,
    ) -> None:
        self._client = client
        self._attempt = attempt
        self._ask = ask
        self._words = words
        self._beat_s = budget.client_beat_s
        self._doors_within_s = budget.install_wait_s + budget.client_beat_s
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    async def settled(self, on_wait: OnWait | None) -> AttemptAnswer:
        """The outcome, which is requested again after every beat: the position in the queue
        changes, and a push may be lost with its connection."""
        answer = await self._reserve()
        while answer.outcome is Outcome.WAITING:
            if on_wait is not None and answer.explanation is not None:
                on_wait(answer.explanation, self._waited_s())
            answer = await self._pushed() or await self._reserve()
        if answer.granted is not None and self._ask.door is Door.PORT:
            return await self._with_doors(answer)
        return answer

    async def _with_doors(self, answer: AttemptAnswer) -> AttemptAnswer:
        granted, until_s = answer.granted, self._loop.time() + self._doors_within_s
        while granted is not None and (missing := _closed_doors(granted)):
            if self._loop.time() > until_s:
                await self._client.release(granted.lease.id)
                text = f"{missing[0]} opened no port for lease {granted.lease.id}; see gpud's log"
                raise AppError(ErrorCode.UNAVAILABLE, text)
            answer = await self._pushed() or await self._reserve()
            granted = answer.granted
        return answer

    def _waited_s(self) -> float:
        return self._loop.time() - self._began_s

    async def _reserve(self) -> AttemptAnswer:
        request, wait = self._ask.request, self._ask.wait
        if request.max_wait_s is not None:
            left_s = request.max_wait_s - self._waited_s()
            wait = wait and left_s > 0
            request = replace(request, max_wait_s=max(0.0, left_s))
        request = with_length(request)
        return await self._client.reserve(
            self._attempt,
            request,
            wait=wait,
            hold=LeaseLifetime.DEADLINE,
            lease_s=request.lease_s,
            door=self._ask.door,
            sources=self._ask.sources,
        )

    async def _pushed(self) -> AttemptAnswer | None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._beat_s):
                while True:
                    word = await self._words.get()
                    if getattr(word, "attempt", None) == self._attempt:
                        break
            return await self._taken(word)
        return None

    async def _taken(self, word: PushWord) -> AttemptAnswer | None:
        if isinstance(word, GrantedPush):
            await self._client.renew(word.granted.lease.id)  # accepts the grant
            return AttemptAnswer(outcome=Outcome.GRANTED, granted=word.granted)
        if isinstance(word, LeasePush) and word.state is LeaseState.ENDED:
            text = f"lease {word.lease} ended before its port was open: {word.detail}"
            raise AppError(ErrorCode.UNAVAILABLE, text)
        if isinstance(word, BusyPush):
            return AttemptAnswer(outcome=Outcome.BUSY, explanation=word.explanation)
        if isinstance(word, ImpossiblePush):
            return AttemptAnswer(outcome=Outcome.IMPOSSIBLE, explanation=word.explanation)
        return None


def _closed_doors(granted: GrantedLease) -> list[str]:
    """The hosts whose port is not known yet; hosts without a gateway open none."""
    return [host for host in granted.gateways if host not in granted.lease.doors]
