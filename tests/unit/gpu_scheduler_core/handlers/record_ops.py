"""Ops of job records, as a test sends them."""

from typing import Any

from gpu_scheduler.protocol import ops
from tests.scheduler_world import World


def adopt(
    world: World,
    session: str = "s2",
    revision: int | None = None,
    holder: str = "job",
    handle: str | None = None,
) -> Any:
    if revision is None:
        revision = world.record(holder).revision
    return world.ask(ops.Adopt, session, holder=holder, revision=revision, handle=handle)


def finish(
    world: World,
    session: str = "s1",
    outcome: str = "SUCCEEDED",
    holder: str = "job",
    **fields: Any,
) -> Any:
    said = {"holder": holder, "outcome": outcome, "reason": "NONE", "detail": "", **fields}
    return world.ask(ops.Finish, session, **said).record


def fail(world: World, revision: int, session: str = "s1", reason: str = "EXIT_NONZERO") -> Any:
    said = {"revision": revision, "reason": reason, "detail": "d", "retry_at_s": 5.0}
    return world.ask(ops.FailAttempt, session, holder="job", **said)


def hand_back(world: World, revision: int, session: str = "s1") -> Any:
    return world.ask(ops.HandBack, session, holder="job", revision=revision)


def die(world: World) -> Any:
    """Let time pass until every session without a beat is gone."""
    return world.advance(world.budget.client_gone_s)
