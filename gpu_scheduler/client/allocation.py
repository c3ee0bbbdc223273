"""One reservation from the command line: asked once, waited for if wanted, accepted when pushed."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass

from corekit.budget import Budget
from gpu_scheduler.client.client import SchedulerClient
from gpu_scheduler.client.words import PushWord
from gpu_scheduler.model import Hold, Request
from gpu_scheduler.protocol.answers import (
    AttemptOutcome,
    BusyPush,
    GrantedPush,
    ImpossiblePush,
    Outcome,
)

#: Length of a lease taken from the command line, unless told otherwise; the classic one's too.
LEASE_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one `alloc` wants."""

    request: Request
    wait: bool = False
    lease_s: float = LEASE_S
    attempt: str | None = None  #: repeating it answers what stands; None = a new one


async def allocate(address: str, budget: Budget, ask: Ask) -> AttemptOutcome:
    """A deadline lease, or why not. Raises AppError when nobody answers."""
    pushes: asyncio.Queue[PushWord] = asyncio.Queue()
    attempt = ask.attempt or f"ssgm-{secrets.token_hex(8)}"
    session = f"session-{attempt}"  # the same attempt is the same caller
    async with SchedulerClient(
        address, session=session, budget=budget, on_push=pushes.put_nowait
    ) as client:
        outcome = await client.reserve(
            attempt, ask.request, wait=ask.wait, hold=Hold.DEADLINE, lease_s=ask.lease_s
        )
        if outcome.outcome is not Outcome.WAITING:
            return outcome
        while True:
            word = await pushes.get()
            if getattr(word, "attempt", None) != attempt:
                continue
            if isinstance(word, GrantedPush):
                await client.renew(word.granted.lease.id)
                return AttemptOutcome(outcome=Outcome.GRANTED, granted=word.granted)
            if isinstance(word, (BusyPush, ImpossiblePush)):
                busy = isinstance(word, BusyPush)
                kind = Outcome.BUSY if busy else Outcome.IMPOSSIBLE
                return AttemptOutcome(outcome=kind, explanation=word.explanation)
